"""Files with names that other users may have created: none is opened through a link, and no named pipe is waited for.

Somebody who may write to the folder puts a link to a secret, or to a file that a command would overwrite, at each
place where a command or the page opens a file.
"""

from __future__ import annotations

import ast
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.pipelines.engine.base import exchange_folder, remove_abandoned
from tidegate.pipelines.engine.spark.shipping import pack
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.host import Heartbeat
from tidegate.pipelines.run.work_folder import clean_work
from tidegate.pipelines.storage import shared_folder
from tidegate.pipelines.storage.artifacts import ArtifactsInFolder
from tidegate.pipelines.storage.shared_folder import APPEND, CREATE, SharedFolder

ROOT = Path(__file__).parents[2]
SECRET = "secret of the API server"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that only Tidegate's user may read and write."""
    file = tmp_path / "private" / "secret"
    file.parent.mkdir()
    file.write_text(SECRET)
    return file


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder in which others may write, reached through a link that the user chose."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "disk")
    return tmp_path / "work"


def link_file(shared: Path, secret: Path) -> str:
    (shared / "folder").mkdir()
    (shared / "folder" / "name").symlink_to(secret)
    return "folder/name"


def link_folder(shared: Path, secret: Path) -> str:
    (shared / "folder").symlink_to(secret.parent)
    return f"folder/{secret.name}"


def pipe(shared: Path, secret: Path) -> str:
    (shared / "folder").mkdir()
    os.mkfifo(shared / "folder" / "name")
    return "folder/name"


def folder_in_its_place(shared: Path, secret: Path) -> str:
    (shared / "folder").mkdir()
    (shared / "folder" / "name").mkdir()
    return "folder/name"


Plant = Callable[[Path, Path], str]
PLANTS: list[Plant] = [link_file, link_folder, pipe, folder_in_its_place]


def use_read(files: SharedFolder, name: str) -> object:
    return files.read(name)


def use_append(files: SharedFolder, name: str) -> object:
    with files.open(name, APPEND) as file:
        return file.write(b"overwritten")


def use_touch(files: SharedFolder, name: str) -> object:
    return files.touch(name)


@pytest.mark.parametrize("use", [use_read, use_append, use_touch])
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_not_a_regular_file_below_the_folder_is_refused(
    plant: Plant, use: Callable[[SharedFolder, str], object], shared: Path, secret: Path
) -> None:
    name = plant(shared, secret)
    with pytest.raises((Refused, IsADirectoryError)) as error:
        use(SharedFolder(shared), name)
    assert str(shared) in str(error.value)
    assert secret.read_text() == SECRET


@pytest.mark.parametrize("plant", [link_file, pipe])
def test_a_file_that_is_written_replaces_what_was_planted_there(plant: Plant, shared: Path, secret: Path) -> None:
    name = plant(shared, secret)
    SharedFolder(shared).write(name, b"a report")
    assert SharedFolder(shared).read(name) == b"a report"
    assert secret.read_text() == SECRET
    assert [file.name for file in (shared / "folder").iterdir()] == ["name"]


def test_nothing_is_written_listed_or_removed_behind_a_link(shared: Path, secret: Path) -> None:
    name, files = link_folder(shared, secret), SharedFolder(shared)
    for act in (lambda: files.write(name, b""), lambda: files.remove(name), lambda: files.names("folder")):
        with pytest.raises(Refused, match=r"symbolic link to .*private.*Remove the link"):
            act()
    assert files.names(".") == {}
    assert secret.read_text() == SECRET


@pytest.mark.parametrize("name", ["/etc/hostname", "../private/secret", "folder/../../private/secret", "..", ""])
def test_a_name_that_leads_out_of_the_folder_opens_nothing(name: str, shared: Path, secret: Path) -> None:
    (shared / "folder").mkdir()
    with pytest.raises((Refused, OSError)):
        SharedFolder(shared).open(name)


def test_a_file_that_is_too_large_to_be_tidegates_is_refused(shared: Path) -> None:
    with SharedFolder(shared).open("large", CREATE) as file:
        file.truncate(1 << 40)
    with pytest.raises(Refused, match=r"1,099,511,627,776 bytes.*Remove it"):
        SharedFolder(shared).read("large")


def test_content_time_names_and_removal_are_those_of_any_folder(shared: Path) -> None:
    files = SharedFolder(shared)
    assert files.read("a/b/c") is files.dated("a/b/c") is files.status("a/b/c") is None
    assert files.names("a") == {}
    files.write("a/b/c", b"1")
    os.utime(shared / "a" / "b" / "c", (100, 100))
    assert files.dated("a/b/c") == (b"1", 100.0)
    assert files.names("a") == {"a/b/c": 100.0}
    files.remove("a/b/c")
    files.remove("a/b/c")
    files.remove_empty("a")
    assert [*(shared / "a").iterdir()] == []


def report(work: Path) -> None:
    artifacts = ArtifactsInFolder(work)
    artifacts.read("folder/name")
    artifacts.change("folder/name", lambda content: content or b"")


def journal(work: Path) -> None:
    (work / "alarms.jsonl").symlink_to(work.parent / "private" / "secret")
    ArtifactsInFolder(work).add_line("alarms", "line", NOW)


def lock(work: Path) -> None:
    (work / "quality").mkdir()
    (work / "quality" / "lock").symlink_to(work.parent / "private" / "secret")
    ArtifactsInFolder(work).change("quality/checks.json", lambda content: b"{}")


def heartbeat(work: Path) -> None:
    (work / "alive").mkdir()
    (work / "alive" / "visits").symlink_to(work.parent / "private" / "secret")
    Heartbeat(work, "visits").check(60, NOW.timestamp())


@pytest.mark.parametrize("act", [journal, lock, heartbeat])
def test_each_use_of_the_folder_refuses_the_link(act: Callable[[Path], None], shared: Path, secret: Path) -> None:
    with pytest.raises(Refused, match="is a symbolic link"):
        act(shared)
    assert secret.read_text() == SECRET
    assert [file.name for file in secret.parent.iterdir()] == ["secret"]


def test_a_heartbeat_replaces_a_link_in_its_place(shared: Path, secret: Path) -> None:
    (shared / "alive").mkdir()
    (shared / "alive" / "visits").symlink_to(secret)
    Heartbeat(shared, "visits").begin()
    Heartbeat(shared, "visits").give()
    assert secret.read_text() == SECRET
    assert "process" in json.loads((shared / "alive" / "visits").read_text())


def test_cleaning_removes_nothing_behind_a_link(shared: Path, tmp_path: Path) -> None:
    for name in ("logs/spark-1234567.log", "reports/visits/epoch-000001.html"):
        file = tmp_path / "private" / name
        file.parent.mkdir(parents=True)
        file.write_text(SECRET)
        os.utime(file, (1, 1))
        (shared / name.partition("/")[0]).symlink_to(tmp_path / "private" / name.partition("/")[0])
    with pytest.raises(Refused, match="is a symbolic link"):
        clean_work(shared, 1, int(NOW.timestamp() * 1000))
    assert len([file for file in (tmp_path / "private").rglob("*") if file.is_file()]) == 2


def test_code_for_the_tasks_is_what_was_packed_whatever_is_there_under_its_name(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("value = 1\n")
    packed = pack([tmp_path / "module.py"], shared / "shipped")
    ours = packed.read_bytes()
    packed.write_bytes(b"code of somebody else")
    assert pack([tmp_path / "module.py"], shared / "shipped").read_bytes() == ours


def test_a_pipe_among_temporary_files_does_not_keep_a_driver_waiting(tmp_path: Path) -> None:
    (tmp_path / "tidegate-exchange-planted").mkdir()
    os.mkfifo(tmp_path / "tidegate-exchange-planted" / "driver.lock")
    done = threading.Thread(target=remove_abandoned, args=(tmp_path,), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()
    with exchange_folder(tmp_path) as folder:
        assert folder.exists()


OPENED_BY = {
    "storage/shared_folder.py": "the function that opens the files of this test",
    "storage/links.py": "new files in the warehouse, whose paths are checked before",
    "storage/warehouse.py": "the warehouse: whoever may write there may write any result, and readers follow its links",
    "storage/delta_log.py": "logs of tables, in the warehouse or of a source",
    "definition/config/file.py": "tidegate.toml, which is code",
    "engine/base.py": "the exchange, in a folder that only this user may enter",
    "engine/local.py": "the exchange, in a folder that only this user may enter",
    "epoch/exchange.py": "the exchange, in a folder that only this user may enter",
    "engine/spark/shipping.py": "modules of the project, which are code",
    "ask/costs.py": "a file of the package",
    "ask/arrivals.py": "a temporary folder that only this user may enter",
    "observe/report/plain_text.py": "a file of the package",
    "airflow/page.py": "files of the package",
    "airflow/command.py": "a temporary folder that only this user may enter",
    "run/parent.py": "/dev/null",
    "airflow/lineage.py": "a temporary folder that only this user may enter",
    "airflow/embedded.py": "the home of an Airflow that the user started",
    "ledger/step_log.py": "a file that the user names in a variable",
    "project/results.py": "a new file only, for --to",
    "project/cli/screen.py": "a new file only, for --output",
    "project/cli/__init__.py": "/dev/null",
    "project/cli/init.py": "files of the package; a new project in a folder of the user's choice",
    "project/cli/demo.py": "files of the package; a demo in a folder of the user's choice",
    "expectations/tables_read.py": "a temporary folder that only this user may enter",
}
"""Each file of `pipelines` and `expectations` that opens files itself, and why no other user can choose their names."""

OPENING = {"read_text", "read_bytes", "write_text", "write_bytes", "touch", "open_input_file", "open_input_stream"} | {
    "open_output_stream",
    "fromfile",
    "utime",
    "FileHandler",
    "RotatingFileHandler",
    "write_to_textfile",
    "memory_map",
    "OSFile",
}
"""Functions that open or touch a file by its name, besides `open`."""


def opens(file: Path) -> Iterator[int]:
    """Yield the lines on which a file opens others by their names."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in OPENING | {"open"}:
            yield node.lineno
        elif isinstance(called, ast.Attribute) and called.attr in OPENING:
            # A shared folder has some of these methods.
            if not re.search(r"SharedFolder\(|files$", ast.unparse(called.value)):
                yield node.lineno
        elif isinstance(called, ast.Attribute) and called.attr == "open":
            modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if (
                ast.unparse(called.value) == "os"
                or (not node.args and not node.keywords)
                or any(re.fullmatch("[rwax]b?", str(mode)) for mode in modes)
            ):
                yield node.lineno


@pytest.mark.slow
def test_every_other_place_that_opens_a_file_says_why_nobody_else_can_have_chosen_its_name() -> None:
    found = {
        str(file.relative_to(ROOT)).removeprefix("pipelines/"): lines
        for package in ("pipelines", "expectations")
        for file in sorted((ROOT / package).rglob("*.py"))
        if (lines := [*opens(file)])
    }
    unknown = {file: lines for file, lines in found.items() if file not in OPENED_BY}
    assert not unknown, "open these files with SharedFolder, or say in OPENED_BY why no other user can choose the name"
    assert set(OPENED_BY) - set(found) == set(), "these open no file"


def test_a_planted_open_is_found(tmp_path: Path) -> None:
    for text in (
        "open(name)",
        "path.open('rb')",
        "path.open('w')",
        "path.open()",
        "path.read_bytes()",
        "os.open(name, 0)",
    ):
        (tmp_path / "x.py").write_text(f"{text}\n")
        assert [*opens(tmp_path / "x.py")] == [1], text


def test_a_lock_ends_with_an_error_and_the_error_passes(tmp_path: Path) -> None:
    shared = SharedFolder(tmp_path)
    for _ in range(2):
        with pytest.raises(BlockingIOError), shared.locked("a"):
            raise BlockingIOError


def test_a_process_that_hangs_with_a_lock_stops_nobody_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of one that hung ends without harm to the one that has it by then."""
    monkeypatch.setattr(shared_folder, "LOCK_SECONDS", 0.05)
    shared = SharedFolder(tmp_path)
    with ExitStack() as hung, ExitStack() as later:
        hung.enter_context(shared.locked(""))
        later.enter_context(shared.locked(""))
        hung.close()
        began = time.monotonic()
        with shared.locked(""):
            assert time.monotonic() - began >= 0.05, "the later one had it"
