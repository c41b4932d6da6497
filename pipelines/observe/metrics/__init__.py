"""Metrics of runs by OpenTelemetry: counted when an epoch is published, sent to a collector or read by Prometheus."""
