"""`tidegate flights` writes the source table of the example pipelines."""

from __future__ import annotations

import click

from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.examples.flights.source import DAYS, FIRST_DAY, load_flights
from tidegate.pipelines.project.cli.screen import Screen, with_screen


@click.command()
@click.option("--days", default=31, show_default=True, help=f"How many days of 2013 to write, 1 to {DAYS}.")
@with_screen
def flights(screen: Screen, days: int) -> None:
    """Write table `flights` into the warehouse: real flights from New York, the source of the example pipelines.

    The table has one commit for each day of arrival, in the order in which the records would have arrived. An existing
    table is left unchanged.
    """
    warehouse = warehouse_of(screen.config())
    path = warehouse.path("flights")
    rows = load_flights(path, days, warehouse.options_of(path))
    screen.show({"table": path, "rows": rows}, f"{path} holds {rows} records of flights, from {FIRST_DAY}")
