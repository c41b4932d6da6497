"""The texts of the DAGs in Airflow: a one-line description, and a page of Markdown.

In them, `{name}` is the prefix of the DAG ids, `{pipeline}` the pipeline's name, `{limit}` a number of minutes, and
`{explain}` or the like a command for the pipeline.
"""

from __future__ import annotations

from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import command

_BACKFILL = """
### Backfill of `{name}`

Each run computes the windows of its data interval, continuing from the snapshot of the previous run: a session that
crosses midnight is one session. Runs go in order. Then the windows that became final are checked; the asset
`{name}__final_windows` changes only if no critical expectation fails.

* Many intervals at once: `airflow backfill create --dag-id {name}__backfill --from-date 2024-01-01
  --to-date 2024-03-31 --reprocess-behavior failed`
* An interval with a gap before it: trigger a run with `fill_gaps`, which runs the missing intervals first.
* Rerun an interval after a correction of the source: clear its run, or trigger one with `interval_start` and
  `interval_end`. If its rows and the code are unchanged, nothing is published. Otherwise it is recomputed from
  the snapshot before it, and results of later intervals stay readable, marked stale, until these are rerun: with
  `and_following` in the same run, or later by `airflow tasks clear {name}__backfill --task-regex windows --downstream
  --start-date <the interval's end> --yes`

Exit codes 2 (usage), 3 (refused) and 5 (quality) are never retried.

**Backfill or stream.** One of the two drives the pipeline. The first run of `{name}__stream` continues after the newest
interval and takes over for good; from then on runs here are refused (exit code 3), so pause this DAG. To go back: pause
the stream and run `{restore}` with the epoch that the refused run, or
`{explain}`, names.
"""

_STREAM = """
### Stream of `{name}`

Runs over the commits of its source: on a schedule, or when asset `{name}__commits` signals unread commits
(`stream_mode` in tidegate.toml). `available-now` reads the available commits and ends;
`continuous` is one long task. `{name}__restart` starts the stream from another snapshot, or replaces
a running one.

A pipeline never has two drivers: the second one ends with exit code 4, which is retried.

**Backfill or stream.** From its first run on, the stream drives the pipeline, and runs of `{name}__backfill` are
refused: pause that DAG first. `{explain}` says which of the two drives it, and how to switch.
"""

_STREAMS = """
### Streams of the group `{name}`

One command runs the streams of {pipeline}, one epoch after the other, each with its own lease (`[stream_groups]` in
tidegate.toml). If one fails, the others continue: task `failed` names it and raises its alarm. After the run the
quality DAG of each pipeline that ended well runs. The DAG `PIPELINE__stream` of a member is for manual runs.
"""

_RESTART = """
### Restart of `{name}`

* **From a snapshot**: trigger with `restore` = an epoch's number or `savepoint:NAME`; `none` starts from scratch at the
  beginning of the source. The new timeline begins with its first commit; until then a start with `restore` = `latest`
  continues the old one. A retry continues the timeline that the first attempt began.
* **Instead of a running stream**: trigger with `take_over`. Code that can't continue from the snapshot is refused
  first; then the `savepoint` is created, if one is named; then the old stream is asked to stop after its current epoch.
* **Rescale**: `parallelism`. State follows its key groups.

If the new stream is continuous, `first_epoch` confirms its first epoch.
"""

_MAINTENANCE = """
### Maintenance of `{name}`

Merges the small files of the tables (`{optimize}`), then removes files that no retained snapshot and
no reader needs (`{vacuum}`). With `maintenance_savepoints` in tidegate.toml it first creates a
savepoint, and deletes the oldest of its earlier ones. While a driver is running, scheduled runs are skipped: a
stream maintains its tables itself every 20 epochs.
"""

_LATE = """
### Late rows of `{name}`

Reprocesses late rows into the windows that they missed, as `{reopen}` does, and then checks the
windows that it corrected; if no critical expectation fails, the asset `{name}__final_windows` changes, for the
partitions of these windows. A continuous stream holds the lease and does this itself, on its `reopen_schedule`;
scheduled runs are then skipped. If no late row is waiting, there is nothing to check. `start` and `end` choose windows
by their start.

Rows are never reopened twice. Reopen them before pruning removes them.
"""

_QUALITY = """
### Quality of `{name}`

Checks a snapshot with all rows up to its epoch against the rules for all windows of this kind, and the windows that
became final against the pipeline's own suite. Runs after every run of the stream; for a continuous one on
`stream_schedule`. If a critical expectation fails, the task fails (exit code 5, never retried) and the asset
`{name}__final_windows` is held back; a warning marks the run. The log names the run report and the Data Docs; table
`quality` keeps every result. With `hold = "partitions"` in tidegate.toml, only partitions with failing windows are held
back, and task `held` fails instead of `quality`. With `verify_sample` in tidegate.toml, task `verify` recomputes the
windows of sampled keys from the source, as `{verify}` does, and fails with exit code 5 if one
differs; it holds nothing back.
"""

_FULL_CHECK = """
### Full check of `{name}`

Checks every current window, and reads every file that a table lists, as `{check_all}` does.
The checks between epochs only cover what is new. If a critical expectation fails, the task fails; the
asset `{name}__final_windows` does not change.
"""

_WATCH = """
### Watermark of `{name}`

Fails when the watermark is more than {limit} minutes behind the clock: the source is idle, the stream is not running,
or one source partition without idleness holds the others back. For windows that end by processing time it fails when
the newest epoch is older than that. `{why}` says what windows are waiting for.
"""

DOCUMENTS = {
    "backfill": ("Windows of {name}, one data interval after another", _BACKFILL),
    "stream": ("{name} over its source's commits, as they arrive", _STREAM),
    "streams": ("Streams of {pipeline} in one process", _STREAMS),
    "restart": ("{name} from another snapshot, or replacing a running stream", _RESTART),
    "maintenance": ("Savepoints, small files and old files of {name}", _MAINTENANCE),
    "late": ("Adds late rows of {name} to their windows", _LATE),
    "quality": ("Suites and report of {name}", _QUALITY),
    "full_check": ("Every window and every file of {name}", _FULL_CHECK),
    "watch": ("Fails when the watermark of {name} is too far behind", _WATCH),
}
"""Description and page by kind of DAG."""

_NAMED = (Act.CHECK_ALL, Act.EXPLAIN, Act.OPTIMIZE, Act.REOPEN, Act.VACUUM, Act.VERIFY, Act.WHY)


def commands(pipeline: str) -> dict[str, str]:
    """Return the commands that the texts name, by placeholder."""
    return {
        "restore": command(Remedy(Act.RESTORE, pipeline, "EPOCH")),
        **{act.value: command(Remedy(act, pipeline)) for act in _NAMED},
    }
