"""The copying of a run's files to the artifacts, where other hosts follow the run and ask for its end.

The supervisor of a run does it in a thread of its own: a store that is slow must not keep it from its command. This
module imports nothing of Airflow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.pipelines.airflow.run_files import CopyOfRun, FolderOfRun
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.stores.credentials import masked

BEAT_SECONDS = 10.0
"""Time between two copies, which are the signs of life; each is one or two writes and a read of the store."""


@dataclass
class Copying:
    """Keeps the copy of a run's files up to date.

    Args:
        files: the files of the run.
        copy: their copy.
        about: what other hosts need to know of the run: its handle, and process id and start of its command.
        on_end: called if somebody asked for the end of the command.
        tell: called with an error of the store, once for each time that it begins to fail.
    """

    files: FolderOfRun
    copy: CopyOfRun
    about: Mapping[str, Any]
    on_end: Callable[[], None]
    tell: Callable[[str], None] = print
    _copied: int = field(default=0, init=False)
    _fails: bool = field(default=False, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Copy in the background until `close`."""
        self._thread = threading.Thread(target=self._copy_until_ended, name="copying", daemon=True)
        self._thread.start()

    def beat(self, exit_code: int | None = None) -> None:
        """Copy the new end of the log, give a sign of life, and look if somebody asked for the end of the command.

        A store that fails now may answer at the next beat.

        Args:
            exit_code: exit code of a command that has ended.
        """
        try:
            self._copied = self.copy.copy_log(self.files.log, self._copied)
            # They are there before the exit code, by which others know that the run is over.
            if exit_code is not None and (result := self.files.result()) is not None:
                self.copy.write_result(result)
            if exit_code is not None and (driven := self.files.driven()) is not None:
                self.copy.write_driven(driven)
            self.copy.write_state({**self.about, "log_size": self._copied, "exit_code": exit_code})
            if exit_code is None and self.copy.is_ending():
                self.on_end()
            self._fails = False
        except (TidegateError, OSError) as error:
            if not self._fails:
                self.tell(masked(f"other hosts can't follow this run: {error}"))
            self._fails = True

    def close(self, exit_code: int) -> None:
        """Copy what is left, and the exit code of the command."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.beat(exit_code)

    def _copy_until_ended(self) -> None:
        self.beat()
        while not self._ended.wait(BEAT_SECONDS):
            self.beat()
