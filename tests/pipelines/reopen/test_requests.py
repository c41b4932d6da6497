"""Late rows reopened by a stream at work: asked for from outside, done between two of its epochs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.looping import Waits
from tests.pipelines.reopen.lake_rows import _reopened
from tidegate.pipelines.errors import LeaseHeld, Refused, UsageError
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.reopen.recompute_plan import Selection
from tidegate.pipelines.run import requests
from tidegate.pipelines.run.driver import Driver, drive
from tidegate.pipelines.run.lease import Lease, read_lease
from tidegate.pipelines.run.requests import Answer, Asker, Desk, answer_to, ask, forget_request, serve
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.snapshots.forget import forget
from tidegate.pipelines.tables.pipeline_tables import REQUESTS

PIPELINE = hourly_pipeline()


def reopening(driver: Driver) -> Callable[[Selection], tuple[Manifest | None, int]]:
    """The reopening of late rows, with what Spark does done in this process."""

    def reopen(selection: Selection) -> tuple[Manifest | None, int]:
        manifest = _reopened(driver, selection)
        return manifest, 0 if manifest is None else manifest.counters["reopened"]

    return reopen


def stream(lake: Lake, happens: Callable[[int], None], until: int) -> None:
    """A stream that looks at its source, and at its requests, every second; `happens` is called at each look."""
    waits = Waits(happens)
    with lake.driver(LOCAL, PIPELINE) as driver:
        run = Stream(
            driver,
            lambda manifest: None,
            between=lambda: serve(driver.tables, reopening(driver)) and None,
            pause=waits.pause,
            timer=waits.timer,
        )
        run.run_continuously(timedelta(seconds=1), lambda: waits.now > until)


@pytest.fixture
def late(tmp_path: Path) -> Lake:
    """Hours of ann, and a row that comes after its hour had closed."""
    lake = Lake(tmp_path)
    for text, value in (("10:10", 1), ("14:00", 2), ("10:20", 10)):
        lake.append(("ann", at(text), value))
    return lake


def totals(lake: Lake) -> dict[str, int]:
    return {f"{row['window_start']:%H:%M}": row["total"] for row in lake.final(PIPELINE).to_pylist()}


def test_a_stream_reopens_late_rows_between_its_epochs_and_goes_on(late: Lake) -> None:
    tables = late.tables(PIPELINE)
    seen: dict[str, Any] = {}

    def happens(number: int) -> None:
        if number == 1:
            assert totals(late) == {"10:00": 1}
            seen["request"] = ask(tables, Selection())
        if number == 3:
            seen["answer"] = answer_to(tables, seen["request"])
            late.append(("ann", at("16:00"), 4))

    stream(late, happens, until=6)
    assert seen["answer"] == Answer(epoch=2, rows=1, panes=1, withdrawn=1)
    assert totals(late) == {"10:00": 11, "14:00": 2}
    kinds = late.rows(PIPELINE, "epochs").sort_by("epoch")["kind"].to_pylist()
    assert kinds == ["stream", "reopen", "stream"]


def test_a_stream_looks_for_requests_at_once_and_then_every_few_seconds(
    late: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, looks = Waits(), list[float]()
    monkeypatch.setattr(requests, "serve", lambda *ignored: looks.append(waits.now) or [])
    desk = Desk(late.tables(PIPELINE), lambda selection: (None, 0), waits.timer)
    for _ in range(120):
        desk.serve()
        waits.pause(0.1)
    assert [round(look) for look in looks] == [0, 5, 10]


def test_a_refusal_is_an_answer_and_the_stream_goes_on(late: Lake) -> None:
    def refuse(selection: Selection) -> tuple[Manifest | None, int]:
        raise Refused("the log was cleaned up")

    tables = late.tables(PIPELINE)
    request = ask(tables, Selection(key=("ann",), start=1, end=2))
    (answer,) = serve(tables, refuse)
    assert answer == answer_to(tables, request)
    with pytest.raises(Refused, match="the log was cleaned up"):
        answer.check()
    assert serve(tables, refuse) == [], "each request is served once"


def test_a_request_that_is_taken_back_while_it_is_served_leaves_nothing(late: Lake) -> None:
    """The patience of the asker may end at any moment; the stream goes on."""
    tables = late.tables(PIPELINE)
    request = ask(tables, Selection())

    def reopen(selection: Selection) -> tuple[Manifest | None, int]:
        forget_request(tables, request)
        return None, 0

    assert len(serve(tables, reopen)) == 1
    assert tables.warehouse.names(tables.path(REQUESTS)) == {}


MALFORMED = [
    "",
    "no JSON",
    "{}",
    "[]",
    '{"key": null, "start": 5, "end": 3}',
    '{"key": 5, "start": null, "end": null}',
    '{"key": "ann", "start": null, "end": null}',
    '{"key": [5], "start": null, "end": null}',
    '{"key": null, "start": "a", "end": null}',
    '{"key": null, "start": 1.5, "end": null}',
    '{"key": null, "start": NaN, "end": null}',
    '{"key": null, "start": true, "end": null}',
    '{"key": null, "start": 99999999999999999999999, "end": null}',
    f'{{"key": {"[" * 100_000 + "]" * 100_000}, "start": null, "end": null}}',
    "\udcff",
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_a_request_that_can_not_be_read_is_answered_and_the_stream_goes_on(late: Lake, text: str) -> None:
    tables = late.tables(PIPELINE)
    tables.warehouse.replace_file(tables.path(REQUESTS), "reopen-odd.json", text.encode(errors="surrogateescape"))
    (answer,) = serve(tables, lambda selection: pytest.fail("it selects nothing"))
    with pytest.raises(UsageError, match=r"request reopen-odd.json .*can't be read .*--ask-stream` again"):
        answer.check()
    assert answer == answer_to(tables, "odd")


def test_an_answer_that_nobody_reads_is_removed_after_a_while(late: Lake) -> None:
    waits = Waits()
    tables = late.tables(PIPELINE)
    desk = Desk(tables, lambda selection: (None, 0), waits.timer)
    tables.warehouse.replace_file(tables.path(REQUESTS), "reopen-odd.json", b"no JSON")
    assert len(desk.serve()) == 1
    for seconds, is_left in ((10, True), (590, True), (20, False)):
        waits.pause(seconds)
        desk.serve()
        assert (answer_to(tables, "odd") is not None) == is_left


def test_a_stream_that_lost_its_lease_leaves_the_request(late: Lake) -> None:
    def lose(selection: Selection) -> tuple[Manifest | None, int]:
        raise LeaseHeld("lost")

    tables = late.tables(PIPELINE)
    ask(tables, Selection())
    with pytest.raises(LeaseHeld):
        serve(tables, lose)
    assert len(serve(tables, lambda selection: (None, 0))) == 1


def test_the_selection_reaches_the_stream_as_it_was_asked_for(late: Lake) -> None:
    asked: list[Selection] = []

    def note(selection: Selection) -> tuple[Manifest | None, int]:
        asked.append(selection)
        return None, 0

    wanted = [Selection(), Selection(key=("ann", "1"), start=5), Selection(end=7)]
    for selection in wanted:
        ask(late.tables(PIPELINE), selection)
    assert len(serve(late.tables(PIPELINE), note)) == 3
    assert sorted(map(str, asked)) == sorted(map(str, wanted))


def asker(lake: Lake, happens: Callable[[int], None] = lambda number: None, patience: float = 10.0) -> Asker:
    waits = Waits(happens)
    return Asker(lake.tables(PIPELINE), Selection(), patience, waits.pause, waits.timer)


def held(lake: Lake, command: str, asking: Asker) -> None:
    """Ask for the lease while another driver holds it, as `late reopen` does."""
    with (
        Lease(lake.tables(PIPELINE), command, lake.clock),
        drive(lake.config, PIPELINE, "late reopen", LOCAL, lake.clock, wait=asking.waits_for),
    ):
        pytest.fail("the lease was held")


@pytest.mark.parametrize(("command", "patience"), [("backfill", 10.0), ("stream", 0.0)])
def test_nobody_but_a_stream_is_asked_and_only_if_that_is_wanted(late: Lake, command: str, patience: float) -> None:
    asking = asker(late, patience=patience)
    with pytest.raises(LeaseHeld):
        held(late, command, asking)
    assert asking.answer is None
    assert serve(late.tables(PIPELINE), lambda selection: (None, 0)) == []


@pytest.mark.parametrize("command", ["stream", "stream --available-now"])
def test_the_answer_of_a_stream_ends_the_wait(late: Lake, command: str) -> None:
    tables = late.tables(PIPELINE)

    def happens(number: int) -> None:
        if number == 3:
            serve(tables, lambda selection: (None, 0))

    asking = asker(late, happens)
    with pytest.raises(LeaseHeld):
        held(late, command, asking)
    assert asking.answer == Answer()
    asking.close()
    assert tables.warehouse.names(tables.path("requests")) == {}


def test_a_stream_that_does_not_answer_is_given_up_and_the_request_is_taken_back(late: Lake) -> None:
    """A stream of an older tidegate looks for no requests."""
    asking = asker(late)
    with pytest.raises(LeaseHeld):
        held(late, "stream", asking)
    asking.close()
    assert serve(late.tables(PIPELINE), lambda selection: (None, 0)) == []


def test_if_the_stream_ends_first_the_asker_does_the_work_itself(late: Lake) -> None:
    stream(late, lambda number: None, until=2)
    tables = late.tables(PIPELINE)
    ending = Lease(tables, "stream", late.clock)

    def happens(number: int) -> None:
        if number == 2:
            ending.__exit__(None, None, None)

    asking = asker(late, happens)
    ending.__enter__()
    with (
        drive(late.config, PIPELINE, "late reopen", LOCAL, late.clock, wait=asking.waits_for) as driver,
    ):
        assert reopening(driver)(Selection())[1] == 1
    asking.close()
    assert serve(tables, reopening(driver)) == []
    assert totals(late) == {"10:00": 11}
    row = read_lease(tables)
    assert row is not None
    assert row.command == "late reopen"


def test_a_request_that_names_a_key_is_forgotten_with_the_key(late: Lake) -> None:
    stream(late, lambda number: None, until=2)
    tables = late.tables(PIPELINE)
    ask(tables, Selection(key=("ann",)))
    with Lease(tables, "forget", late.clock):
        forget(tables, PIPELINE, ["ann"], late.clock())
    assert tables.warehouse.names(tables.path("requests")) == {}
