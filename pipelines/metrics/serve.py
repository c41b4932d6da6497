"""Metrics served to Prometheus, while a run lasts.

The standard library's server asks the name service for the name of its own address when it begins, and a name service
that does not answer would hold the run for as long.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

_log = logging.getLogger(__name__)


class _Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each scrape, which asks no name service."""

    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self.address_family = family
        super().__init__(address, _Silent)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _Silent(WSGIRequestHandler):
    """A handler that logs no scrape."""

    def log_message(self, *ignored: object) -> None:
        """Log nothing."""


def serve(host: str, port: int, registry: CollectorRegistry, pipeline: str) -> Callable[[], None]:
    """Serve metrics to Prometheus; return the function that ends it. If it can't, the log says why."""
    try:
        # An address in digits needs no name service.
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = _Server(family, address)
    except (OSError, UnicodeError) as error:
        other_port = f"give this pipeline another port by `metrics_port` in [pipelines.{pipeline}]"
        is_used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = (error.strerror if isinstance(error, OSError) else None) or "that is no name of a host"
        way = f"the port is in use: {other_port}" if is_used else f"{reason}: correct `prometheus` in [metrics]"
        _log.warning("metrics of %s can't be served at %s:%d: %s. The run goes on without", pipeline, host, port, way)
        return lambda: None
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, name="tidegate-metrics-port", daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
