"""The step tables of the guide: each runs, row by row, on the harness that the code before it makes.

A table follows a Python block that makes `harness` (of an operator) or `generator` (of watermarks). Its
first column says what happens; the others say what is true afterwards, and only those that stand there
are compared:

    ann 5 @ 12          an element: key, value, event time (left or right first where there are two inputs)
    watermark 20        event time moves;  clock 20: processing time does
    end of commit       of the source;  restart, restart on 3: a restore, at that parallelism
    event 100, call     for generators: an event, a periodic call

    python -m tests.docs.step_tables docs/guide/*.md     writes what comes out into the pages
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.windowing.operators.records import ElementResult, LateElement, SideOutput, WindowPair, WindowResult
from tidegate.windowing.panes import Timing
from tidegate.windowing.state.rows import BUCKET, StateRow
from tidegate.windowing.testing import OperatorHarness, RecordingOutput
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from tidegate.windowing.windows import TimeWindow, Window

ELEMENT = re.compile(r"(?:(?P<side>left|right) )?(?P<key>\w+) (?P<value>\S+) @ (?P<time>-?\d+|none)")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass
class Table:
    """A step table of a page: its place, its column names, its rows."""

    line: int
    columns: list[str]
    rows: list[list[str]]

    def text(self) -> list[str]:
        """Return its lines, padded so that columns line up in the source."""
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
            for row in cells
        ]
        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
        return [lines[0], rule, *lines[1:]]


def tables(page: str) -> Iterator[Table]:
    """Return the tables whose first column is named step."""
    lines = page.splitlines()
    for number, line in enumerate(lines):
        if not re.match(r"\| step\b", line):
            continue
        rows = []
        for row in lines[number + 2 :]:
            if not row.startswith("|"):
                break
            rows.append(_cells(row))
        yield Table(number, _cells(line), rows)


def actual(page: str, table: Table) -> Table:
    """Run the table, and return it with the actual values."""
    scope = _scope(page, table.line)
    run = (
        OperatorSteps(scope["harness"])
        if "harness" in scope
        else GeneratorSteps(scope["generator"], scope.get("clock"))
    )
    rows = []
    for row in table.rows:
        run.step(row[0])
        rows.append([row[0], *[run.show(column) for column in table.columns[1:]]])
    return Table(table.line, table.columns, rows)


def written(page: str) -> str:
    """Return the page with the actual values in its tables."""
    lines = page.splitlines()
    for table in list(tables(page)):
        lines[table.line : table.line + 2 + len(table.rows)] = actual(page, table).text()
    return "\n".join(lines) + "\n"


class OperatorSteps:
    """An operator's harness, step by step."""

    def __init__(self, harness: OperatorHarness) -> None:
        self._run = harness
        self._before: list[str] = []

    def step(self, text: str) -> None:
        run = self._run
        if found := ELEMENT.fullmatch(text):
            time = None if found["time"] == "none" else int(found["time"])
            run.element(found["key"], _value(found["value"]), time, found["side"])
        elif text.startswith("watermark "):
            run.watermark(_time(text.split()[1]), text.split()[2] if len(text.split()) > 2 else None)
        elif text.startswith("clock "):
            run.processing_time(_time(text.split()[1]))
        elif text == "end of commit":
            run.end_commit()
        elif text.startswith("restart"):
            run.restore(run.snapshot(), int(text.split()[-1]) if " on " in text else 1)
        else:
            raise ValueError(f"no such step: {text!r}")
        self._out = [shown for record in run.records() if (shown := _record(record))]

    def show(self, column: str) -> str:
        rows = [row for subtask in self._run.subtasks for row in subtask.state_rows()]
        rows.sort(key=lambda row: (str(row.key), row.namespace, row.side or "", row.window or ()))
        match column:
            case "watermark":
                return _shown_time(self._run.current_watermark)
            case "state":
                return "; ".join(shown for row in rows if (shown := _state(row)))
            case "timers":
                return "; ".join(shown for row in rows if (shown := _timers(row)))
            case "output":
                return "; ".join(self._out)
        raise ValueError(f"no such column: {column!r}")


class GeneratorSteps:
    """Runs a watermark generator step by step; the clock moves if the code before the table created one."""

    def __init__(self, generator: Any, clock: Any) -> None:
        self._generator, self._clock, self._output = generator, clock, RecordingOutput()

    def step(self, text: str) -> None:
        match text.split():
            case ["event", time]:
                self._generator.on_event(None, int(time), self._output)
            case ["call"]:
                self._generator.on_periodic_emit(self._output)
            case ["clock", time]:
                self._clock.now = int(time)
                self._generator.on_periodic_emit(self._output)
            case _:
                raise ValueError(f"no such step: {text!r}")

    def show(self, column: str) -> str:
        match column:
            case "watermark":
                last = self._output.last_watermark
                return _shown_time(MIN_TIMESTAMP if last is None else last)
            case "state":
                return "idle" if self._output.idle else "active"
        raise ValueError(f"no such column: {column!r}")


def _scope(page: str, line: int) -> dict[str, Any]:
    """Return everything that the Python blocks before a line define."""
    before = "\n".join(page.splitlines()[:line])
    scope: dict[str, Any] = {}
    for block in BLOCK.findall(before):
        exec(compile(ast.parse(block), "guide", "exec"), scope)
    return scope


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _time(text: str) -> int:
    return MAX_TIMESTAMP if text == "end" else int(text)


def _shown_time(time: int) -> str:
    return {MIN_TIMESTAMP: "-", MAX_TIMESTAMP: "end"}.get(time, str(time))


def _window(window: Window) -> str:
    return f"[{window.start}, {window.end})" if isinstance(window, TimeWindow) else "global"


def _record(record: Any) -> str | None:
    match record:
        case WindowResult():
            timing = "" if record.timing is Timing.ON_TIME else f" {record.timing.value}"
            sign = "retracted " if record.op == "-" else ""
            return f"{sign}{record.key} {_window(record.window)} {record.value}{timing}"
        case ElementResult(value=WindowPair(window, left, right)):
            return f"{record.key} {_window(window)} ({left}, {right})"
        case ElementResult():
            return f"{record.key} {record.value}" + ("" if record.timestamp is None else f" @ {record.timestamp}")
        case LateElement():
            return f"late: {record.key} {record.value} @ {record.timestamp}"
        case SideOutput():
            return f"{record.tag}: {record.value}"
    return None


def _state(row: StateRow) -> str | None:
    if row.namespace == BUCKET and row.contents is not None and isinstance(row.window, TimeWindow):
        held = [value for values in row.contents for value in values or ()]
        return f"{row.key} {row.side} {held} @ {row.window.start}"
    if row.side is not None and row.window is not None and row.contents is not None:
        held = [value for values in row.contents for value in values or ()]
        return f"{row.key} {row.side} {_window(row.window)} {held}"
    if row.window is None:
        held = [f"{name}={value}" for name, value in (row.user_state or {}).items()]
        if row.contents is not None:
            times, values = row.contents
            held.append("waits: " + ", ".join(f"{v} @ {t}" for t, v in zip(times, values, strict=True)))
        return f"{row.key} {' '.join(held)}" if held else None
    if row.state_window is None:
        return None
    return f"{row.key} {_window(row.window)} {_contents(row)}"


def _contents(row: StateRow) -> str:
    if row.contents is None:
        return "empty"
    (held,) = row.contents
    if isinstance(held, list):
        held = [each.get("value", each) if isinstance(each, dict) else each for each in held]
    trigger = "".join(f" {name}={value}" for name, value in (row.trigger_state or {}).items())
    return f"{held}{trigger}"


def _timers(row: StateRow) -> str | None:
    event = ", ".join(map(_shown_time, sorted(row.event_time_timers)))
    processing = ", ".join(f"clock {_shown_time(time)}" for time in sorted(row.processing_time_timers))
    both = ", ".join(part for part in (event, processing) if part)
    return f"{row.key} {both}" if both else None


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
