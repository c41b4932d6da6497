"""Symbolic links in a warehouse: somebody who can create one must not make a command delete or copy its target."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.copies import copy_all
from tests.lake import Clock
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, delete_savepoint
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import Warehouse

NOW = 2_000_000_000_000
CONTENT = {"key.txt": "precious", "deep/file.txt": "precious", "x.parquet": "precious"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder that belongs to somebody else."""
    folder = tmp_path / "target"
    for name, content in CONTENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def erase(by_hand: ByHand) -> None:
    with Lease(by_hand.tables, "forget", Clock()):
        forget(by_hand.tables, by_hand.pipeline, [("ann",)], NOW)


def clean(by_hand: ByHand) -> None:
    with Lease(by_hand.tables, "vacuum", Clock()):
        vacuum(by_hand.tables, Retention(snapshots=1, age=0), NOW)


def save(by_hand: ByHand) -> None:
    create_savepoint(by_hand.tables, by_hand.head(), "linked", 1)


def back_up(by_hand: ByHand) -> None:
    place = PipelineTables(Warehouse(str(by_hand.folder / "elsewhere")), by_hand.pipeline.name)
    copy_all(by_hand.tables, place, "first", 1)
    files = [file.read_bytes() for file in (by_hand.folder / "elsewhere").rglob("*") if file.is_file()]
    assert b"precious" not in files


COMMANDS: dict[str, tuple[Callable[[ByHand], None], list[str]]] = {
    "forget": (erase, ["savepoints/linked", "requests", "results/linked", "results/_delta_log/linked"]),
    "savepoint create": (save, ["savepoints/linked"]),
    "savepoint delete": (lambda by_hand: delete_savepoint(by_hand.tables, "linked"), ["savepoints/linked"]),
    "vacuum": (clean, ["late/linked"]),
    "savepoint create --tables": (back_up, ["results/linked"]),
}
"""Each command, and the places below the pipeline's folder that it looks at."""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_target_of_a_link_stays(by_hand: ByHand, target: Path, command: str) -> None:
    by_hand.hours(10, 12)
    run, folders = COMMANDS[command]
    ours = Path(by_hand.warehouse.path(by_hand.pipeline.name))
    for folder in folders:
        (ours / folder).parent.mkdir(exist_ok=True)
        (ours / folder).symlink_to(target)
    for file in ("results-000001-linked.parquet", "linked.txt"):
        (ours / "results" / file).symlink_to(target / "key.txt")
    run(by_hand)
    assert content(target) == CONTENT


def test_a_table_whose_folder_is_a_link_is_refused(by_hand: ByHand, tmp_path: Path) -> None:
    """It could lead to the table of another pipeline, all of whose files would be unknown and so deleted."""
    by_hand.hours(10, 12)
    moved = tmp_path / "moved"
    shutil.move(by_hand.tables.path("results"), moved)
    (moved / "results-000001-other.parquet").write_text("precious")
    Path(by_hand.tables.path("results")).symlink_to(moved)
    for run in (clean, erase, back_up):
        with pytest.raises(
            Refused, match=r"results is a symbolic link to .*Remove the link, or replace it with the folder"
        ):
            run(by_hand)
    assert (moved / "results-000001-other.parquet").read_text() == "precious"
    # The remedy that the message names.
    Path(by_hand.tables.path("results")).unlink()
    shutil.copytree(moved, by_hand.tables.path("results"))
    (Path(by_hand.tables.path("results")) / "results-000001-other.parquet").unlink()
    clean(by_hand)
    back_up(by_hand)


def test_a_warehouse_that_is_a_link_itself_is_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "warehouse").symlink_to(tmp_path / "disk")
    by_hand = ByHand(tmp_path)
    by_hand.hours(10, 12)
    clean(by_hand)
    erase(by_hand)
