"""A folder in which other users may write, such as `work` or `artifacts`: no file in it is opened through a link.

Somebody who may write there could otherwise create a link to a file that only Tidegate's user may read, whose content
the page in Airflow would then show, or to a file that a command would then overwrite. A named pipe would keep a command
waiting forever. Every file with a name that others may have created is therefore opened by `SharedFolder.open`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from tidegate.pipelines.errors import Refused

READ, APPEND, CREATE = os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""How `SharedFolder.open` opens a file: for reading, for adding to its end, or as a new file."""

LARGEST = 64 << 20
"""Largest file in bytes that is read as a whole."""

LOCK_SECONDS = 10.0
"""How long to wait for the lock of a folder. Whoever holds it reads and writes one small file."""

_POLL_SECONDS = 0.01

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A folder whose content other users may have created. Names are paths below it, with slashes.

    Each method raises Refused if a part of a name is a symbolic link, or if the file is not a regular file.

    Args:
        root: an absolute path. Links in this path are the user's own choice, and are followed.
    """

    root: Path

    def open(self, name: str, how: int = READ) -> BinaryIO:
        """Open a file without following a link. If it may be created, so are the folders of its name.

        Raises:
            FileNotFoundError: there is no such file.
            Refused: a part of the name is a link, or the file is not a regular one.
        """
        with self._folder_of(name, create=bool(how & os.O_CREAT)) as (folder, last):
            # Without O_NONBLOCK, opening a named pipe waits for its other end.
            flags = how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with self._refusing(folder, last, name):
                descriptor = os.open(last, flags, 0o666, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._not_regular(name)
        return os.fdopen(descriptor, "rb" if how == READ else "ab" if how == APPEND else "wb")

    def read(self, name: str, at_most: int = LARGEST) -> bytes | None:
        """Return the content of a file, or None if there is none.

        Raises:
            Refused: as for `open`, and if the file has more than `at_most` bytes.
        """
        dated = self.dated(name, at_most)
        return None if dated is None else dated[0]

    def dated(self, name: str, at_most: int = LARGEST) -> tuple[bytes, float] | None:
        """Return the content of a file with the time of its last write, in seconds since 1970; see `read`."""
        try:
            with self.open(name) as file:
                status = os.fstat(file.fileno())
                # It may grow while it is read.
                content = file.read(at_most + 1) if status.st_size <= at_most else b""
        except FileNotFoundError:
            return None
        if (size := max(status.st_size, len(content))) > at_most:
            raise Refused(
                f"{self.root / name} has {size:,} bytes, more than the {at_most:,} that tidegate reads: it was not "
                "written by tidegate. Remove it"
            )
        return content, status.st_mtime

    def status(self, name: str) -> os.stat_result | None:
        """Return size and times of a file, or None if there is no regular file of this name."""
        try:
            with self._folder_of(name) as (folder, last):
                status = os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace it: a reader sees either the old content or the new."""
        part = f"{name}.{uuid.uuid4().hex}.part"
        try:
            with self.open(part, CREATE) as file:
                file.write(content)
            self.move(part, name)
        except OSError as error:
            # The error for a full disk names no file.
            error.filename = error.filename or str(self.root / name)
            raise
        finally:
            self.remove(part)

    def touch(self, name: str) -> None:
        """Set the time of the last write to now; a missing file is created."""
        with self.open(name, APPEND) as file:
            os.utime(file.fileno())

    def move(self, name: str, to: str) -> None:
        """Rename a file within its folder, and replace any file of the new name."""
        with self._folder_of(name) as (folder, last):
            os.replace(last, PurePosixPath(to).name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a file; a missing file is not an error. If it is a link, only the link is removed."""
        with suppress(FileNotFoundError), self._folder_of(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def names(self, folder: str) -> dict[str, float]:
        """Return the names of all regular files below a folder, with the times of their last write."""
        written = {}
        for parent, _, files, descriptor in self._walk(folder):
            for file in files:
                # Another process may have removed it.
                with suppress(FileNotFoundError):
                    status = os.stat(file, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        written[str(PurePosixPath(folder, parent, file))] = status.st_mtime
        return written

    def remove_empty(self, folder: str) -> None:
        """Remove the empty folders below a folder."""
        for _, folders, _, descriptor in self._walk(folder, topdown=False):
            for below in folders:
                # This fails for a folder with files, which is kept, and for a link.
                with suppress(OSError):
                    os.rmdir(below, dir_fd=descriptor)

    @contextmanager
    def locked(self, folder: str) -> Iterator[None]:
        """Keep other processes out of a folder. The lock ends with its open file, even if this process is killed.

        A process that holds the lock for `LOCK_SECONDS` hangs. Its lock file is removed, so that nobody waits for it.
        """
        name, until = str(PurePosixPath(folder, "lock")), time.monotonic() + LOCK_SECONDS
        while True:
            with self.open(name, APPEND) as lock:
                is_locked = _is_locked(lock)
                if is_locked and self._is_at(name, lock):
                    yield
                    return
                if not is_locked and time.monotonic() >= until and self._is_at(name, lock):
                    self.remove(name)
            if not is_locked:
                time.sleep(_POLL_SECONDS)

    def _is_at(self, name: str, file: BinaryIO) -> bool:
        """Return True if a name still leads to an open file: somebody else may have removed it."""
        status = self.status(name)
        return status is not None and os.path.samestat(status, os.fstat(file.fileno()))

    def _walk(self, folder: str, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str], int]]:
        try:
            with self._folder_of(f"{folder}/." if folder else ".") as (descriptor, _):
                yield from os.fwalk(".", topdown=topdown, follow_symlinks=False, dir_fd=descriptor)
        except FileNotFoundError:
            return

    @contextmanager
    def _folder_of(self, name: str, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of a file, part by part; return its descriptor, and the last part of the name."""
        *above, last = name.split("/")
        if create:
            self.root.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in above:
                if part in ("", ".."):
                    raise Refused(f"{name!r} is not the name of a file below {self.root}")
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                with self._refusing(folder, part, name):
                    below = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = below
            yield folder, last
        finally:
            os.close(folder)

    @contextmanager
    def _refusing(self, folder: int, part: str, name: str) -> Iterator[None]:
        """Name the part of a path that is a link or not a regular file, if opening fails for that reason."""
        try:
            yield
        except OSError as error:
            # Opening a link fails with ELOOP, or with ENOTDIR in place of a folder; a named pipe without a reader with
            # ENXIO. Opening a folder to write fails with EISDIR.
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR):
                error.filename = str(self.root / name)
                raise
            with suppress(OSError):
                target = os.readlink(part, dir_fd=folder)
                raise Refused(
                    f"{part!r} of {self.root / name} is a symbolic link to {target}: tidegate opens no file through a "
                    f"link below {self.root}, where other users may write. Remove the link"
                ) from None
            raise self._not_regular(name) from None

    def _not_regular(self, name: str) -> Refused:
        return Refused(
            f"{self.root / name} is not a regular file: tidegate opens only regular files below {self.root}, where "
            "other users may write. Remove it"
        )


def _is_locked(file: BinaryIO) -> bool:
    """Lock an open file. Return False if another process, or another thread of this one, has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
