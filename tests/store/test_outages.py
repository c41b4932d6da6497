"""The store fails after some write of a command, as after kill -9: the same command, run again, does its work."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.arrivals import differences, source_of
from tests.store.lives import Life, modules_of_projects, rows_left, upload
from tests.store.proxy import Plan, Proxy
from tests.store.server import S3Server, options_of
from tidegate.pipelines.errors import REFUSED, USAGE
from tidegate.pipelines.ledger.lease import Holder

pytestmark = [pytest.mark.recovery, pytest.mark.long, pytest.mark.timeout(3600)]

POINTS = int(os.environ.get("TIDEGATE_TEST_OUTAGES", "4"))
"""Random writes of each command after which the store fails."""

PLACE = "s3://BUCKET/elsewhere"
"""Place of savepoints with tables; the name of the bucket is filled in."""

BEFORE = (
    ("stream", "hours", "--available-now", "--max-files-per-epoch", "2"),
    ("savepoints", "create", "hours", "kept"),
    ("stream", "hours", "--available-now"),
    ("savepoints", "create", "hours", "old", "--tables", "--to", PLACE),
)
COMMANDS = {
    "a savepoint": ("savepoints", "create", "hours", "new"),
    "the end of a savepoint": ("savepoints", "delete", "hours", "kept"),
    "a restore": ("restore", "hours", "2"),
    "forgetting": ("forget", "hours", "user1", "--yes"),
    "an optimization": ("tables", "optimize", "hours"),
    "a cleanup": ("tables", "vacuum", "hours", "--snapshots", "1", "--days", "0"),
    "a savepoint with tables": ("savepoints", "create", "hours", "whole", "--tables", "--to", PLACE),
    "the end of a savepoint with tables": ("savepoints", "delete", "hours", "old", "--at", PLACE),
    "lost tables": ("restore", "hours", "savepoint:old", "--tables", "--at", PLACE),
    "a reopening": ("late", "reopen", "hours"),
}
DONE = re.compile(r"exists|no savepoint '(kept|old)'")
"""Refusals of a command that had done its work before the outage."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_the_store_left_in_the_middle_does_its_work_when_it_is_given_again(
    name: str,
    server: S3Server,
    proxy: Proxy,
    bucket: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = int(os.environ.get("TIDEGATE_TEST_SEED", random.SystemRandom().randrange(10**6)))
    disk = source_of(tmp_path / "disk", commits=2)
    upload(server, Path(disk.path("events")), bucket, "wh/events")
    options = {**options_of(proxy.endpoint), "max_retries": "0", "timeout": "5s"}
    life = Life(tmp_path / "project", f"s3://{bucket}/wh", options)

    def tidegate(*command: str) -> tuple[int, str]:
        return life.tidegate(capsys, *(each.replace("BUCKET", bucket) for each in command))

    def left() -> dict[str, Any]:
        """Return the tables after the next run of the stream, without the numbers of epochs and timelines."""
        assert tidegate("stream", "hours", "--available-now")[0] == 0
        rows = {
            table: sorted(re.sub(r"'(timeline|epoch)': \d+", "", row) for row in rows)
            for table, rows in rows_left(life, "hours").items()
            if table not in ("state", "epochs")
        }
        return {
            **rows,
            "savepoints": names("savepoints", "list"),
            "elsewhere": names("savepoints", "list", "--at", PLACE),
        }

    def names(*command: str) -> list[str]:
        code, text = tidegate(*command[:2], "hours", *command[2:])
        assert code == 0, text
        return sorted(re.findall(r'"name": "([^"]*)"', text))

    with modules_of_projects():
        for command in BEFORE:
            assert tidegate(*command)[0] == 0
        if name == "lost tables":
            for key in server.keys(bucket, "wh/hours/"):
                server.delete(bucket, key)
        content = server.content(bucket)
        # The killed command runs in this process, which survives.
        monkeypatch.setattr(Holder, "is_alive", lambda row, now: False)
        proxy.requests()
        code, text = tidegate(*COMMANDS[name])
        assert code == 0, text
        writes = sum(request.is_write for request in proxy.requests())
        expected = left()
        for point in random.Random(seed).sample(range(writes), min(POINTS, writes)):
            server.put_back(bucket, content)
            proxy.set(Plan(outage_after=point))
            tidegate(*COMMANDS[name])
            proxy.set(Plan())
            code, text = tidegate(*COMMANDS[name])
            where = f"write {point} of {writes}, seed {seed}: {text}"
            assert code == 0 or (code in (USAGE, REFUSED) and DONE.search(text)), where
            assert differences(left(), expected) == {}, where
