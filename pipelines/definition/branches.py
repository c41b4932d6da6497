"""Branches of a pipeline: their names, and the notes in their folders.

A branch is a separate pipeline in the folder `PIPELINE@BRANCH`: the code of the pipeline with other time settings.
The note in the folder has these settings. It is written last, so a branch without a note is incomplete.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tidegate.pipelines.definition.names import branch_of, pipeline_of
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.storage.warehouse import Warehouse

_NOTE = "branch.json"


@dataclass(frozen=True, slots=True)
class BranchNote:
    """The note of a complete branch.

    Args:
        settings: the changed settings by name, milliseconds.
        epoch: the epoch of the pipeline whose snapshot the branch starts from.
        run_id: run of the newest epoch of the branch when it was created.
        line: the lineage of that epoch.
        begun: the newest epoch of the branch when it was created.
        table_id: Delta id of the pipeline's table `state`.
        created_at: int64 epoch milliseconds.
    """

    settings: dict[str, Millis]
    epoch: int
    run_id: str
    line: tuple[tuple[int, int], ...]
    begun: int
    table_id: str
    created_at: Millis


def read_note(warehouse: Warehouse, name: str) -> BranchNote | None:
    """Return the note of a branch, or None if there is no complete branch of that name.

    Raises:
        Refused: the note is damaged.
    """
    folder = warehouse.path(name)
    if _NOTE not in warehouse.names(folder):
        return None
    try:
        fields = json.loads(warehouse.read_file(folder, _NOTE))
        return BranchNote(**{**fields, "line": tuple((first, last) for first, last in fields["line"])})
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(
            f"file {_NOTE} of branch {name} in {folder} is damaged. Put it back, or delete the branch and create it "
            f"again: `tidegate branch {pipeline_of(name)} {branch_of(name)} --delete`"
        ) from error


def write_note(warehouse: Warehouse, name: str, note: BranchNote) -> None:
    """Write the note of a branch, which makes it complete."""
    folder = warehouse.path(name)
    warehouse.replace_file(folder, _NOTE, json.dumps(asdict(note)).encode())
    warehouse.make_durable(folder)


def remove_note(warehouse: Warehouse, name: str) -> None:
    """Remove the note of a branch, after which nothing runs it."""
    warehouse.delete_file(warehouse.path(name), _NOTE)


def branches_of(warehouse: Warehouse, pipeline: str) -> list[str]:
    """Return the names of a pipeline's branches, `PIPELINE@BRANCH`, including incomplete ones."""
    return [folder for folder in warehouse.folders(warehouse.uri) if pipeline_of(folder) == pipeline != folder]


def check_no_branches(warehouse: Warehouse, pipeline: str, refused: str) -> None:
    """Refuse an operation that is impossible while a pipeline has branches.

    Args:
        warehouse: the warehouse.
        pipeline: name of the pipeline.
        refused: a clause that says what is refused, and why.

    Raises:
        Refused: there are branches; the message names the command that deletes the first.
    """
    if names := branches_of(warehouse, pipeline):
        raise Refused(
            f"pipeline {pipeline!r} has branches ({', '.join(names)}), and {refused}. Delete them, then run the "
            f"command again: `tidegate branch {pipeline} {branch_of(names[0])} --delete`"
        )


def no_branch(warehouse: Warehouse, name: str) -> UsageError:
    """Return the error for a branch that does not exist or is incomplete."""
    pipeline = pipeline_of(name)
    names = ", ".join(branch_of(each) or "" for each in branches_of(warehouse, pipeline)) or "none"
    return UsageError(
        f"pipeline {pipeline!r} has no complete branch {branch_of(name)!r}; its branches: {names}. "
        f"`tidegate branch {pipeline} {branch_of(name)} --set SETTING=LENGTH` creates one"
    )
