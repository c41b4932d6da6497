"""Files in local folders: hard links to them, and protection against deleting or copying through symbolic links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.pipelines.errors import Refused

if TYPE_CHECKING:
    from pyarrow import fs

_BLOCK = 1 << 20


def check_no_link(root: str, path: str) -> None:
    """Refuse a path that leaves a warehouse through a symbolic link below it.

    Args:
        root: folder of the warehouse; links above it are the user's own choice.
        path: path of a folder or a file; paths outside the warehouse are not checked.

    Raises:
        Refused: a folder of the path, or the file, is a link.
    """
    above, below = Path(root), Path(path)
    if not below.is_relative_to(above):
        return
    for part in below.relative_to(above).parts:
        above /= part
        if above.is_symlink():
            raise Refused(
                f"{above} is a symbolic link to {os.readlink(above)}: tidegate deletes and copies nothing through "
                "links below its warehouse. Remove the link, or replace it with the folder or file itself"
            )


def delete_below(folder: str, last: str) -> None:
    """Remove a folder and its content; a symbolic link is removed without its target. A missing folder is not an error.

    Args:
        folder: the folder, or a link in its place.
        last: name of a folder whose files are removed after all others.
    """
    if os.path.islink(folder):
        os.unlink(folder)
        return
    files, folders = [], [folder] if os.path.isdir(folder) else []
    for parent, below, names in os.walk(folder):
        # The walk lists links to folders among the folders, and does not follow them.
        links = [name for name in below if os.path.islink(os.path.join(parent, name))]
        files += [os.path.join(parent, name) for name in (*names, *links)]
        folders += [os.path.join(parent, name) for name in below if name not in links]
    for file in sorted(files, key=lambda file: last in Path(file).relative_to(folder).parts):
        with suppress(FileNotFoundError):
            os.unlink(file)
    for emptied in reversed(folders):
        # Another command may have removed it, or written into it, in the meantime.
        with suppress(OSError):
            os.rmdir(emptied)


def link_or_copy(reading: fs.FileSystem, original: str, copy: str, share: bool) -> None:
    """Write a new file: a hard link to another one if wanted and possible, otherwise a synced copy."""
    # Airflow writes files without loading Arrow.
    from pyarrow.fs import LocalFileSystem

    if share and isinstance(reading, LocalFileSystem) and _has_second_name(original, copy):
        return
    with reading.open_input_stream(original) as reader, open(copy, "xb") as writer:
        while block := reader.read(_BLOCK):
            writer.write(block)
        writer.flush()
        os.fsync(writer.fileno())


def _has_second_name(original: str, copy: str) -> bool:
    """Create a hard link to a file. Return False if the file system can't do that."""
    try:
        os.link(original, copy)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


@contextmanager
def replacing(file: str, beside: str) -> Iterator[None]:
    """Within this context, write a file under a temporary name; at the end it replaces the other file.

    The temporary name `beside` is unique to this command, so a command that hangs and later resumes can do no damage.
    """
    try:
        yield
        os.replace(beside, file)
    except OSError as error:
        # The error for a full disk names no file.
        error.filename = error.filename or file
        raise
    finally:
        # A full disk leaves a partial file, and `replace` leaves both names if they are links to one file.
        with suppress(FileNotFoundError):
            os.unlink(beside)
