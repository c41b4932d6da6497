"""Metrics sent to an OpenTelemetry collector over HTTP, in a separate thread.

If the collector is down, the run neither stops nor slows down; the log reports it once, and again when the collector is
back.
"""

from __future__ import annotations

import logging
import os
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

from tidegate.pipelines.storage.credentials import masked

_log = logging.getLogger(__name__)
_PATH = "/v1/metrics"
_ADVICE = (
    "Check `otlp` in [metrics]: it must be OTLP over HTTP, usually on port 4318 (4317 is for gRPC); write http:// for "
    "a port without TLS, and set OTEL_EXPORTER_OTLP_CERTIFICATE to the authority of a private certificate"
)
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
"""Variables with credentials."""
_READS_HEADERS = "opentelemetry.util.re"
"""Logger that would show a header that OpenTelemetry can't parse."""


def pushing(collector: str, every: float) -> MetricReader:
    """Return a reader that exports to a collector every few seconds. Its address lacks the path for metrics."""
    return PeriodicExportingMetricReader(Exporter(collector), every * 1000)


class FirstLine(logging.Filter):
    """A filter that drops all lines, but keeps a logger's first one since `text` was cleared."""

    text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.text = self.text or record.getMessage()
        return False


_failure = FirstLine()


class Unshown(logging.Filter):
    """A filter that masks header values, including malformed ones."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.args:
            record.msg = (
                f"a header in {' or '.join(_HEADERS)} is not sent: write it as name=value, with %20 for a space"
            )
            record.args = ()
        return True


_unshown = Unshown()


def without_headers(text: str) -> str:
    """Return a text without the values of headers set in the environment."""
    for value in sorted(_values_of_headers(), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def _values_of_headers() -> Iterator[str]:
    for name in _HEADERS:
        for header in os.environ.get(name, "").split(","):
            value = unquote(header.partition("=")[2]).strip()
            # Messages may show the value as a Python literal.
            yield from filter(None, (value, repr(value)[1:-1]))


class Exporter(OTLPMetricExporter):
    """OpenTelemetry's exporter, except that an outage causes two log lines instead of one for each failed attempt."""

    def __init__(self, collector: str) -> None:
        logging.getLogger(_READS_HEADERS).addFilter(_unshown)
        super().__init__(collector if collector.endswith(_PATH) else f"{collector}{_PATH}")
        self._collector = collector
        self._is_away = False
        self._is_sending = False
        logging.getLogger(OTLPMetricExporter.__module__).addFilter(_failure)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **options: Any
    ) -> MetricExportResult:
        _failure.text = ""
        self._is_sending = True
        result = super().export(metrics_data, timeout_millis, **options)
        self._is_sending = False
        is_away = result is not MetricExportResult.SUCCESS
        if is_away and not self._is_away:
            self._tell("The run continues; the next line will say when they are sent again")
        elif self._is_away and not is_away:
            _log.warning("metrics are being sent to %s again", self._collector)
        self._is_away = is_away
        return result

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """Stop. The reader has already waited for the last export."""
        if self._is_sending and not self._is_away:
            # A short run ends before the exporter gives up its first export.
            self._is_away = True
            self._tell("The run has ended, so its last values are not sent")
        super().shutdown(timeout_millis, **options)

    def _tell(self, what_follows: str) -> None:
        # Another secret may be part of a header's value.
        reason = masked(without_headers(_failure.text)).removesuffix(".") or "no answer"
        _log.warning("metrics can't be sent to %s: %s. %s. %s", self._collector, reason, _ADVICE, what_follows)
