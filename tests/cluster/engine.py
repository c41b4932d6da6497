"""The container engine and the compose client of this machine: Docker's own, or Podman behind Docker's interface."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import wait_until

HERE = Path(__file__).parent
PODMAN_PACKAGES = "podman runc netavark aardvark-dns iptables docker-compose"
NEEDED = f"no container engine here: install Docker with its compose plugin, or as root {PODMAN_PACKAGES}"


@dataclass(frozen=True)
class Engine:
    """Commands of the engine, and the environment that they need.

    Args:
        program: `docker` or `podman`.
        compose: the compose client's command.
        environment: variables of these commands.
    """

    program: str
    compose: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_podman(self) -> bool:
        return self.program == "podman"

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine, and return its output."""
        return _finished([self.program, *arguments], self.environment, check)

    def has_image(self, name: str) -> bool:
        return self.run("image", "inspect", name, check=False).returncode == 0


def _finished(command: list[str], environment: dict[str, str], check: bool) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert not check or done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}\n{done.stderr}"
    return done


def _answers(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def missing() -> str | None:
    """Return what this machine lacks, or None if it can run containers."""
    if _answers("docker", "info") and (_answers("docker", "compose", "version") or shutil.which("docker-compose")):
        return None
    programs = ("podman", "runc", "iptables", "docker-compose")
    lacking = [program for program in programs if not shutil.which(program)]
    if lacking or os.geteuid() != 0:
        return f"{NEEDED} (lacking: {', '.join(lacking) or 'root'})"
    return None


@contextmanager
def running_engine(folder: Path) -> Iterator[Engine]:
    """Start the interface that a compose client needs, if it is not running, and end it with the body.

    Args:
        folder: an existing folder for the socket.
    """
    if _answers("docker", "info"):
        plugin = _answers("docker", "compose", "version")
        yield Engine("docker", ("docker", "compose") if plugin else ("docker-compose",))
        return
    socket = folder / "engine.sock"
    environment = {"CONTAINERS_CONF": str(HERE / "containers.conf"), "DOCKER_HOST": f"unix://{socket}"}
    # Its settings name the interface to Docker's clients; Podman itself works without the service.
    with (folder / "engine.log").open("a") as log:
        service = subprocess.Popen(
            ["podman", "system", "service", "--time=0", f"unix://{socket}"],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(socket.exists, "Podman's interface for Docker's clients", between_looks=0.1)
        yield Engine("podman", ("docker-compose",), environment)
    finally:
        service.terminate()
        service.wait(30)
