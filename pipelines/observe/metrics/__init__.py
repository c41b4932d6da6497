"""Metrics of runs with OpenTelemetry: counted when an epoch is published, sent to a collector or read by Prometheus."""
