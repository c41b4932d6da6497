"""kill -9 on a stream whose tables and source are in a bucket, at every step and a hundred times anywhere."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.lake import LOCAL, Clock, Lake
from tests.recovery import arrivals
from tests.recovery.arrivals import STEPS, differences, outcome, source_of
from tests.recovery.killing import killing_after
from tests.store.lives import upload
from tests.store.proxy import Plan, Proxy
from tests.store.server import S3Server, options_of
from tests.store.test_commits import run_until_done

pytestmark = [pytest.mark.recovery, pytest.mark.long]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("TIDEGATE_TEST_KILLS", "100"))
LONGEST_DELAY = 400
"""Milliseconds between a step and the kill, which may also fall into later steps."""

IMPORTED_LATE = (
    "obstore.store",
    "pyarrow.dataset",
    "tidegate.pipelines.sources.delta.changes",
    "tidegate.pipelines.sources.delta.reader",
    "tidegate.pipelines.storage.object_files",
    "tidegate.pipelines.ledger.tables.checksum",
)
"""Modules that a stream imports on its way."""

QUICK = {"timeout": "1s", "max_retries": "3", "retry_timeout": "10s", "backoff_config.init_backoff": "10ms"}


def both(server: S3Server, proxy: Proxy, bucket: str, folder: Path, commits: int) -> tuple[Lake, Lake]:
    """Return a lake in a bucket behind the proxy, and one on disk, with the same source."""
    disk = source_of(folder / "disk", commits)
    upload(server, Path(disk.path("events")), bucket, "wh/events")
    options = {**options_of(proxy.endpoint), **QUICK}
    return arrivals.in_bucket(disk, folder / "store", f"s3://{bucket}/wh", options), disk


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported everything that victims need, and forks one for each line that it reads."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.test_kills"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def victim(nursery: subprocess.Popen[str], lake: Lake, step: str, epoch: int, delay: int) -> int:
    """Stream in a separate process until the kill; return its exit code, 1 if the store's faults ended it before."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    told = [str(lake.folder), lake.warehouse, lake.options, lake.clock.now, step, epoch, delay]
    nursery.stdin.write(json.dumps(told) + "\n")
    nursery.stdin.flush()
    code = int(nursery.stdout.readline())
    assert code in (0, 1, -signal.SIGKILL)
    return code


@pytest.mark.parametrize("epoch", [1, 3, 4])
@pytest.mark.parametrize("step", STEPS)
def test_a_stream_killed_after_any_step_loses_and_doubles_nothing(
    nursery: subprocess.Popen[str],
    server: S3Server,
    proxy: Proxy,
    bucket: str,
    tmp_path: Path,
    step: str,
    epoch: int,
) -> None:
    lake, disk = both(server, proxy, bucket, tmp_path, commits=2)
    assert victim(nursery, lake, step, epoch, delay=0) == -signal.SIGKILL
    arrivals.run(LOCAL, lake)
    arrivals.run(LOCAL, disk)
    assert differences(outcome(lake), outcome(disk)) == {}


@pytest.mark.timeout(3 * 3600)
def test_a_stream_killed_a_hundred_times_over_a_failing_store_loses_and_doubles_nothing(
    nursery: subprocess.Popen[str],
    server: S3Server,
    proxy: Proxy,
    bucket: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("TIDEGATE_TEST_SEED", random.SystemRandom().randrange(10**6)))
    with capsys.disabled():
        print(f"\n{KILLS} kills drawn from TIDEGATE_TEST_SEED={seed}")
    draw = random.Random(seed)
    lake, disk = both(server, proxy, bucket, tmp_path, commits=KILLS + 5)
    proxy.set(Plan(seed=seed, share=0.01, hold=1.2))
    killed = 0
    for _ in range(2 * KILLS):
        delay = draw.choice((0, draw.randrange(LONGEST_DELAY)))
        killed += victim(nursery, lake, draw.choice(STEPS), draw.randrange(1, 4), delay) == -signal.SIGKILL
        # Reporting all requests at the end would take the proxy long.
        proxy.requests()
        if killed == KILLS:
            break
    assert killed == KILLS, f"the stream ended before the kills, seed {seed}"
    run_until_done(lambda: arrivals.run(LOCAL, lake))
    proxy.set(Plan())
    proxy.requests()
    assert len(proxy.failed) > KILLS, "the store failed now and then"
    arrivals.run(LOCAL, disk)
    assert differences(outcome(lake), outcome(disk)) == {}, f"seed {seed}"


def main(folder: str, warehouse: str, options: dict[str, str], clock: int, step: str, epoch: int, delay: int) -> None:
    """Stream, and end this process after a step of an epoch, by a signal that can't be caught."""
    arrivals.run(LOCAL, Lake(Path(folder), Clock(clock), warehouse, options), killing_after(step, epoch, delay))


def fork_victims() -> None:
    """Fork a victim for each line of JSON, and print its exit code. This process itself opens no table, so no thread of
    a library is lost in a child.
    """
    for name in IMPORTED_LATE:
        import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                main(*json.loads(line))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    fork_victims()
