"""A stream that crashes after any step and starts again ends like one that never crashed, row by row. With any
protection of the protocol switched off it does not: each planted bug shows after exactly the steps that it names.
Streams crash without a JVM, where each takes a moment, and in Spark. Bugs are planted without a JVM, in `make test`
each at the first step where it shows, in `make test-long` at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lake import LOCAL, Lake
from tests.recovery.arrivals import PIPELINE, STEPS, copy_of, crash_after, differences, outcome, run, source_of
from tests.recovery.bugs import BUGS, Bug
from tidegate.pipelines.definition import state
from tidegate.pipelines.epoch import shard_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.recovery

EPOCHS_BEFORE = 3
"""The crash is in the epoch after these, which ends a commit that was read in part."""


class Crashes:
    """Lakes that crashed after each step, created once; each is copied for the start that follows.

    Args:
        spark: the session, or its replacement.
        folder: folder for the lakes.
        before: number of epochs before the one that crashes.
    """

    def __init__(self, spark: Any, folder: Path, before: int = EPOCHS_BEFORE) -> None:
        self.spark = spark
        self._folder = folder
        self._source = source_of(folder / "source", commits=2)
        # Created without a JVM for both: if Spark gives the same outcome, its replacement is correct.
        undisturbed = copy_of(self._source, folder / "undisturbed")
        run(LOCAL, undisturbed)
        self.undisturbed = outcome(undisturbed)
        self._begun = copy_of(self._source, folder / "begun")
        crash_after(LOCAL, self._begun, STEPS[-1], before)
        self._crashed: dict[str, Lake] = {}
        self._copies = 0

    def after(self, step: str) -> Lake:
        """A lake whose stream crashed after a step."""
        if step not in self._crashed:
            self._crashed[step] = copy_of(self._begun, self._folder / step.replace(" ", "_"))
            crash_after(self.spark, self._crashed[step], step)
        self._copies += 1
        return copy_of(self._crashed[step], self._folder / f"again-{self._copies}")


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Crashes:
    return Crashes(LOCAL, tmp_path_factory.mktemp("by_hand"))


@pytest.fixture(scope="module")
def in_spark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Crashes:
    return Crashes(spark, tmp_path_factory.mktemp("in_spark"))


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """Let shards of a few rows have deltas, which are merged when they have twice the rows of their base."""
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(shard_state, "SMALLEST", 1)
        planted.setattr(shard_state, "SHARE", 0.5)
        yield


@pytest.fixture(scope="module")
def with_deltas(small: None, tmp_path_factory: pytest.TempPathFactory) -> Crashes:
    """The epoch that crashes writes a delta."""
    return Crashes(LOCAL, tmp_path_factory.mktemp("with_deltas"), before=2)


@pytest.fixture(scope="module")
def merging_deltas(small: None, tmp_path_factory: pytest.TempPathFactory) -> Crashes:
    """The epoch that crashes merges a delta into its base."""
    return Crashes(LOCAL, tmp_path_factory.mktemp("merging_deltas"), before=3)


@pytest.fixture
def crashes(request: pytest.FixtureRequest) -> Crashes:
    found: Crashes = request.getfixturevalue(request.param)
    return found


LONG = (pytest.mark.long,)


@pytest.mark.parametrize("crashes", ["by_hand"], indirect=True)
def test_the_undisturbed_stream_has_something_of_everything(crashes: Crashes) -> None:
    assert all(crashes.undisturbed[table] for table in ("results", "late", "rejects", "epochs", "state"))
    assert crashes.undisturbed["doubled panes"] == []


IN_SPARK = "operated"
"""The only step that `make test` runs in Spark, because Spark knows no other step."""


@pytest.mark.parametrize(
    ("crashes", "step"),
    [
        case
        for step in STEPS
        for in_spark in (
            pytest.param("in_spark", step, marks=(pytest.mark.spark, *(() if step == IN_SPARK else LONG))),
        )
        for case in (("by_hand", step), in_spark)
    ],
    indirect=["crashes"],
)
def test_a_crash_after_any_step_changes_nothing(crashes: Crashes, step: str) -> None:
    lake = crashes.after(step)
    run(crashes.spark, lake)
    assert differences(outcome(lake), crashes.undisturbed) == {}


@pytest.mark.parametrize(
    ("crashes", "bug", "step"),
    [
        pytest.param("by_hand", bug, step, marks=() if step == first else LONG)
        for bug in BUGS
        for step in STEPS
        for first in (min(bug.shows_after, key=STEPS.index),)
    ],
    indirect=["crashes"],
    ids=str,
)
def test_without_a_protection_a_crash_shows_after_the_steps_that_it_is_about(
    crashes: Crashes, bug: Bug, step: str
) -> None:
    lake = crashes.after(step)
    with pytest.MonkeyPatch.context() as planted:
        bug.plant(planted)
        run(crashes.spark, lake)
    shown = differences(outcome(lake), crashes.undisturbed)
    assert bool(shown) == (step in bug.shows_after), shown


def layers(lake: Lake) -> tuple[int, int]:
    """Return the number of bases that are read in part, and of deltas, in the newest snapshot."""
    files = lake.snapshot(PIPELINE).files
    hashes, marks = (
        sum(file.get(f"min.{each.name}") is not None for file in files) for each in (state.HASH, state.MARK)
    )
    return hashes - marks, marks


OF_DELTAS = [pytest.param("with_deltas", (1, 1)), pytest.param("merging_deltas", (1, 0), marks=LONG)]


@pytest.mark.parametrize(("crashes", "after"), OF_DELTAS, indirect=["crashes"])
@pytest.mark.parametrize("step", [step if step == "operated" else pytest.param(step, marks=LONG) for step in STEPS])
def test_a_crash_in_an_epoch_with_deltas_changes_nothing(
    crashes: Crashes, by_hand: Crashes, step: str, after: tuple[int, int]
) -> None:
    committed = crashes.after("committed")
    assert layers(committed) == after
    lake = crashes.after(step)
    run(crashes.spark, lake)
    assert differences(outcome(lake), crashes.undisturbed) == {}
    published = {table: rows for table, rows in by_hand.undisturbed.items() if table in ("results", "late", "rejects")}
    assert differences(outcome(lake), published) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("bug", "step"), [(bug, step) for bug in BUGS for step in (min(bug.shows_after, key=STEPS.index),)], ids=str
)
@pytest.mark.parametrize("crashes", ["merging_deltas"], indirect=True)
def test_without_a_protection_a_crash_in_an_epoch_with_deltas_shows(crashes: Crashes, bug: Bug, step: str) -> None:
    lake = crashes.after(step)
    with pytest.MonkeyPatch.context() as planted:
        bug.plant(planted)
        run(crashes.spark, lake)
    assert differences(outcome(lake), crashes.undisturbed)
