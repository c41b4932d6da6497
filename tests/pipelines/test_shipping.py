"""Executors of a cluster import the code of the driver, from one file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tidegate.pipelines.engine.spark.shipping import own_modules, pack, search_path


def project(folder: Path) -> dict[str, ModuleType]:
    """A module, a package and a namespace of a project, and something from its environment, as if imported."""
    files = {
        "visits": "visits.py",
        "clicks": "clicks/__init__.py",
        "clicks.hourly": "clicks/hourly.py",
        "shop.orders.daily": "shop/orders/daily.py",
        "numpy": ".venv/lib/site-packages/numpy/__init__.py",
    }
    imported = {"builtin": ModuleType("builtin"), "tidegate": sys.modules["tidegate"]}
    for name, path in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"NAME = {name!r}\n")
        imported[name] = ModuleType(name)
        imported[name].__file__ = str(file)
    (folder / "clicks" / "lazily.py").write_text("NAME = 'lazily'\n")
    (folder / "unused.py").touch()
    return imported


def test_what_the_project_imported_goes_along_with_tidegate_and_its_environment_does_not(tmp_path: Path) -> None:
    imported = {**project(tmp_path), "json": sys.modules["json"]}
    ours = Path(str(sys.modules["tidegate"].__file__)).parent
    assert set(own_modules(imported)) == {ours, tmp_path / "visits.py", tmp_path / "clicks", tmp_path / "shop"}


def test_a_module_beside_the_projects_folder_goes_along(tmp_path: Path) -> None:
    shared = ModuleType("shared")
    shared.__file__ = str(tmp_path / "shared.py")
    assert own_modules({"shared": shared}) == [tmp_path / "shared.py"]


def test_tasks_of_this_machine_look_where_this_process_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "gone"), *sys.path])
    monkeypatch.chdir(tmp_path.parent)
    folders = search_path().split(os.pathsep)
    assert folders[:2] == [str(tmp_path.parent), str(tmp_path)]
    assert not any(part in folder for folder in folders for part in ("site-packages", "gone"))
    assert str(Path(os.__file__).parent) not in folders


def test_another_process_can_import_all_of_it_from_the_file(tmp_path: Path) -> None:
    project(tmp_path)
    tops = [tmp_path / "visits.py", tmp_path / "clicks", tmp_path / "shop"]
    file = pack(tops, tmp_path / "shipped")
    lines = [
        f"import sys; sys.path.insert(0, {str(file)!r})",
        "import visits, clicks.hourly, clicks.lazily, shop.orders.daily as daily",
        "print(visits.NAME, clicks.hourly.NAME, clicks.lazily.NAME, daily.NAME)",
    ]
    done = subprocess.run([sys.executable, "-I", "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["visits", "clicks.hourly", "lazily", "shop.orders.daily"], done.stderr


def test_the_same_code_is_the_same_file_and_other_code_another(tmp_path: Path) -> None:
    project(tmp_path)
    first = pack([tmp_path / "clicks"], tmp_path / "shipped")
    (tmp_path / "clicks" / "hourly.py").touch()
    assert pack([tmp_path / "clicks"], tmp_path / "shipped") == first
    (tmp_path / "clicks" / "hourly.py").write_text("NAME = 'changed'\n")
    assert pack([tmp_path / "clicks"], tmp_path / "shipped") != first
