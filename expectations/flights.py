"""Suites of the example pipelines: rules for every final window."""

from __future__ import annotations

import great_expectations as gx
import great_expectations.expectations as gxe

aircraft_duty = gx.ExpectationSuite(
    name="aircraft_duty",
    expectations=[
        gxe.ExpectColumnValuesToNotBeNull(column="tailnum", severity="critical"),
        gxe.ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="window_end", column_B="window_start", severity="critical"
        ),
        gxe.ExpectColumnValuesToBeBetween(column="flights", min_value=1, severity="critical"),
        gxe.ExpectColumnValuesToBeInSet(column="first_airport", value_set=["EWR", "JFK", "LGA"], severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="longest_leg", min_value=1, max_value=5000, severity="warning"),
        gxe.ExpectColumnValuesToBeBetween(
            column="air_minutes", min_value=15, max_value=1440, severity="warning", mostly=0.99
        ),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, severity="info"),
    ],
)

airport_hours = gx.ExpectationSuite(
    name="airport_hours",
    expectations=[
        gxe.ExpectColumnValuesToBeInSet(column="origin", value_set=["EWR", "JFK", "LGA"], severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="departures", min_value=1, max_value=120, severity="critical"),
        gxe.ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="max_delay", column_B="mean_delay", or_equal=True, severity="critical"
        ),
        gxe.ExpectColumnMeanToBeBetween(column="mean_delay", min_value=-30, max_value=180, severity="warning"),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, severity="info"),
    ],
)

carrier_shifts = gx.ExpectationSuite(
    name="carrier_shifts",
    expectations=[
        gxe.ExpectColumnValuesToBeInSet(column="origin", value_set=["EWR", "JFK", "LGA"], severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="flights", min_value=1, severity="critical"),
        gxe.ExpectColumnValuesToBeBetween(column="longest_leg", min_value=1, max_value=5000, severity="warning"),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, severity="info"),
    ],
)
