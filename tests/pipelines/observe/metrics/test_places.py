"""The destinations that [metrics] names: a port and a collector. None of them stops a run, whatever is wrong with
it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from opentelemetry.exporter.otlp.common.http import _OTLPHTTPClient
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from prometheus_client.parser import text_string_to_metric_families

from tests.deployment.native import free_port
from tests.pipelines.observe.metrics.measuring import epoch as epoch
from tests.pipelines.observe.metrics.measuring import run, values
from tidegate.extras import pip_install
from tidegate.pipelines.definition.config import Config, MetricsSettings
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.observe.metrics import open as opened
from tidegate.pipelines.observe.metrics import push
from tidegate.pipelines.observe.metrics.catalog import METRICS
from tidegate.pipelines.observe.metrics.open import check_metrics
from tidegate.pipelines.storage import credentials
from tidegate.windowing import IntervalJoin


def scraped(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


# --- Prometheus ------------------------------------------------------------------------------------


def test_a_port_alone_is_one_of_loopback_and_the_pipelines_own_comes_first(tmp_path: Path, epoch: Manifest) -> None:
    assert MetricsSettings.model_validate({"prometheus": 9464}).prometheus == "127.0.0.1:9464"
    port = free_port()
    with run(tmp_path, port, prometheus=free_port()) as observer:
        observer.published(epoch, {"plan": 0.5})
        shown = values(scraped(port))
        assert (shown["tidegate_source_events_total"], shown["tidegate_window_panes_total"]) == (2, 1)
        with socket.socket() as probe:
            # Another loopback address stands for one of a network.
            assert probe.connect_ex(("127.0.0.2", port)) != 0
    with pytest.raises(OSError, match="refused"):
        scraped(port)


def test_every_metric_of_the_catalogue_is_served_by_its_name(tmp_path: Path, epoch: Manifest) -> None:
    port = free_port()
    with run(tmp_path, prometheus=port) as observer:
        observer.published(epoch.model_copy(update={"positions": {}}), {"plan": 0.5})
        observer.visible([1_710_000_000_000 - 5000])
        observer.state([{"size_bytes": 77}])
        observer.windows([{"num_records": 7}])
        observer.polled()
        families = {family.name: family for family in text_string_to_metric_families(scraped(port))}
    assert {metric.in_prometheus.removesuffix("_total") for metric in METRICS} == set(families) - {"target"} - {
        "target_info"
    }
    for metric in METRICS:
        family = families[metric.in_prometheus.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        labels = {name for sample in family.samples for name in sample.labels} - {"le", "tidegate_pipeline"}
        assert labels == {name.replace(".", "_") for name in metric.attributes}


def test_a_port_in_use_is_a_line_that_names_the_way_out_and_the_run_goes_on(
    tmp_path: Path, epoch: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    port, other = free_port(), free_port()
    with run(tmp_path, prometheus=port), run(tmp_path, prometheus=port) as second:
        second.published(epoch, {})
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == (
            f"metrics of hours can't be served at 127.0.0.1:{port}: the port is in use: give this pipeline another "
            "port with `metrics_port` in [pipelines.hours]. The run continues without them"
        )
        with run(tmp_path, other, prometheus=port):
            assert "tidegate_epoch_number" not in scraped(other), "the way out works; nothing was published yet"
    with run(tmp_path, prometheus="no.such.host.invalid:1"):
        assert "correct `prometheus` in [metrics]" in caplog.records[-1].getMessage()


def test_a_name_service_that_does_not_answer_keeps_no_run_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the standard library looks up the name of its own address."""
    monkeypatch.setattr(socket, "getfqdn", None)
    monkeypatch.setattr(socket, "gethostbyaddr", None)
    port = free_port()
    with run(tmp_path, prometheus=f"0.0.0.0:{port}"):
        assert "target_info" in scraped(port)
    with run(tmp_path, prometheus=f"[::1]:{port}"):
        assert "target_info" in scraped(port, "[::1]")


def test_a_host_that_is_no_name_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with run(tmp_path, prometheus=f"{'é' * 70}:1") as observer:
        assert observer.is_on
    (line,) = [record.getMessage() for record in caplog.records]
    assert "that is not a host name: correct `prometheus` in [metrics]" in line


def test_a_port_of_a_pipeline_without_prometheus_serves_nothing_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with run(tmp_path, 9465):
        pass
    assert caplog.messages == [
        "metrics_port of [pipelines.hours] has no effect: set `prometheus = 9465` in [metrics] as well"
    ]


# --- a collector -----------------------------------------------------------------------------------


class Collector(HTTPServer):
    """A collector that records what it receives, and answers with a status."""

    status = 200

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.got: list[tuple[str, ExportMetricsServiceRequest]] = []
        self.headers: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.headers.append(dict(self.headers))
        self.server.got.append((self.path, ExportMetricsServiceRequest.FromString(body)))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *ignored: object) -> None:
        pass


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    with Collector(port) as collector:
        yield collector
        collector.shutdown()


def test_a_short_run_sends_its_last_values_when_it_ends(
    tmp_path: Path, epoch: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hush")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=ours")
    with collecting() as collector:
        join = IntervalJoin.between(timedelta(0), timedelta(hours=1))
        with run(tmp_path, compute=join, otlp=f"http://127.0.0.1:{collector.server_port}/") as observer:
            observer.published(epoch, {"plan": 0.5})
    (path, request), headers = collector.got[-1], collector.headers[-1]
    assert (path, headers["authorization"]) == ("/v1/metrics", "Bearer hush")
    (resource,) = request.resource_metrics
    about = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert (about["service.name"], about["deployment.environment.name"]) == ("ours", "test")
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    events = metrics["tidegate.source.events"]
    assert (events.unit, sum(point.as_int for point in events.sum.data_points)) == ("{event}", 2)
    assert metrics["tidegate.state.rows"].unit == "{row}"
    (duration,) = metrics["tidegate.step.duration"].histogram.data_points
    assert {each.key: each.value.string_value for each in duration.attributes} == {
        "tidegate.pipeline": "hours",
        "tidegate.operator": "rows",
        "tidegate.step": "plan",
    }
    assert "hush" not in str(request)


def test_a_collector_that_is_away_has_one_line_and_one_when_it_is_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would retry for ten seconds.
    monkeypatch.setattr(_OTLPHTTPClient, "_compute_backoff", lambda client, retry: 0.01)
    port, nothing = free_port(), MetricsData(())
    exporter = push.Exporter(f"http://127.0.0.1:{port}")
    assert [exporter.export(nothing) for _ in range(3)] == [MetricExportResult.FAILURE] * 3
    with collecting(port) as collector:
        assert [exporter.export(nothing) for _ in range(2)] == [MetricExportResult.SUCCESS] * 2
        assert len(collector.got) == 2
    exporter.shutdown()
    away, back = caplog.messages
    assert away.startswith(f"metrics can't be sent to http://127.0.0.1:{port}: Transient error ")
    assert "Connection refused" in away
    assert away.endswith("The run continues; the next line will say when they are sent again")
    assert back == f"metrics are being sent to http://127.0.0.1:{port} again"


def test_a_port_for_grpc_is_quoted_and_named_in_the_advice_and_no_line_is_that_of_another_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_OTLPHTTPClient, "_compute_backoff", lambda client, retry: 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=answer_as_grpc, args=(server,), daemon=True).start()
        push.Exporter(f"http://127.0.0.1:{port}").export(MetricsData(()))
        assert "BadStatusLine" in caplog.messages[-1]
        assert "usually on port 4318 (4317 is for gRPC)" in caplog.messages[-1]
    # It gives up immediately, without logging a reason.
    monkeypatch.setattr(_OTLPHTTPClient, "_compute_backoff", lambda client, retry: 60)
    push.Exporter(f"http://127.0.0.1:{free_port()}").export(MetricsData(()))
    assert ": Failed to export metrics batch due to timeout, max retries or shutdown. Check" in caplog.messages[-1]


def test_a_collector_that_refuses_is_quoted_with_its_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collector, "status", 401)
    with collecting() as collector:
        push.Exporter(f"http://127.0.0.1:{collector.server_port}").export(MetricsData(()))
    (line,) = caplog.messages
    assert "code: 401, reason: Unauthorized. Check `otlp` in [metrics]" in line


def answer_as_grpc(server: socket.socket) -> None:
    """Answer each connection with the first frame of HTTP/2, until the server is closed."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))


def test_a_collector_that_never_answers_keeps_no_run_from_its_end_which_says_what_is_lost(
    tmp_path: Path, epoch: Manifest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opened, "_LAST_WORDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = perf_counter()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with run(tmp_path, otlp=address) as observer:
            observer.published(epoch, {})
        assert perf_counter() - began < 5, "a send alone may wait for ten seconds"
        (line,) = caplog.messages
        assert line.startswith(f"metrics can't be sent to {address}: no answer. Check `otlp` in [metrics]")
        assert line.endswith("The run has ended, so its last values are not sent")


@pytest.mark.parametrize(
    ("headers", "line"),
    [
        ("Authorization: Bearer hushhush", "a header in OTEL_EXPORTER_OTLP_HEADERS or OTEL_EXPORTER_OTLP_METRICS_"),
        ("x=hushhush é", "a header in OTEL_EXPORTER_OTLP_HEADERS or OTEL_EXPORTER_OTLP_METRICS_HEADERS is not sent"),
        ("authorization=Bearer%0Ahushhush", "header value: '***'. Check `otlp`"),
    ],
)
def test_no_value_of_a_header_is_in_the_log_also_of_one_that_can_not_be_sent(
    headers: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    monkeypatch.setattr(credentials, "_secrets", {"hushhush"})
    with collecting() as collector, run(tmp_path, otlp=f"http://127.0.0.1:{collector.server_port}"):
        pass
    assert line in caplog.text
    assert "hush" not in caplog.text


def test_variables_that_opentelemetry_refuses_are_one_line_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", "no such filter")
    port = free_port()
    with run(tmp_path, prometheus=port) as observer:
        assert observer.is_on, "exemplars are of spans, and there are none"
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_METRICS_CREDENTIAL_PROVIDER", "nobody")
    with run(tmp_path, prometheus=port, otlp="http://127.0.0.1:1") as observer:
        assert not observer.is_on
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("metrics of hours are off: Requested component 'nobody' not found")


def test_bytes_of_a_variable_that_are_no_text_do_not_end_a_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", os.fsdecode(b"team=nord\xe9,tier=gold"))
    port = free_port()
    with run(tmp_path, prometheus=port, textfile="."):
        assert 'team="nord?",' in scraped(port)
    assert 'tier="gold"' in (tmp_path / "tidegate_hours.prom").read_text()


# --- off, and what is missing --------------------------------------------------------------------------


def test_nothing_is_measured_or_imported_without_the_table(tmp_path: Path) -> None:
    with run(tmp_path) as observer:
        assert not observer.is_on
    assert not MetricsSettings(every_seconds=5).are_on


@pytest.mark.parametrize(
    ("missing", "settings", "named"),
    [
        ("prometheus_client", {"prometheus": 9464}, "prometheus_client"),
        ("opentelemetry.exporter.prometheus", {"textfile": "prom"}, "opentelemetry.exporter.prometheus"),
        ("opentelemetry.exporter.otlp.proto.http", {"otlp": "http://localhost:4318"}, "opentelemetry.exporter.otlp"),
        ("requests", {"otlp": "http://localhost:4318"}, "requests"),
    ],
)
def test_a_missing_extra_names_itself(
    missing: str, settings: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [
        name for name in sys.modules if name.startswith((missing, "tidegate.pipelines.observe.metrics.push"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError) as error:
        check_metrics(Config(metrics=MetricsSettings(**settings)))
    assert str(error.value).startswith(f"[metrics] in tidegate.toml needs the package {named}")
    assert str(error.value).endswith(pip_install("metrics"))
