"""Drawn lives of a pipeline with branches: promotions that are killed, restores, cleanups and erasures in any order."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.expectations.broken import broken_in
from tests.lake import Lake, at, hourly_pipeline
from tests.pipelines.ledger.snapshots.test_nothing_of_a_key_stays import ends_before
from tests.pipelines.project.test_branches import project_of, shown
from tidegate.pipelines.definition.branches import branches_of
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.project import Project

HOUR = timedelta(hours=1)
DEEDS = [
    *["append", "stream", "stream branch", "stream branch", "promote"] * 3,
    *["branch", "killed promote", "restore", "restore branch", "vacuum", "optimize", "reopen", "forget", "delete"],
]


class World:
    """A pipeline by the hour and its branches. Key `eve` has rows in the first commit only."""

    def __init__(self, folder: Path) -> None:
        self.lake, self.lateness, self.hour, self.forgotten = Lake(folder), 0, 3, False
        self.lake.append(
            ("eve", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("03:00"), 4), ("eve", at("03:00"), 1)
        )
        self.project.stream("hours")
        self.do("branch", 1)

    @property
    def project(self) -> Project:
        return project_of(self.lake, allowed_lateness=self.lateness * HOUR)

    @property
    def tables(self) -> PipelineTables:
        return PipelineTables.of(self.project.config, "hours")

    @property
    def branches(self) -> list[str]:
        return sorted(branches_of(self.tables.warehouse, "hours"))

    def do(self, deed: str, number: int) -> None:
        """Carry out a deed; what is refused changes nothing."""
        if not self.branches and deed not in ("branch", "forget"):
            self.do("branch", number)
        name = self.branches[number % len(self.branches)] if self.branches else "hours@none"
        epoch = self.lake.snapshot(hourly_pipeline()).manifest.epoch
        with suppress(TidegateError):
            if deed == "append":
                self.hour += number % 3
                late = ("ann", at("00:30") + (self.hour - number % 4) * HOUR, number)
                self.lake.append(late, ("bob", at("00:00") + self.hour * HOUR, number))
            elif deed in ("stream", "stream branch"):
                self.project.stream("hours" if deed == "stream" else name, max_commits_per_epoch=1 + number % 3)
            elif deed == "branch":
                of = "latest" if number % 2 else str(1 + number % epoch)
                lateness = f"{1 + number % 3}h"
                made = self.project.branch("hours", f"b{number % 5}", settings={"allowed_lateness": lateness}, of=of)
                self.do("append", number)
                self.project.stream(made.name)
            elif deed == "delete":
                self.project.branch("hours", name.partition("@")[2], delete=True)
            elif deed == "restore":
                self.project.restore("hours", 1 + number % epoch)
            elif deed == "restore branch":
                self.project.restore(name, 1 + number % epoch)
            elif deed == "vacuum":
                self.project.vacuum("hours", snapshots=1 + number % 3, days=0)
            elif deed == "optimize":
                self.project.optimize("hours")
            elif deed == "reopen":
                self.project.late_reopen("hours")
            elif deed == "forget":
                for each in self.branches:
                    self.project.branch("hours", each.partition("@")[2], delete=True)
                self.project.forget("hours", ("eve",))
                self.forgotten = True
            else:
                self.promote(name, number % 30 if deed == "killed promote" else -1)

    def promote(self, name: str, step: int) -> None:
        """Promote a branch with the code at its settings, killed before a step that changes a file; -1 for none."""
        of_name = {each.name: each for each in self.project.branch("hours").branches}
        if name not in of_name:
            return
        lateness = of_name[name].settings["allowed_lateness"] // 3_600_000
        expected, version = shown(self.project, name), self.tables.look("state").version()
        before, self.lateness = self.lateness, lateness
        try:
            with pytest.MonkeyPatch.context() as planted, suppress(KeyboardInterrupt):
                ends_before(planted, step)
                self.project.promote("hours", name.partition("@")[2])
        except TidegateError:
            self.lateness = before
            raise
        finally:
            for held in ("hours", name):
                # A kill may leave a lease.
                with suppress(TidegateError):
                    self.project.unlock(held)
        if self.tables.look("state").version() == version:
            self.lateness = before
            return
        # After a kill, the next command publishes the rest.
        if step < 0:
            assert shown(self.project, "hours") == expected

    def check(self) -> None:
        """Look for the forgotten key in every table."""
        if not self.forgotten:
            return
        for pipeline in ("hours", *self.branches):
            tables = PipelineTables(self.tables.warehouse, pipeline)
            for table in ("results", "late", "rejects", "state"):
                rows = tables.look(table).to_pyarrow_table()
                if "user" in rows.schema.names:
                    assert not pc.any(pc.equal(rows["user"], "eve")).as_py(), (pipeline, table)


@pytest.mark.long
@settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 1000)), min_size=6, max_size=16))
def test_whatever_is_done_with_branches_the_results_are_those_of_the_source(deeds: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        for deed, number in deeds:
            world.do(deed, number)
            world.check()
        world.project.stream("hours")
        outcome = world.project.verify("hours", sample="all")
        assert outcome.faults == ()
        assert broken_in(world.tables, hourly_pipeline(allowed_lateness=world.lateness * HOUR)) == set()
        newest: Any = world.project.results("hours", view="latest", sort="window_start").to_arrow()
        windows: Any = world.project.results("hours", view="windows", sort="window_start").to_arrow()
        assert sorted(newest["total"].to_pylist()) == sorted(windows["total"].to_pylist())
