"""Runs of commands on other hosts: finding them by the artifacts and the pipeline's lease, following and ending them.

The heartbeat of a dead host stops, and its lease expires after a minute; then the next attempt starts its own command.
This module imports nothing from Airflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.pipelines.airflow.process import ProcessHandle, Run, is_supervisor
from tidegate.pipelines.airflow.run_files import CopyOfRun, RunState, copies_below
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.errors import StoreFailed, UsageError
from tidegate.pipelines.run.stopping import Holder

if TYPE_CHECKING:
    from tidegate.pipelines.definition.config import Config
    from tidegate.pipelines.storage.artifacts import Artifacts

_RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Hosts:
    """The runs of a project on all of its hosts, as seen from this one.

    Args:
        config: the project; None if its tidegate.toml can't be read, which the commands themselves report.
        pipeline: name of the pipeline that the commands drive; None if its lease is not checked.
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
        """Return the copy of a run's files by the run's name, or None if other hosts see the files themselves."""
        return None if self.artifacts is None else CopyOfRun(self.artifacts, f"{_RUNS}/{name}")

    def run_of(self, handle: ProcessHandle) -> Run:
        """Return the run of a handle."""
        return Run(handle, self.artifacts, lambda state: self._is_driving(handle, state))

    def running_try(self, task: str) -> Run | None:
        """Return the run of an earlier attempt of a task that is still running on another host, if there is one.

        Airflow has no handle of it if the worker died before storing one. A run that was asked to end is not returned;
        instead, this waits for its end. The task is named by DAG, run and task, as the names of runs have them.
        """
        if self.artifacts is None:
            return None
        for copy in copies_below(self.artifacts, f"{_RUNS}/{task}"):
            handle = self._noted(copy)
            if handle is None or not (run := self.run_of(handle)).is_alive():
                continue
            if not run.is_ending():
                return run
            run.follow(lambda line: None)
        return None

    def _noted(self, copy: CopyOfRun) -> ProcessHandle | None:
        """Return the handle that the supervisor of an active run stored, or None if this version can't trust it.

        Anyone with write access to the artifacts could name any process and folder on this host, and the task would end
        that process and read that folder. A newer version may also have written it.
        """
        try:
            state = copy.state()
            if state.exit_code is not None:
                return None
            handle = ProcessHandle(**state.about["handle"])
            if handle.place != copy.place or (handle.is_here and not is_supervisor(handle)):
                return None
        except (ValueError, KeyError, TypeError):
            return None
        return handle

    def end(self, run: Run, number: int) -> None:
        """End a command for attempt `number` of its task, by its supervisor or, if that has ended, by the lease.

        By the lease, a command ends after its current epoch. A command that a later attempt follows is not ended: if a
        worker that Airflow had given up on reaches Airflow again, Airflow ends only that worker's task.
        """
        if self._claimed_by(run) > number:
            return
        run.end()
        if not run.is_supervised() and (holder := self._holder(run.handle, run.files.state())) is not None:
            holder.stop()

    def _claimed_by(self, run: Run) -> int:
        """Return the newest attempt that follows a run, from this host or another one."""
        place, here = run.handle.place, run.files.claimed_by()
        if place is None or self.artifacts is None:
            return here
        try:
            return max(here, CopyOfRun(self.artifacts, place).claimed_by())
        except StoreFailed:
            # A failing store must not keep a command from being ended.
            return here

    def _is_driving(self, handle: ProcessHandle, state: RunState) -> bool:
        holder = self._holder(handle, state)
        return holder is not None and holder.is_driving()

    def _holder(self, handle: ProcessHandle, state: RunState) -> Holder | None:
        """Return the command of a run, which may hold the lease, or None if its process is unknown."""
        if self.config is None or self.pipeline is None or "process" not in state.about:
            return None
        return Holder(self.config, self.pipeline, handle.host, state.about["process"])
