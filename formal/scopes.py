"""What TLC checks: scopes, each small enough for an exhaustive search, bugs, and the dangerous states it must reach.

A bug removes one protection. It is tried in the scope where it matters, with the one invariant that must then fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

INVARIANTS = (
    "NoRowIsLost",
    "NoRowIsDoubled",
    "NoEpochIsDoubled",
    "ResultsFollowFromThePosition",
    "WatermarkFollowsFromThePosition",
    "PublishedIsTheManifest",
    "FencedDriversPublishNothing",
    "RestoreIsOneCut",
    "NoNeededFileIsRemoved",
    "NoTableIsAhead",
    "ForgottenKeysAreInNoFile",
    "PrunedRowsStayAway",
)

"""Promises about each state."""

IN_TIME = ("EverythingIsPublished",)
"""Liveness promises: about a command that is started again, and that no other command disturbs."""


@dataclass(frozen=True)
class Scope:
    """The part of the protocol that one run of TLC searches exhaustively.

    Args:
        name: its name in the output.
        reaches: the dangerous states that it must reach.
        commands: the commands that may be started.
        others: what else may happen.
        drivers: number of processes.
        starts: number of commands that are started.
        calm: number of the first commands in which nothing crashes or hangs.
        epochs: number of the last epoch.
        stale: True if listings may be stale.
        times: name of the definition in Source.tla that has the source's rows.
        is_quick: False if only the long form searches it exhaustively, in wider bounds. Both forms look for its bugs.
    """

    name: str
    reaches: tuple[str, ...]
    commands: tuple[str, ...] = ("stream",)
    others: tuple[str, ...] = ()
    drivers: int = 1
    starts: int = 2
    calm: int = 0
    epochs: int = 3
    stale: bool = False
    times: str = "SmallTimes"
    is_quick: bool = True


@dataclass(frozen=True)
class Bug:
    """A protection that is removed.

    Args:
        protection: its name, as a string in the model.
        refutes: the invariant that must fail without it.
        scope: the name of the scope in which it is tried.
    """

    protection: str
    refutes: str
    scope: str


CRASHES = (
    "a crash after planned",
    "a crash after operated",
    "a crash after committed",
    "a crash after published results",
    "a crash after published late",
    "a crash after published epochs",
)

RIVALS = ("two drivers work at the same time", "the fence stops the second driver")

SCOPES = (
    Scope(
        "kills",
        (
            "first start",
            "rerun after a clean end",
            "rerun of an epoch that is not published",
            "half a commit is read",
            "files of a failed attempt lie there",
            "the answer to a commit is lost",
            "a crash before a lost answer is looked up",
            "recovery publishes",
            *CRASHES,
        ),
    ),
    Scope(
        "rivals",
        (
            *RIVALS,
            "a table moved between look and commit",
            "another driver published this epoch",
            "a hung driver publishes behind another epoch",
            "a driver goes on from another one's epoch",
            "a driver finds its lease lost",
            "a stale listing of state is believed",
        ),
        drivers=2,
        epochs=2,
        stale=True,
    ),
    Scope(
        "restore",
        (
            *RIVALS,
            "a restore",
            "a hung driver publishes behind another epoch",
        ),
        ("stream", "restore"),
        drivers=2,
        times="TinyTimes",
        epochs=3,
    ),
    Scope(
        "two restores",
        ("a restore brings back a line that was left",),
        ("stream", "restore"),
        starts=3,
        calm=1,
        epochs=4,
        is_quick=False,
    ),
    Scope(
        "state set back",
        (
            "another engine sets state back",
            "a head behind the tables is refused",
            "a restore after state was set back",
        ),
        ("stream", "restore"),
        ("set back",),
        starts=3,
        calm=1,
        epochs=3,
        times="TinyTimes",
    ),
    Scope(
        "source created again",
        ("another source is refused", "a source is reset"),
        ("stream", "reset"),
        starts=3,
        epochs=3,
        times="NewTimes",
    ),
    Scope(
        "forget",
        (
            "a key is forgotten",
            "a cleanup lists files that are not committed",
            "the fence stops the second driver",
        ),
        ("stream", "forget"),
        drivers=2,
        times="TinyTimes",
        epochs=2,
        is_quick=False,
    ),
    Scope(
        "forget, killed",
        ("a key is forgotten", "a crash within a cleanup"),
        ("stream", "forget"),
        starts=3,
        calm=1,
        is_quick=False,
    ),
    Scope(
        "cleanup",
        (
            "a cleanup lists files that are not committed",
            "a cleanup fences a driver that hung",
            "a cleanup is outrun",
            "a cleanup deletes after another epoch was committed",
        ),
        ("stream", "vacuum"),
        drivers=2,
        starts=3,
        calm=1,
        epochs=2,
        times="TinyTimes",
        is_quick=False,
    ),
    Scope(
        "handover",
        (
            *RIVALS,
            "a stream takes over from a backfill",
            "a backfill behind a stream is refused",
        ),
        ("backfill", "stream"),
        drivers=2,
        times="OneTime",
        epochs=2,
        is_quick=False,
    ),
    Scope(
        "another engine's VACUUM",
        ("another engine removes files that are not committed", "a file is gone before its commit"),
        others=("vacuum",),
        epochs=2,
    ),
    Scope(
        "corrections",
        (
            "a row that was deleted from the source is retracted",
            "late rows are reopened",
            "a restore",
        ),
        ("stream", "reopen", "restore"),
        starts=3,
        calm=1,
        epochs=5,
        times="ChangedTimes",
        is_quick=False,
    ),
    Scope(
        "prune",
        ("late rows are pruned", "a restore brings back a line that was left"),
        ("stream", "prune", "restore"),
        starts=5,
        calm=4,
        epochs=6,
        times="LateTimes",
        is_quick=False,
    ),
    Scope(
        "optimize",
        (*RIVALS, "a table is compacted", "a compaction is outrun", "a restore"),
        ("stream", "optimize", "restore"),
        drivers=2,
        starts=3,
        calm=1,
        times="TinyTimes",
        is_quick=False,
    ),
    Scope(
        "several snapshots",
        (
            "a cleanup keeps an older snapshot",
            "a stream cleans up between two epochs",
            "a restore that would lose rows is refused",
        ),
        ("stream", "restore"),
        ("maintenance", "keeps several"),
        starts=4,
        calm=3,
        times="ThreeTimes",
        epochs=5,
        is_quick=False,
    ),
    Scope(
        "savepoints and forget",
        (
            "a savepoint is made",
            "a key is forgotten in a savepoint",
            "a key is forgotten while a savepoint is copied",
            "a copy is incomplete",
        ),
        ("stream", "savepoint", "forget"),
        drivers=2,
        starts=3,
        calm=1,
        times="OneTime",
        epochs=2,
        is_quick=False,
    ),
    Scope(
        "savepoints and cleanup",
        ("a savepoint is made", "a savepoint is restored whose snapshot is gone"),
        ("stream", "savepoint", "vacuum", "restore"),
        starts=4,
        calm=2,
        times="TinyTimes",
        epochs=3,
        is_quick=False,
    ),
    Scope(
        "deltas",
        (
            "a delta is written",
            "a delta replaces another one",
            "a cleanup keeps an older snapshot",
            "a key is forgotten",
        ),
        ("stream", "vacuum", "forget"),
        ("deltas", "keeps several"),
        starts=3,
        calm=2,
        is_quick=False,
    ),
)

LIVE = ("kills", "forget, killed")
"""Names of the scopes in which TLC checks liveness; in the small bounds, only in the first of them."""

WIDE: dict[str, dict[str, Any]] = {
    "kills": {"starts": 3, "epochs": 5, "times": "WideTimes"},
    "rivals": {"epochs": 3},
    "restore": {"times": "SmallTimes"},
    "two restores": {"starts": 4, "calm": 0},
    "state set back": {"calm": 0, "times": "SmallTimes"},
    "source created again": {"times": "SmallTimes"},
    "forget": {"times": "SmallTimes", "epochs": 3},
    "forget, killed": {"calm": 0, "epochs": 4},
    "cleanup": {"calm": 0},
    "handover": {"times": "TinyTimes", "epochs": 3},
    "another engine's VACUUM": {"starts": 3, "epochs": 4},
    "corrections": {"calm": 0},
    "prune": {"calm": 3},
    "optimize": {"calm": 0},
    "several snapshots": {"calm": 2},
    "savepoints and forget": {"times": "TinyTimes", "epochs": 3},
    "savepoints and cleanup": {"calm": 1},
    "deltas": {"calm": 1},
}
"""Bounds of the long form that replace the small ones."""

BUGS = (
    Bug("recovery rolls forward", "PublishedIsTheManifest", "kills"),
    Bug("an epoch is published once", "NoEpochIsDoubled", "kills"),
    Bug("the position is the manifest's", "NoRowIsDoubled", "kills"),
    Bug("files that were read are part of the position", "NoRowIsDoubled", "kills"),
    Bug("event time is part of the snapshot", "ResultsFollowFromThePosition", "kills"),
    Bug("half a commit's times are part of the snapshot", "WatermarkFollowsFromThePosition", "kills"),
    Bug("only reported files are published", "NoRowIsDoubled", "kills"),
    Bug("a commit is durable before the next step", "NoTableIsAhead", "kills"),
    Bug("a snapshot is published before an epoch starts from it", "NoRowIsLost", "rivals"),
    Bug("the state commit allows no retry", "NoRowIsDoubled", "rivals"),
    Bug("a commit knows its own entry", "FencedDriversPublishNothing", "rivals"),
    Bug("a table is published by the handle that was checked", "NoEpochIsDoubled", "rivals"),
    Bug("all timelines share one application id", "RestoreIsOneCut", "restore"),
    Bug("epoch numbers only grow", "RestoreIsOneCut", "two restores"),
    Bug("a head behind the tables is refused", "NoRowIsLost", "state set back"),
    Bug("a position belongs to one source", "NoRowIsLost", "source created again"),
    Bug("a cleanup fences the tables", "NoNeededFileIsRemoved", "cleanup"),
    Bug("forget leaves only the newest snapshot", "ForgottenKeysAreInNoFile", "forget"),
    Bug("each file exists before it is committed", "NoNeededFileIsRemoved", "another engine's VACUUM"),
    Bug("a correction retracts what it replaces", "ResultsFollowFromThePosition", "corrections"),
    Bug("a reopened row is marked", "NoRowIsDoubled", "corrections"),
    Bug("a restore takes back the marks of a reopening", "NoRowIsLost", "corrections"),
    Bug("a restore brings back no pruned rows", "PrunedRowsStayAway", "prune"),
    Bug("a compaction replaces only what it read", "RestoreIsOneCut", "optimize"),
    Bug("a cleanup keeps the files of each kept snapshot", "NoNeededFileIsRemoved", "several snapshots"),
    Bug("a restore that would lose rows is refused", "NoRowIsLost", "several snapshots"),
    Bug("a savepoint has files of its own", "NoNeededFileIsRemoved", "savepoints and cleanup"),
    Bug("forget cleans savepoints once the snapshots are gone", "ForgottenKeysAreInNoFile", "savepoints and forget"),
    Bug("forget writes a base without the key", "ForgottenKeysAreInNoFile", "deltas"),
    Bug("the base of a delta is part of its version", "NoNeededFileIsRemoved", "deltas"),
)


def wide(scope: Scope) -> Scope:
    """Return the scope with the bounds of the long form."""
    return replace(scope, **WIDE[scope.name])
