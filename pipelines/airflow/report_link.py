"""Addresses in Airflow of a pipeline, and of a check's report and Data Docs, linked from the task and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class ReportLink(BaseOperatorLink):
    """A button of a task that opens the run report that the task wrote, even after a failed check."""

    name = "Run report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address, or an empty string if the task wrote no report."""
        return report_url(getattr(operator, "result", None)) or ""


class DocsLink(BaseOperatorLink):
    """A button of a task that opens the pages of all checks of the pipeline, even after a failed check."""

    name = "Data Docs"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address, or an empty string if the task checked nothing."""
        return docs_url(getattr(operator, "result", None)) or ""


class PageLink(BaseOperatorLink):
    """A button of a task that opens the page of its pipeline: watermark, snapshots, open windows, quality."""

    name = "Pipeline"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address, or an empty string for a command without a pipeline."""
        name = getattr(operator, "shown_as", None)
        return _address(f"#{name}") if name else ""


def report_url(result: Any) -> str | None:
    """Return the address of the report that a check wrote, from its JSON result, or None if it wrote none.

    The address begins with Airflow's `[api] base_url`; if that is not set, it is a path on Airflow's host.
    """
    if not isinstance(result, dict) or not result.get("report"):
        return None
    return _address(f"pipelines/{_shown_as(result)}/reports/{result['epoch']}")


def docs_url(result: Any) -> str | None:
    """Return the address of the Data Docs, from the JSON result of a check, or None if it checked nothing."""
    if not isinstance(result, dict) or not result.get("docs"):
        return None
    return _address(f"pipelines/{_shown_as(result)}/checks/index.html")


def _shown_as(result: dict[str, Any]) -> str:
    """Return the pipeline's name on the page, which begins with the prefix of its DAGs."""
    return str(result.get("shown_as") or result["pipeline"])


def run_url(dag: str, run: str) -> str:
    """Return the address of a run in Airflow."""
    return f"{_base()}/dags/{dag}/runs/{quote(run)}"


def _address(path: str) -> str:
    from tidegate.pipelines.airflow.plugin import PREFIX

    return f"{_base()}{PREFIX}/{path}"


def _base() -> str:
    from airflow.sdk.configuration import conf

    return (conf.get("api", "base_url", fallback=None) or "").rstrip("/")
