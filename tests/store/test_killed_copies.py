"""kill -9 on `savepoints create --tables --to` and `restore --from` at each of their steps, in a bucket."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lake import Lake
from tests.recovery import arrivals
from tests.recovery.test_killed_copies import check, nursery, project, streamed
from tests.store.lives import upload
from tests.store.server import S3Server, options_of

__all__ = ["nursery", "streamed"]

pytestmark = [pytest.mark.recovery, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("every", [1])
def test_in_a_bucket(
    nursery: subprocess.Popen[str],
    streamed: Lake,
    server: S3Server,
    bucket: str,
    tmp_path: Path,
    every: int,
) -> None:
    upload(server, streamed.folder / "warehouse", bucket, "wh")
    options = options_of(server.endpoint)
    lake = arrivals.in_bucket(streamed, tmp_path / "store", f"s3://{bucket}/wh", options)
    victims = project(nursery, tmp_path / "project", f"s3://{bucket}/wh", options)

    def reset() -> None:
        for key in (*server.keys(bucket, "elsewhere/"), *server.keys(bucket, "wh/begun/")):
            server.delete(bucket, key)

    check(victims, lake, f"s3://{bucket}/elsewhere", every, reset)
