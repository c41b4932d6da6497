"""Ship code to the executors: Tidegate and the project's own modules, as the driver has them.

They are sent in one zip file, with the application or the Connect session. So a new version needs no installation on
the workers, and driver and executors always run the same code. Other packages (pyarrow, deltalake and so on) must be
installed there.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tidegate.pipelines.engine.spark.connect import is_connect
from tidegate.pipelines.storage.shared_folder import SharedFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL = re.compile(r"local(\[.*\])?")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def ship(session: SparkSession, folder: Path) -> None:
    """Send this process's code to the executors. Local executors import it in place (`search_path`).

    Args:
        session: session of the driver.
        folder: folder for the zip file, which is named after its content.
    """
    if is_connect(session):
        # Even on this machine, a server's tasks are not children of this process.
        session.addArtifacts(str(pack(own_modules(sys.modules), folder)), pyfile=True)
        return
    context = session.sparkContext
    if not is_local(context.master):
        context.addPyFile(str(pack(own_modules(sys.modules), folder)))


def is_local(master: str | None) -> bool:
    """Return True if all tasks of a session with this master run on this machine, as its children."""
    return _LOCAL.fullmatch(master or "local") is not None


def search_path() -> str:
    """Return the folders where this process finds modules but another process in the environment would not.

    A project's folder is one of them, and so is a folder that a module of the project puts on `sys.path`.
    """
    folders = [Path(entry).absolute() for entry in sys.path]
    return os.pathsep.join(str(folder) for folder in folders if folder.exists() and not _is_installed(folder))


def own_modules(imported: Mapping[str, ModuleType]) -> list[Path]:
    """Return the files and folders of Tidegate and of imported top-level modules that were not installed."""
    paths: set[Path] = set()
    for name, module in imported.items():
        file = Path(getattr(module, "__file__", None) or "/")
        if file.suffix != ".py" or name == "__main__":
            continue
        # The path is not resolved: a link in the project is part of the project.
        top = _top_level(name, file.absolute())
        if not _is_installed(top) or name == "tidegate":
            paths.add(top)
    return sorted(paths)


def unknown_modules(imported: Mapping[str, ModuleType], master: str | None) -> list[Path]:
    """Return the modules of `own_modules` that workers of a running session may not find.

    Args:
        imported: the modules of this process.
        master: master of the session; workers on this machine find installed packages. None for a Connect server.
    """
    is_here = master is not None and is_local(master)
    return [path for path in own_modules(imported) if not (is_here and _is_installed(path))]


def _is_installed(path: Path) -> bool:
    """Return True for a file or folder of Python or of an installed package."""
    where = path.resolve()
    standard = (Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
    return bool({"site-packages", "dist-packages"} & set(where.parts)) or any(map(where.is_relative_to, standard))


def pack(modules: Iterable[Path], folder: Path) -> Path:
    """Write top-level modules into one zip file, named after its content, and return the file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for top in modules:
            for path in _below(top):
                # Python finds a folder without __init__.py only if it has its own entry.
                name = f"{path.relative_to(top.parent).as_posix()}{'/' if path.is_dir() else ''}"
                # With a fixed date, equal code gives equal bytes.
                packed.writestr(zipfile.ZipInfo(name, _LONG_AGO), b"" if path.is_dir() else path.read_bytes())
    name = f"code-{hashlib.sha256(content.getvalue()).hexdigest()[:16]}.zip"
    files = SharedFolder(folder.parent)
    # Anyone who may write in the folder could put other code under this name.
    if files.read(f"{folder.name}/{name}") != content.getvalue():
        files.write(f"{folder.name}/{name}", content.getvalue())
    return folder / name


def _below(top: Path) -> list[Path]:
    """Yield a file, or a folder with its content. Links are followed: in a checkout, parts of `tidegate` are links."""
    paths = [top]
    for folder, folders, files in os.walk(top, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        paths += [Path(folder, name) for name in (*folders, *files)]
    return sorted(paths)


def _top_level(name: str, file: Path) -> Path:
    is_package = file.name == "__init__.py"
    depth = name.count(".") + is_package
    return file if depth == 0 else file.parents[depth - 1]
