"""Runs of commands on other hosts: found by the artifacts and by the lease of their pipeline, followed, and ended.

A host that dies gives no sign of life after a minute, and its lease runs out; then the next try starts its own
command. This module imports nothing of Airflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.pipelines.airflow.process import ProcessHandle, Run
from tidegate.pipelines.airflow.run_files import CopyOfRun, RunState, copies_below
from tidegate.pipelines.config import load_config
from tidegate.pipelines.errors import TidegateError, UsageError
from tidegate.pipelines.stores.artifacts import artifacts_of

if TYPE_CHECKING:
    from tidegate.pipelines.config import Config
    from tidegate.pipelines.run.lease import LeaseRow
    from tidegate.pipelines.stores.artifacts import Artifacts
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

_RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Hosts:
    """The runs of a project on all of its hosts, seen from this one.

    Args:
        config: the project; None if its tidegate.toml can't be read, which its commands say themselves.
        pipeline: name of the pipeline that the commands drive; None if its lease is not looked at.
        artifacts: the project's artifacts; None if the hosts share the work folder.
    """

    config: Config | None
    pipeline: str | None
    artifacts: Artifacts | None

    @classmethod
    def of(cls, config_file: str, pipeline: str | None) -> Hosts:
        """Return the runs of the project with a tidegate.toml."""
        try:
            config = load_config(Path(config_file))
            return cls(config, pipeline, None if config.shares_work else artifacts_of(config))
        except UsageError:
            return cls(None, None, None)

    def copy_of(self, name: str) -> CopyOfRun | None:
        """Return the copy of a run's files by its name; None if other hosts see the files themselves."""
        return None if self.artifacts is None else CopyOfRun(self.artifacts, f"{_RUNS}/{name}")

    def run_of(self, handle: ProcessHandle) -> Run:
        """Return the run of a handle."""
        return Run(handle, self.artifacts, lambda state: self._driver(handle, state) is not None)

    def running_try(self, task: str) -> Run | None:
        """Return the run of an earlier try of a task that is still running on another host, if there is one.

        Airflow has no handle of it if the worker died before it could keep it. A run that was asked to end is waited
        for, and not returned.

        Args:
            task: DAG, run and task, as the names of runs have them.
        """
        if self.artifacts is None:
            return None
        for copy in copies_below(self.artifacts, f"{_RUNS}/{task}"):
            state = copy.state()
            if state.exit_code is not None or "handle" not in state.about:
                continue
            run = self.run_of(ProcessHandle(**state.about["handle"]))
            if not run.is_alive():
                continue
            if not run.is_ending():
                return run
            run.follow(lambda line: None)
        return None

    def end(self, run: Run) -> None:
        """Ask for the end of a command: its supervisor, and by the lease the command itself if that is gone.

        By the lease a command ends after its present epoch.
        """
        run.end()
        if run.is_supervised() or self.pipeline is None:
            return
        tables = self._tables()
        if tables is None or self._driver(run.handle, run.files.state()) is None:
            return
        from tidegate.pipelines.run.driver import system_clock
        from tidegate.pipelines.run.lease import request_stop

        request_stop(tables, system_clock())

    def _driver(self, handle: ProcessHandle, state: RunState) -> LeaseRow | None:
        """Return the lease that the command of a run holds; None if it holds none, or the lease can't be read."""
        tables = self._tables()
        if tables is None or "process" not in state.about:
            return None
        from tidegate.pipelines.run.driver import system_clock
        from tidegate.pipelines.run.lease import read_lease

        try:
            row = read_lease(tables)
        except TidegateError:
            return None
        is_of_run = row is not None and (row.host, row.process) == (handle.host, state.about["process"])
        return row if is_of_run and row is not None and row.is_alive(system_clock()) else None

    def _tables(self) -> PipelineTables | None:
        if self.config is None or self.pipeline is None:
            return None
        from tidegate.pipelines.storage import warehouse_of
        from tidegate.pipelines.tables.pipeline_tables import PipelineTables

        return PipelineTables(warehouse_of(self.config), self.pipeline)
