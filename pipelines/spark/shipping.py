"""What the executors of a cluster import: Tidegate and the project's own modules, as the driver has them.

They travel with the application in one zip file, so a new version needs no installation on the workers, and driver
and executors can't disagree. Packages from elsewhere (pyarrow, deltalake and their kind) must be installed there.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL = re.compile(r"local(\[.*\])?")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def ship(session: SparkSession, root: Path, folder: Path) -> None:
    """Give the executors the code of this process; where they are threads of it nothing is to be done.

    Args:
        session: of the driver.
        root: the project's folder; of the modules below it those go along that were imported.
        folder: where the file is kept, by its content.
    """
    context = session.sparkContext
    if not _LOCAL.fullmatch(context.master or "local"):
        context.addPyFile(str(pack(own_modules(sys.modules, root), folder)))


def own_modules(imported: Mapping[str, ModuleType], root: Path) -> list[Path]:
    """Files and folders of the top-level modules of Tidegate and of a project, those of the environment left out."""
    environment = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    found: set[Path] = set()
    for name, module in imported.items():
        file = Path(getattr(module, "__file__", None) or "/")
        if file.suffix != ".py" or name == "__main__":
            continue
        # Unresolved: a link into the project is part of it.
        top = _top_level(name, file.absolute())
        is_of_project = top.is_relative_to(root.absolute()) and not any(map(top.resolve().is_relative_to, environment))
        if is_of_project or name == "tidegate":
            found.add(top)
    return sorted(found)


def pack(modules: Iterable[Path], folder: Path) -> Path:
    """One zip file of top-level modules, named by its content; the file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for top in modules:
            for path in _below(top):
                # A folder without __init__.py is only found by an entry of its own.
                name = f"{path.relative_to(top.parent).as_posix()}{'/' if path.is_dir() else ''}"
                # The same code gives the same bytes, whenever it was written.
                packed.writestr(zipfile.ZipInfo(name, _LONG_AGO), b"" if path.is_dir() else path.read_bytes())
    file = folder / f"code-{hashlib.sha256(content.getvalue()).hexdigest()[:16]}.zip"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_bytes(content.getvalue())
        part.replace(file)
    return file


def _below(top: Path) -> list[Path]:
    """A file, or a folder with what is below it, through links too: those of `tidegate` in a checkout are its parts."""
    paths = [top]
    for folder, folders, files in os.walk(top, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        paths += [Path(folder, name) for name in (*folders, *files)]
    return sorted(paths)


def _top_level(name: str, file: Path) -> Path:
    """The file or folder that a module's first name stands for."""
    is_package = file.name == "__init__.py"
    depth = name.count(".") + is_package
    return file if depth == 0 else file.parents[depth - 1]
