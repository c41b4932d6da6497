"""Providers that requirements.lock does not have, in a folder of their own, and the servers that they need."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_until

HERE = Path(__file__).parent


def provider_folder() -> Path:
    """The folder with the providers of providers.txt, made once; without a network the test is skipped."""
    folder = Path(sys.prefix) / "providers"
    listed = HERE / "providers.txt"
    made = folder / listed.name
    if not made.exists() or made.read_text() != listed.read_text():
        install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        done = subprocess.run([*install, "-r", str(listed)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"the providers can't be installed: {done.stderr.strip()[-300:]}")
        shutil.copy(listed, folder)
    return folder


@contextmanager
def redis(folder: Path, port: int) -> Iterator[str]:
    """The address of a Redis server of this test's own; without one on this machine the test is skipped."""
    if (server := shutil.which("redis-server")) is None:
        pytest.skip("no Redis here: apt-get install redis-server")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log:
        started = subprocess.Popen([server, *options], stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Ready to accept" in (folder / "redis.log").read_text(), "Redis", 30, 0.2)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        started.terminate()
        started.wait()
