"""Symbolic links in a warehouse: nothing is deleted or copied through one, because its target belongs to others."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tidegate.pipelines.errors import Refused


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
