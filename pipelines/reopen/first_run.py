"""The first run of a backfill: rows before its interval that the source had by then were never read, and stay out.

first interval [10:00, 11:00) over version 5
a row at 09:50 of version 3                  was never read: no window takes it, also none that began at 09:00
a row at 09:50 that version 7 appended       was read by the next run, and may have been late
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.sources.commits import FilePart, SourceFile
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import epochs, results
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import epoch_millis


@dataclass(frozen=True, slots=True)
class FirstRun:
    """The first run of a backfill.

    Args:
        start: start of its interval, int64 epoch milliseconds. If table `epochs` does not reach back to it any more,
            it is the start of the first published window.
        version: version of the source that it read, or up to which a reset counted rows as read; None if unknown.
    """

    start: Millis
    version: int | None = None

    @classmethod
    def of(cls, tables: PipelineTables) -> FirstRun | None:
        """Return the first run of a pipeline; None if it began as a stream, or nothing is recorded of a backfill."""
        columns = ["epoch", "parent", "kind", "interval_start", "source_version"]
        # Of other epochs, nothing is looked at: the statistics of their files show it.
        chosen = pc.field("interval_start").is_valid() | (pc.field("kind") == "reset")
        rows = read_table(tables.warehouse, tables.look(epochs.NAME), columns, ~pc.field("stale") & chosen)
        runs = rows.filter(rows["interval_start"].is_valid())
        if not len(runs):
            return None
        first = runs.filter(runs["parent"].is_null())
        if not len(first):
            published = read_table(tables.warehouse, tables.look(results.NAME), ["window_start"], ~pc.field("stale"))
            return cls(_smallest(published["window_start"] if len(published) else runs["interval_start"]))
        resets = rows.filter(pc.equal(rows["kind"], "reset")).sort_by("epoch")
        version = (resets if len(resets) else first)["source_version"][-1].as_py()
        return cls(_smallest(first["interval_start"]), version)

    def without_unread(self, source: OpenInput, parts: Sequence[FilePart], version: int) -> list[FilePart]:
        """Return parts of the files of a version without the rows that the first run did not read.

        Of a file that an UPDATE or a compaction wrote, no row tells when it came; its rows before the start stay out.

        Args:
            source: the source.
            parts: the parts.
            version: the version.
        """
        earlier = [SourceFile(part.path, 0) for part in parts if part.since < self.start]
        if self.version is None or not earlier:
            return list(parts)
        added_by = source.log.versions_of(earlier, version, self.version)
        appended = {path for path, added in added_by.items() if added is not None and added > self.version}
        return [
            part if part.path in appended else replace(part, since=max(part.since, self.start))
            for part in parts
            if part.path in appended or part.until > self.start
        ]


def _smallest(times: pa.ChunkedArray) -> Millis:
    return int(pc.min(epoch_millis(times)).as_py())
