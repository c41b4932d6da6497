"""OpenLineage events of the operator's tasks, in the form that Airflow's OpenLineage provider expects.

The provider calls the operator's methods in a separate process, which it ends after some seconds. It sends what they
return to the destination in Airflow's section [openlineage]. Without that section they are not called, and nothing is
sent. `tidegate tables lineage` loads the pipeline's code, like all commands outside Airflow's processes and without
Airflow's secrets. A failure never fails a task. It only causes a line in the task's log and an event without datasets.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tidegate.pipelines.airflow.command import CommandOutcome, without_airflow
from tidegate.pipelines.airflow.connections import environment_of
from tidegate.pipelines.definition.config import ENVIRONMENT, load_config
from tidegate.pipelines.errors import TidegateError, UsageError
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import command as command_of
from tidegate.pipelines.storage.credentials import masked

_CHECK = ("quality", "check")
_DRIVING = (
    *(("backfill",), ("replay",), ("stream",), ("restore",), ("forget",)),
    *(("late", "reopen"), ("late", "prune")),
)
"""Commands that change a pipeline's tables. Of all other commands, only the check has lineage."""
_NOTHING: Mapping[str, Any] = {"inputs": (), "outputs": ()}
_SPARE = 2
"""Seconds of the provider's timeout that are reserved for its own work."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class CommandLineage:
    """Lineage of one command; without a pipeline, only the arguments name it.

    A line about a failure goes to `warn`. `words` are those before a command's arguments, and `run` runs a command, as
    `subprocess.run` does.
    """

    arguments: Sequence[str]
    pipeline: str | None
    config: str
    words: Sequence[str]
    warn: Callable[[str], object]
    run: Run = subprocess.run

    def before(self, is_skipped: bool = False) -> Any:
        """Return the tables that the command is about to read and write, as far as known; none if the task skips it."""
        return self._guarded((lambda: _NOTHING) if is_skipped else self._datasets)

    def after(self, outcome: CommandOutcome | None) -> Any:
        """Return the tables that the command read and wrote, as far as known, even if it failed.

        It has no outcome if it never started.
        """
        return self._guarded((lambda: _NOTHING) if outcome is None else (lambda: self._datasets(outcome)))

    def _guarded(self, datasets: Callable[[], Mapping[str, Any]]) -> Any:
        try:
            return operator_lineage(datasets())
        except Exception as error:
            # A failure here must not affect the task's own work.
            self.warn(masked(f"no datasets in the OpenLineage event of this task: {error}"))
            return None

    def _datasets(self, outcome: CommandOutcome | None = None) -> Mapping[str, Any]:
        words = [str(argument) for argument in self.arguments if str(argument)]
        is_check = tuple(words[:2]) == _CHECK
        driving = next((each for each in _DRIVING if tuple(words[: len(each)]) == each), None)
        if driving is None and not is_check:
            return _NOTHING
        pipeline = self.pipeline or self._named_in(words[len(driving or _CHECK) :])
        if pipeline is None:
            return _NOTHING
        if not is_check:
            return self._asked(pipeline, *_time_of(None if outcome is None else outcome.lease))
        plain = self._asked(pipeline, "--command=quality")
        return plain if outcome is None or outcome.result is None else with_check(plain, outcome.result)

    def _named_in(self, words: Sequence[str]) -> str | None:
        """Return the pipeline among the arguments after a command's name. Values of options may precede it."""
        positional = [word for word in words if not word.startswith("-")]
        # The command itself reports why a file can't be read.
        with suppress(UsageError):
            pipelines = load_config(Path(self.config)).declared
            positional.sort(key=lambda word: word not in pipelines)
        return next(iter(positional), None)

    def _asked(self, pipeline: str, *options: str) -> dict[str, Any]:
        """Return the output of `tidegate tables lineage`.

        Raises:
            TidegateError: it failed, or took too long.
        """
        with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
            answer = Path(folder) / "lineage.json"
            command = ["tables", "lineage", pipeline, *options, "--output", str(answer)]
            named = f"`{command_of(Remedy(Act.LINEAGE, pipeline))}`"
            given = {ENVIRONMENT: self.config, **environment_of(self.config)}
            variables = {**without_airflow(os.environ), **given}
            try:
                done = self.run(
                    [*self.words, *command],
                    env={name: value for name, value in variables.items() if value is not None},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_patience(),
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise TidegateError(
                    f"{named} took longer than {error.timeout:g} s: give it more time with "
                    "execution_timeout in Airflow's section [openlineage]"
                ) from None
            if done.returncode != 0:
                lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
                reason = lines[-1].removeprefix("tidegate: ") if lines else f"ended with code {done.returncode}"
                raise TidegateError(f"{named}: {reason}")
            content: dict[str, Any] = json.loads(answer.read_text())
            return content


def _time_of(lease: Mapping[str, Any] | None) -> list[str]:
    """Return the options that restrict counts to a command's epochs, given the time for which it held the lease."""
    if lease is None:
        return []
    moments = {name: lease[name] for name in ("since", "until") if lease[name] is not None}
    return [f"--{name}={(_EPOCH + timedelta(milliseconds=at)).isoformat()}" for name, at in moments.items()]


def with_check(plain: dict[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the datasets of a check, with the versions and outcomes in the JSON of `tidegate quality check`."""
    if "checks" not in result:
        return plain
    fields = {each["table"]: each["facets"].get("schema", {}).get("fields", ()) for each in plain["inputs"]}
    facets = check_facets(result, [field["name"] for field in fields.get("results", ())])
    versions = result.get("versions", {})
    inputs = []
    for each in plain["inputs"]:
        table = each["table"]
        read = {"version": {"datasetVersion": str(versions[table])}} if table in versions else {}
        inputs.append({**each, "facets": {**each["facets"], **read}, "inputFacets": facets.get(table, {})})
    return {**plain, "inputs": inputs}


def operator_lineage(plain: Mapping[str, Any]) -> Any:
    """Return datasets of `tidegate tables lineage` as the value that the provider expects from an operator."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset

    def dataset(made: type, each: Mapping[str, Any], own: str) -> Any:
        facets = {"facets": _facets(each["facets"]), own: _facets(each.get(own, {}))}
        return made(namespace=each["namespace"], name=each["name"], **facets)

    return OperatorLineage(
        inputs=[dataset(InputDataset, each, "inputFacets") for each in plain["inputs"]],
        outputs=[dataset(OutputDataset, each, "outputFacets") for each in plain["outputs"]],
    )


def _facets(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Return facets as OpenLineage's own classes, which add the address of their schema."""
    from openlineage.client import facet_v2 as ol

    columns, assertions, metrics = (
        ol.column_lineage_dataset,
        ol.data_quality_assertions_dataset,
        ol.data_quality_metrics_input_dataset,
    )

    def column(given: Mapping[str, Any]) -> Any:
        fields = [column(each) for each in given.get("fields", ())]
        return ol.schema_dataset.SchemaDatasetFacetFields(**{**given, "fields": fields})

    def uses(given: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [
            columns.InputField(
                **{**each, "transformations": [columns.Transformation(**by) for by in each["transformations"]]}
            )
            for each in given
        ]

    classes: dict[str, Callable[[Any], Any]] = {
        "schema": lambda given: ol.schema_dataset.SchemaDatasetFacet(fields=[column(each) for each in given["fields"]]),
        "columnLineage": lambda given: columns.ColumnLineageDatasetFacet(
            fields={name: columns.Fields(inputFields=uses(by["inputFields"])) for name, by in given["fields"].items()},
            dataset=uses(given["dataset"]),
        ),
        "dataQualityAssertions": lambda given: assertions.DataQualityAssertionsDatasetFacet(
            assertions=[assertions.Assertion(**each) for each in given["assertions"]]
        ),
        "dataQualityMetrics": lambda given: metrics.DataQualityMetricsInputDatasetFacet(
            rowCount=given["rowCount"],
            columnMetrics={name: metrics.ColumnMetrics(**each) for name, each in given["columnMetrics"].items()},
        ),
        "version": lambda given: ol.dataset_version_dataset.DatasetVersionDatasetFacet(**given),
        "dataSource": lambda given: ol.datasource_dataset.DatasourceDatasetFacet(**given),
        "documentation": lambda given: ol.documentation_dataset.DocumentationDatasetFacet(**given),
        "storage": lambda given: ol.storage_dataset.StorageDatasetFacet(**given),
        "inputStatistics": lambda given: ol.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(**given),
        "outputStatistics": lambda given: ol.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            **given
        ),
    }
    return {name: classes[name](content) for name, content in contents.items()}


def _patience() -> float:
    """Return how many seconds `tidegate tables lineage` may take: the provider ends its process after its timeout."""
    from airflow.sdk.configuration import conf

    return max(1.0, float(conf.getint("openlineage", "execution_timeout", fallback=10)) - _SPARE)


RESULTS, EPOCHS, STATE = "results", "epochs", "state"

_OWN_SUITE = "new final windows"
"""Prefix of the name of the rows that the pipeline's own suite checks."""
_TABLES = {"epochs": EPOCHS, "lines": EPOCHS, "ledger": EPOCHS, "state": STATE, "restored state": STATE}
"""Tables of the rows that an expectation checks; all others are rows of table results, or its files."""
_SEVERITIES = {"critical": "error", "warning": "warn"}
_METRICS = {
    "expect_column_min_to_be_between": "min",
    "expect_column_max_to_be_between": "max",
    "expect_column_sum_to_be_between": "sum",
    "expect_column_unique_value_count_to_be_between": "distinctCount",
}
"""Metrics of a column that an expectation observes."""
_NOT_NULL = "expect_column_values_to_not_be_null"


def check_facets(result: Mapping[str, Any], columns: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the input facets of each table that a check read, by its name, from the JSON of `tidegate quality check`.

    Each expectation is an assertion about the table whose rows it read. The pipeline's own suite also gives metrics:
    the number of windows that became final, and the values that its expectations observed in columns. The columns of
    table results show whether an expectation is about a column.
    """
    assertions: dict[str, list[dict[str, Any]]] = {}
    for check in result["checks"]:
        table = _TABLES.get(check["suite"], RESULTS)
        assertions.setdefault(table, []).append(_assertion(check, columns if table == RESULTS else ()))
    facets: dict[str, dict[str, Any]] = {
        table: {"dataQualityAssertions": {"assertions": each}} for table, each in assertions.items()
    }
    metrics = {"rowCount": result["windows"], "columnMetrics": _column_metrics(result["checks"], columns)}
    facets.setdefault(RESULTS, {})["dataQualityMetrics"] = metrics
    return facets


def _assertion(check: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    assertion = {
        "assertion": check["expectation"],
        "success": check["success"],
        "severity": _SEVERITIES.get(check["severity"], check["severity"]),
        "name": f"{check['suite']}: {check['expectation']}",
    }
    if check["about"] in columns:
        assertion["column"] = check["about"]
    elif check["about"]:
        assertion["description"] = check["about"]
    if check["observed"]:
        assertion["actual"] = check["observed"]
    return assertion


def _column_metrics(checks: Collection[Mapping[str, Any]], columns: Collection[str]) -> dict[str, dict[str, float]]:
    metrics: dict[str, dict[str, float]] = {}
    for check in checks:
        if not check["suite"].startswith(_OWN_SUITE) or check["about"] not in columns:
            continue
        for name, value in _metric(check):
            metrics.setdefault(check["about"], {})[name] = value
    return metrics


def _metric(check: Mapping[str, Any]) -> list[tuple[str, float]]:
    if check["expectation"] == _NOT_NULL and check["failing"] is not None:
        return [("nullCount", check["failing"]), ("count", check["rows"] - check["failing"])]
    name = _METRICS.get(check["expectation"])
    if name is None:
        return []
    try:
        value = float(check["observed"])
    except ValueError:
        # It is a time or a string, but metrics are numbers.
        return []
    if not math.isfinite(value):
        # JSON has no NaN or infinity: a server would refuse the whole event.
        return []
    return [(name, int(value) if name == "distinctCount" else value)]
