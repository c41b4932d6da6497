"""Artifacts: the files of runs, other than tables, that all hosts must see: reports, Data Docs, alarms, the lease.

They are in a folder or, if the hosts share no disk, in an object store. A file that several hosts change is changed by
compare-and-set: `change` applies each change to the newest content, under a lock in a folder and by `If-Match` in a
store. A name is a path below it, with slashes.
Importing this module loads no store library.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tidegate.pipelines.errors import StoreFailed
from tidegate.pipelines.storage.shared_folder import APPEND, SharedFolder

if TYPE_CHECKING:
    from tidegate.pipelines.storage.object_files import ObjectFiles

_TRIES = 20
"""How many times to retry a change of an object that another host changed first."""

ALARMS = "alarms"
"""Journal of failed tasks: file `alarms.jsonl` in a folder, or one object per line in an object store."""

_LARGEST_JOURNAL = 8 << 20
"""Size in bytes above which a journal in a folder is rotated; one older file is kept."""

Change = Callable[[bytes | None], bytes | None]
"""Function from a file's old content (None if there is no file) to its new content (None to leave the file unchanged).

It may be called several times.
"""


@dataclass(frozen=True, slots=True)
class ArtifactsInFolder:
    """Artifacts in a folder on this machine or a shared mount.

    Each file is replaced atomically: a reader sees either the old content or the new. No link is followed.

    Args:
        folder: an absolute path.
    """

    folder: Path

    @property
    def uri(self) -> str:
        """Return the folder or the URI."""
        return str(self.folder)

    def address(self, name: str) -> str:
        """Return the path or the URI of a file."""
        return str(self.folder / name)

    @property
    def files(self) -> SharedFolder:
        """Return the folder with the methods that follow no link."""
        return SharedFolder(self.folder)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none.

        Raises:
            Refused: the file is a link, is reached through one, or is larger than any that Tidegate writes.
        """
        return self.files.read(name)

    def written_at(self, name: str) -> float | None:
        """Return the time of the last write to a file, in seconds since 1970; None if there is no file."""
        status = self.files.status(name)
        return None if status is None else status.st_mtime

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace it."""
        self.files.write(name, content)

    def change(self, name: str, change: Change) -> None:
        """Change a file that several hosts may change concurrently: each change is applied to the newest content."""
        with self.files.locked(name.rpartition("/")[0]):
            content = change(self.read(name))
            if content is not None:
                self.write(name, content)

    def add_line(self, journal: str, line: str, at: datetime) -> str:
        """Add a line to a journal, and return the address of the file that contains it."""
        name = f"{journal}.jsonl"
        with self.files.locked(""):
            status = self.files.status(name)
            if status is not None and status.st_size >= _LARGEST_JOURNAL:
                self.files.move(name, f"{journal}.1.jsonl")
            with self.files.open(name, APPEND) as lines:
                lines.write(f"{line}\n".encode())
        return self.address(name)

    def journal_files(self, journal: str) -> dict[str, float]:
        """Return the names of the files of a journal, with the times of their last write."""
        names = (f"{journal}.jsonl", f"{journal}.1.jsonl")
        return {name: at for name in names if (at := self.written_at(name)) is not None}

    def names(self, folder: str) -> dict[str, float]:
        """Return the names of all files below a folder, with the times of their last write."""
        return self.files.names(folder)

    def delete(self, name: str) -> None:
        """Remove a file; a missing file is not an error."""
        self.files.remove(name)


@dataclass(frozen=True, slots=True)
class ArtifactsInStore:
    """Artifacts in an object store; for the methods, see `ArtifactsInFolder`.

    Args:
        uri: such as `s3://bucket/folder`.
        options: storage options as in deltalake, with the credentials.
    """

    uri: str
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def address(self, name: str) -> str:
        return f"{self.uri.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes | None:
        files, key = self._at(name)
        version = files.version(key)
        return None if version is None else version.content

    def written_at(self, name: str) -> float | None:
        files, key = self._at(name)
        info = files.get_file_info([key])[0]
        return None if info.mtime is None else float(info.mtime.timestamp())

    def write(self, name: str, content: bytes) -> None:
        files, key = self._at(name)
        files.put(key, content)

    def change(self, name: str, change: Change) -> None:
        files, key = self._at(name)
        for _ in range(_TRIES):
            version = files.version(key)
            content = change(None if version is None else version.content)
            if content is None:
                return
            if files.create(key, content) if version is None else files.replace(key, content, version):
                return
        raise StoreFailed(
            f"can't change {self.address(name)}: {_TRIES} attempts failed because another host had changed it"
        )

    def add_line(self, journal: str, line: str, at: datetime) -> str:
        # Objects can't be appended to, so each line is an object of its own; their names sort by time.
        moment = at.astimezone(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
        name = f"{journal}/{moment}-{uuid.uuid4().hex[:8]}.json"
        self.write(name, f"{line}\n".encode())
        return self.address(name)

    def journal_files(self, journal: str) -> dict[str, float]:
        return self.names(journal)

    def names(self, folder: str) -> dict[str, float]:
        files, root = self._at("")
        return {key.removeprefix(f"{root}/" if root else ""): at for key, at in files.below(f"{root}/{folder}").items()}

    def delete(self, name: str) -> None:
        files, key = self._at(name)
        files.remove(key)

    def _at(self, name: str) -> tuple[ObjectFiles, str]:
        # Projects without an object store should not wait for this import.
        from tidegate.pipelines.storage.object_files import object_files

        return object_files(self.address(name), self.options)


Artifacts: TypeAlias = ArtifactsInFolder | ArtifactsInStore
"""Small files that all hosts see."""


def artifacts_at(place: str, options: Mapping[str, str]) -> Artifacts:
    """Return the artifacts at an absolute path or a URI, with the storage options of the store."""
    if "://" in place and not place.startswith("file://"):
        return ArtifactsInStore(place, dict(options))
    return ArtifactsInFolder(Path(place.removeprefix("file://")))


def report_name(pipeline: str, epoch: int) -> str:
    """Return the name of an epoch's run report."""
    return f"reports/{pipeline}/epoch-{epoch:06d}.html"


def page_name(pipeline: str, page: str) -> str:
    """Return the name of a page next to the run reports of a pipeline, such as `advice.html`."""
    return f"reports/{pipeline}/{page}"


def docs_folder(pipeline: str) -> str:
    """Return the folder of the pages of a pipeline's checks."""
    return f"quality/{pipeline}"
