"""Installs providers that requirements.lock does not contain into a separate folder, and starts the servers they
need.
"""

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
    """Return the folder with the providers of providers.txt, created once. Without a network the test is skipped."""
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
    """Return the address of a Redis server for this test only. If Redis is not installed, the test is skipped."""
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
