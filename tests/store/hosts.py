"""Hosts of the tests: each has its own copy of a project, and everything shared is in a bucket."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.store.server import options_of
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Holder, read_lease
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

AWAY = "away"


def project(folder: Path, bucket: str, endpoint: str) -> Path:
    """Create a host's own copy of the project, with everything shared in a bucket; return its tidegate.toml."""
    folder.mkdir()
    options = "".join(f'{key} = "{value}"\n' for key, value in options_of(endpoint).items())
    text = f'warehouse = "s3://{bucket}/wh"\n[pipelines.visits]\nobject = "a:b"\nstart = 2024-03-01\n'
    (folder / "tidegate.toml").write_text(f"{text}[storage_options]\n{options}")
    return folder / "tidegate.toml"


def lease_of(config: Path) -> PipelineTables:
    return PipelineTables(warehouse_of(load_config(config)), "visits")


def driving(config: Path) -> Holder | None:
    """The running driver, as the lease names it."""
    row = read_lease(lease_of(config))
    return row if row is not None and row.is_alive(system_clock()) else None


def unshared() -> list[str]:
    """The command that gives a process its own host name and process ids. Without the right to do so, the test is
    skipped.
    """
    command = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid():
        command[1:1] = ["--user", "--map-root-user"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine lets nobody make namespaces")
    return command
