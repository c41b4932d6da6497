"""Runs the health checks of containers on machines without systemd, whose timers run them for Podman elsewhere."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.engine import Engine

SYSTEMD = Path("/run/systemd/system")
_NANOSECONDS = 1_000_000_000


@contextmanager
def health_checks(engine: Engine, project: str) -> Iterator[None]:
    """Run the health checks of a project's containers at their intervals while the body runs, if nobody else does."""
    if not engine.is_podman or SYSTEMD.exists():
        yield
        return
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(engine, project, ended), daemon=True)
    beat.start()
    try:
        yield
    finally:
        ended.set()
        beat.join(60)


def _beat(engine: Engine, project: str, ended: threading.Event) -> None:
    due: dict[str, float] = {}
    while not ended.wait(1):
        for container in _running(engine, project):
            check = container["Config"].get("Healthcheck") or {}
            if check.get("Test", ["NONE"])[0] != "NONE" and due.get(container["Id"], 0) <= time.monotonic():
                engine.run("healthcheck", "run", container["Id"], check=False)
                due[container["Id"]] = time.monotonic() + check["Interval"] / _NANOSECONDS


def _running(engine: Engine, project: str) -> list[dict[str, Any]]:
    label = f"label=com.docker.compose.project={project}"
    ids = engine.run("ps", "--quiet", "--filter", label, "--filter", "status=running", check=False).stdout.split()
    # A container may have been removed since.
    found = engine.run("inspect", *ids, check=False).stdout if ids else "[]"
    containers: list[dict[str, Any]] = json.loads(found or "[]")
    return containers
