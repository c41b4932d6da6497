"""Addresses of the report and the Data Docs of a check in Airflow, linked at the task, in its log and its event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class ReportLink(BaseOperatorLink):
    """A button at a task, whether its check passed or not: to the run report that it wrote."""

    name = "Run report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The address; nothing where the task wrote no report."""
        return report_url(getattr(operator, "result", None)) or ""


class DocsLink(BaseOperatorLink):
    """A button at a task, whether its check passed or not: to the pages of all checks of the pipeline."""

    name = "Data Docs"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The address; nothing where the task checked nothing."""
        result = getattr(operator, "result", None)
        if not isinstance(result, dict) or not result.get("docs"):
            return ""
        return _address(f"pipelines/{result['pipeline']}/checks/index.html")


def report_url(result: Any) -> str | None:
    """The address of the report that a check wrote, told from the JSON that it left; None where it wrote none.

    It begins with Airflow's `[api] base_url`; where that is not set it is a path on whatever host Airflow is.
    """
    if not isinstance(result, dict) or not result.get("report"):
        return None
    return _address(f"pipelines/{result['pipeline']}/reports/{result['epoch']}")


def _address(path: str) -> str:
    from airflow.sdk.configuration import conf

    from tidegate.pipelines.airflow.plugin import PREFIX

    base = conf.get("api", "base_url", fallback=None) or ""
    return f"{base.rstrip('/')}{PREFIX}/{path}"
