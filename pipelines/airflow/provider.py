"""The description of Tidegate as an Airflow provider, found by the entry point `apache_airflow_provider`.

Every process of Airflow that lists providers imports this module, so it imports nothing. The page is registered by the
entry point `airflow.plugins`: a plugin also named by the provider would be loaded twice, with a warning.
"""

from __future__ import annotations

from typing import Any

CONNECTION_TYPE = "tidegate"

_PACKAGE = "tidegate.pipelines.airflow"
_INTEGRATION = "Tidegate"


def _text(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


_SECRET = {"format": "password"}

CONNECTION_FIELDS = {
    "warehouse": _text("Warehouse", "Folder or URI that the Test button checks, such as s3://bucket/warehouse."),
    "region_name": _text("Region", "Region of the store, such as eu-central-1."),
    "endpoint_url": _text("Endpoint", "Address of the store, if it is not Amazon's."),
    "aws_session_token": _text("Session token", "Session token of a temporary key.", **_SECRET),
    "secret_storage_options": _text(
        "Other storage options", 'Options as JSON, spelled as in deltalake, such as {"account_key": "..."}.', **_SECRET
    ),
}
"""Fields of a connection in addition to Airflow's own, by their names in its extra. Airflow hides a value if its name
contains `secret` or `token`.
"""


def get_provider_info() -> dict[str, Any]:
    """Return the description; Airflow checks it against `provider_info.schema.json`."""
    return {
        "package-name": "tidegate",
        "name": "Tidegate",
        "description": "Exact, Flink-grade windows for Spark and Delta Lake, scheduled by Airflow.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "operators": [_modules("operator", "tasks")],
        "sensors": [_modules("sensors")],
        "hooks": [_modules("hook")],
        "triggers": [_modules("triggers", "commits")],
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-name": "Tidegate warehouse",
                "hook-class-name": f"{_PACKAGE}.hook.WarehouseHook",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "port", "schema", "extra"],
                    "relabeling": {"login": "Access key ID", "password": "Secret access key"},
                    "placeholders": {},
                },
                "conn-fields": CONNECTION_FIELDS,
            }
        ],
        "extra-links": [f"{_PACKAGE}.report_link.{name}" for name in ("ReportLink", "DocsLink", "PageLink")],
        "asset-uris": [{"schemes": ["tidegate"], "handler": None}],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}
