"""If the disk is full when a check stores its outcome, the command says so, and the next check continues."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.expectations.quality_lake import session_lake
from tests.expectations.test_failed_expectation import project
from tests.expectations.test_quality_command import check
from tidegate.pipelines.ledger.tables import quality

KB = 1024


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A separate file system of 16 MB. The right to mount one can't be installed, so without it the test is skipped."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long
@pytest.mark.first(1)
@pytest.mark.parametrize("left", [0, 8 * KB, 16 * KB, 24 * KB])
def test_a_check_on_a_full_disk_says_so_and_the_next_one_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: int
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        tables = project(session_lake(), disk / "project", "")
        assert check(disk / "project") == 0
        before = quality.read(tables)["check_id"].to_pylist()
        capsys.readouterr()
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while shutil.disk_usage(disk).free > left:
                file.write(bytes(KB))
        code = check(disk / "project")
        out, err = capsys.readouterr()
        assert (code, "No space left on device" in out + err) == (1, True), out + err
        assert "panicked" not in err
        assert "Give --debug" not in err
        assert quality.read(tables)["check_id"].to_pylist() == before
        filler.unlink()
        assert check(disk / "project") == 0
        assert len(set(quality.read(tables)["check_id"].to_pylist())) == 2
