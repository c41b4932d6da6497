"""A real Prometheus scrapes a stream, and answers with the numbers, the board's queries and the alerts. It is Debian's
package `prometheus`. Without it these tests are skipped, but fail in CI, which installs it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import threading
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from tests.deployment.native import free_port
from tests.lake import LOCAL, at, hourly_pipeline
from tests.pipelines.observe.metrics.measuring import MeasuredLake, run, values
from tests.pipelines.observe.metrics.measuring import epoch as epoch
from tests.waiting import wait_until
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.observe.metrics import open as opened
from tidegate.pipelines.observe.metrics import prometheus
from tidegate.pipelines.observe.metrics.catalog import METRICS, PIPELINE
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import IntervalJoin

ROOT = Path(__file__).parents[4]

BOARD = json.loads((ROOT / "deployment" / "grafana" / "tidegate.json").read_text())

CONFIG = ROOT / "deployment" / "prometheus" / "prometheus.yml"

PAGE = ROOT / "docs" / "operations" / "metrics.md"

RULES = ROOT / "deployment" / "prometheus" / "tidegate.rules.yml"

PATIENCE, SCRAPE = 60.0, 0.05

"""Seconds: the longest wait for something, and the time between two scrapes."""

QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def program(name: str) -> str:
    """Path of a program of Debian's package."""
    path = shutil.which(name)
    if path is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        raise missing.Exception(f"no {name} here: apt-get install prometheus")
    return path


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    port: int

    def _answer(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            content: bytes = answer.read()
            return content

    def is_ready(self) -> bool:
        """Return True if it answers queries: it listens earlier, but answers 503 until it has opened its database."""
        try:
            return bool(self._answer("/-/ready"))
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query."""
        asked = urllib.parse.urlencode({"query": expression})
        try:
            data: list[dict[str, Any]] = json.loads(self._answer(f"/api/v1/query?{asked}"))["data"]["result"]
            return data
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    def values(self, expression: str) -> list[float]:
        """Return the values of the samples."""
        return [float(sample["value"][1]) for sample in self.query(expression)]

    def becomes(self, expression: str, value: float) -> None:
        """Wait until a query has one sample, with a value."""
        wait_until(lambda: self.values(expression) == [value], f"{expression} == {value}", PATIENCE, SCRAPE)

    def answers(self, expression: str) -> list[dict[str, Any]]:
        """Wait until a query has samples, and return them. A scrape that takes longer than the scrape interval yields
        none, so on a busy machine they come and go.
        """
        found: list[dict[str, Any]] = wait_until(
            lambda: self.query(expression), f"an answer to {expression}", PATIENCE, SCRAPE
        )
        return found


@contextmanager
def scraping(folder: Path, target: int) -> Iterator[Prometheus]:
    """A Prometheus that scrapes a port many times a second."""
    port = free_port()
    text = CONFIG.read_text().replace("127.0.0.1:9464", f"127.0.0.1:{target}").replace("15s", f"{SCRAPE * 1000:.0f}ms")
    assert f"127.0.0.1:{target}" in text
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(RULES, folder)
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        prometheus = Prometheus(port)

        def is_ready() -> bool:
            assert server.poll() is None, (folder / "log").read_text()
            return prometheus.is_ready()

        wait_until(is_ready, "Prometheus", PATIENCE, SCRAPE)
        yield prometheus
    finally:
        server.kill()
        server.wait()


def asked(query: str) -> str:
    """A query of the board for all pipelines."""
    return query.replace("$__rate_interval", "1m").replace("$pipeline", ".*")


@pytest.mark.long
def test_prometheus_scrapes_a_stream_and_answers_every_query_of_the_board(tmp_path: Path) -> None:
    port, pipeline = free_port(), hourly_pipeline()
    lake = MeasuredLake(tmp_path / "lake", metrics={"prometheus": port})
    with scraping(tmp_path, port) as prometheus:
        lake.append(("ann", at("10:00"), 1), ("bob", at("10:30"), 2), ("ann", None, 3))
        with lake.driver(LOCAL, pipeline) as driver:
            stream = Stream(driver, lambda manifest: None, EpochLimits(commits=1))
            stream.run_available()
            prometheus.becomes("tidegate_epoch_number", 1)
            lake.append(("ann", at("14:00"), 1))
            lake.append(("ann", at("18:00"), 1), ("bob", at("09:00"), 2))
            stream.run_available()
            prometheus.becomes("tidegate_epoch_number", 3)
            (row,) = [sum_of(lake.rows(pipeline, "epochs").to_pylist())]
            for outcome in ("on_time", "late", "rejected"):
                prometheus.becomes(f'tidegate_source_events_total{{tidegate_outcome="{outcome}"}}', row[outcome])
                assert row[outcome] > 0
            prometheus.becomes('tidegate_window_panes_total{tidegate_timing="on_time"}', row["fired_on_time"])
            prometheus.becomes("tidegate_epoch_duration_seconds_count", 3)
            prometheus.becomes("tidegate_result_delay_seconds_count", 3)
            prometheus.becomes('increase(tidegate_source_events_total{tidegate_outcome="late"}[1m]) > bool 0', 1)
            for query in QUERIES:
                prometheus.answers(asked(query))
            prometheus.becomes('up{job="tidegate"}', 1)
            rules = prometheus.answers('ALERTS{alertname="TidegateWatermarkLag"}')
            assert [each["metric"]["alertstate"] for each in rules] == ["pending"], "the events are of years ago"
        # The run has ended.
        prometheus.becomes('up{job="tidegate"}', 0)


def sum_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in ("on_time", "late", "rejected", "fired_on_time")}


@pytest.mark.parametrize("check", [("config", CONFIG), ("rules", RULES)], ids=lambda check: check[0])
def test_promtool_accepts_the_files(check: tuple[str, Path]) -> None:
    done = subprocess.run([program("promtool"), "check", *map(str, check)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    cases = tmp_path / "cases.yml"
    cases.write_text((Path(__file__).parent / "rules_test.yml").read_text().replace("RULES", str(RULES)))
    done = subprocess.run([program("promtool"), "test", "rules", str(cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert {alert for alert in alerts if alert not in cases.read_text()} == set()


# --- names, without a Prometheus ---------------------------------------------------------------------

SERIES = {
    metric.in_prometheus + ending: metric
    for metric in METRICS
    for ending in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}

LABELS = {name.replace(".", "_") for metric in METRICS for name in (*metric.attributes, PIPELINE)}


def unknown_names(text: str) -> set[str]:
    """Return our names in a query that are neither a metric nor a label."""
    return set(re.findall(r"\btidegate_\w+", text)) - set(SERIES) - LABELS


@pytest.mark.parametrize(
    "text",
    [*QUERIES, *(variable["definition"] for variable in BOARD["templating"]["list"] if "definition" in variable)],
)
def test_every_query_of_the_board_names_metrics_that_exist(text: str) -> None:
    assert unknown_names(text) == set()


def test_every_alert_names_metrics_that_exist() -> None:
    assert unknown_names(RULES.read_text()) == set()
    assert unknown_names("rate(tidegate_source_event_total[5m])") == {"tidegate_source_event_total"}


def test_the_board_shows_every_metric_but_the_number_of_the_epoch_and_the_watermark_itself() -> None:
    queries = " ".join(QUERIES)
    hidden = {metric.name for metric in METRICS if metric.in_prometheus not in queries}
    assert hidden == {"tidegate.epoch.number", "tidegate.watermark.time"}


def test_the_boards_panels_have_their_own_numbers_and_places() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Any) -> None:
    assert re.fullmatch(r"tidegate(\.[a-z]+(_[a-z]+)*)+", metric.name)
    assert not metric.name.endswith((".total", ".seconds", ".bytes", ".count"))
    assert metric.unit in ("s", "By") or re.fullmatch(r"\{[a-z]+\}", metric.unit)
    assert all(name.startswith("tidegate.") for name in metric.attributes)
    assert metric.meaning[0].isupper()
    assert not metric.meaning.endswith(".")
    others = {other.name for other in METRICS} - {metric.name}
    assert [other for other in others if other.startswith(f"{metric.name}.")] == [], "a name is no namespace"
    assert (metric.kind == "histogram") == bool(metric.buckets)


def test_the_page_has_an_item_for_every_metric() -> None:
    found = re.findall(r"^- (`tidegate\..*?)(?=^- |^$)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    items = [" ".join(item.split()) for item in found]
    assert items[: len(METRICS)] == [
        f"`{metric.name}` (`{metric.in_prometheus}`), {metric.kind} in `{metric.unit}`"
        f"{', by ' if metric.attributes else ''}{', '.join(f'`{name}`' for name in metric.attributes)}: "
        f"{metric.meaning}."
        for metric in METRICS
    ]
    explained = {item.split("`")[1] for item in items[len(METRICS) :]}
    assert explained == {name for metric in METRICS for name in metric.attributes}


@pytest.mark.parametrize("block", re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
def test_every_example_of_the_page_is_a_tidegate_toml(block: str) -> None:
    assert Config.model_validate(tomllib.loads(block)).metrics.are_on


def test_the_file_goes_on_from_the_runs_before(tmp_path: Path, epoch: Manifest) -> None:
    file = tmp_path / "prom" / "tidegate_hours.prom"
    for number in (1, 2, 3):
        with run(tmp_path, textfile="prom") as observer:
            observer.published(epoch.model_copy(update={"epoch": number}), {"plan": 0.5})
        shown = values(file.read_text())
        assert shown["tidegate_source_events_total"] == 2 * number
        assert shown["tidegate_epoch_duration_seconds_count"] == number
        assert shown["tidegate_epoch_duration_seconds_sum"] == 0.5 * number
        assert shown["tidegate_epoch_number"] == number, "a gauge is no sum"
    with run(tmp_path, textfile="prom", compute=IntervalJoin.between(timedelta(0), timedelta(hours=1))) as observer:
        observer.published(epoch, {"plan": 1.0})
    text = file.read_text()
    assert text.count("# TYPE tidegate_epoch_duration_seconds histogram") == 1
    assert values(text)["tidegate_epoch_duration_seconds_sum"] == 2.5, "a series that ended stays"
    assert "tidegate_watermark_lag_seconds" not in text, "it would stand still after the run"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_file_keeps_the_durations_and_delays_of_runs_before_one_that_found_nothing(
    tmp_path: Path, epoch: Manifest
) -> None:
    file = tmp_path / "tidegate_hours.prom"
    for number in (1, 2):
        with run(tmp_path, textfile=".") as observer:
            observer.published(epoch, {"plan": 0.5})
            observer.visible([1_710_000_000_000 - 5000])
        of_run = file.read_text()
        with run(tmp_path, textfile="."):
            pass
        text = file.read_text()
        for family in ("tidegate_epoch_duration_seconds", "tidegate_result_delay_seconds"):
            assert values(text)[f"{family}_count"] == number, "a series that goes away begins at 0 again"
            assert lines_of(family, text) == lines_of(family, of_run)


def lines_of(family: str, text: str) -> list[str]:
    """Every line of a metric, with its description and type."""
    return sorted(line for line in text.splitlines() if family in line)


@pytest.mark.parametrize("content", ["", "not { metrics", "\x00\xff", "tidegate_source_events_total NaN\n"])
def test_a_damaged_file_is_begun_again(tmp_path: Path, epoch: Manifest, content: str) -> None:
    file = tmp_path / "tidegate_hours.prom"
    file.write_bytes(content.encode("latin-1"))
    with run(tmp_path, textfile=".") as observer:
        observer.published(epoch, {})
    assert values(file.read_text())["tidegate_source_events_total"] == 2


def test_a_folder_that_can_not_be_written_is_one_line(
    tmp_path: Path, epoch: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "prom").write_text("a file")
    with run(tmp_path, textfile="prom") as observer:
        observer.published(epoch, {})
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"metrics can't be written to {tmp_path / 'prom'}/tidegate_hours.prom: ")


def test_a_disk_that_hangs_keeps_no_run_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "_LAST_WORDS", 0.2)
    answered = threading.Event()
    monkeypatch.setattr(prometheus, "text_string_to_metric_families", lambda text: answered.wait() and ())
    monkeypatch.setattr(prometheus, "generate_latest", lambda registry: b"")
    (tmp_path / "tidegate_hours.prom").write_text("")
    began = perf_counter()
    with run(tmp_path, textfile=".", every_seconds=600):
        pass
    answered.set()
    assert perf_counter() - began < 60
