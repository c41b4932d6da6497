"""Metrics sent to an OpenTelemetry collector over HTTP, in a thread of their own.

A collector that is away neither stops nor slows the run: the log says it once, and once more when it is back.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)

from tidegate.pipelines.stores.credentials import masked

_log = logging.getLogger(__name__)
_PATH = "/v1/metrics"
_OUTAGES = (
    (
        re.compile(r"BadStatusLine"),
        "the answer is no HTTP. Port 4317 is usually for gRPC: give the one for HTTP, 4318, by `otlp` in [metrics]",
    ),
    (re.compile(r"WRONG_VERSION_NUMBER"), "there is no TLS at that port: write http:// in `otlp` of [metrics]"),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED"),
        "its certificate is not trusted: name the authority's file by OTEL_EXPORTER_OTLP_CERTIFICATE",
    ),
    (re.compile(r"ConnectTimeoutError|ReadTimeoutError|Read timed out"), "no answer in time"),
)
"""Failures in the lines of OpenTelemetry's exporter whose reason needs words of its own."""
_REASONS = (
    re.compile(r"\[Errno -?\d+\] ([^\"')]+)"),
    re.compile(r"Transient error (.+) encountered"),
    re.compile(r"(code: .+)"),
)
"""Reasons of any other failure in these lines, those that say the most first."""
_NO_REASON = "no answer"
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
"""Variables with credentials."""
_READS_HEADERS = "opentelemetry.util.re"
"""Logger that shows a header which it can't read."""


def pushing(collector: str, every: float) -> MetricReader:
    """Return a reader that sends to a collector.

    Args:
        collector: address of the collector, without a path for metrics.
        every: seconds between two sends.
    """
    return PeriodicExportingMetricReader(Exporter(collector), every * 1000)


class Reasons(logging.Filter):
    """A filter that keeps the newest reason of a failure that a logger told, and lets none of its lines pass."""

    newest = _NO_REASON

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        reasons = [words for pattern, words in _OUTAGES if pattern.search(line)]
        reasons += [match[1] for pattern in _REASONS if (match := pattern.search(line))]
        self.newest = next(iter(reasons), self.newest)
        return False


_reasons = Reasons()


class Unshown(logging.Filter):
    """A filter that lets no value of a header pass, also of one that can't be read."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.args:
            record.msg = f"a header in {' or '.join(_HEADERS)} is not sent: write it as name=value, and %20 for a space"
            record.args = ()
        return True


_unshown = Unshown()


def without_headers(text: str) -> str:
    """Return a text without the values of headers that the environment has."""
    for value in sorted(_values_of_headers(), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def _values_of_headers() -> Iterator[str]:
    for name in _HEADERS:
        for header in os.environ.get(name, "").split(","):
            value = unquote(header.partition("=")[2]).strip()
            # Messages may show the value as Python does.
            yield from filter(None, (value, repr(value)[1:-1]))


class Exporter(OTLPMetricExporter):
    """OpenTelemetry's exporter, which would log each attempt that fails; here an outage has two lines."""

    def __init__(self, collector: str) -> None:
        logging.getLogger(_READS_HEADERS).addFilter(_unshown)
        super().__init__(collector if collector.endswith(_PATH) else f"{collector}{_PATH}")
        self._collector = collector
        self._is_away = False
        self._is_sending = False
        logging.getLogger(OTLPMetricExporter.__module__).addFilter(_reasons)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **options: Any
    ) -> MetricExportResult:
        _reasons.newest = _NO_REASON
        self._is_sending = True
        result = super().export(metrics_data, timeout_millis, **options)
        self._is_sending = False
        is_away = result is not MetricExportResult.SUCCESS
        if is_away and not self._is_away:
            self._tell("The run goes on; the next line comes when they are sent again")
        elif self._is_away and not is_away:
            _log.warning("metrics are sent to %s again", self._collector)
        self._is_away = is_away
        return result

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """End; the reader waited for the last send before, for as long as the run does."""
        if self._is_sending and not self._is_away:
            # A short run ends before the exporter gives its first send up.
            self._is_away = True
            self._tell("The run has ended, so its last values are not sent")
        super().shutdown(timeout_millis, **options)

    def _tell(self, what_follows: str) -> None:
        # Another secret may be a part of a header's value.
        reason = masked(without_headers(_reasons.newest))
        _log.warning("metrics can't be sent to %s: %s. %s", self._collector, reason, what_follows)
