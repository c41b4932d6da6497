"""Scenarios of composite triggers, for Beam's trigger driver and for our window operator.

They leave out what Beam's driver in Python does not define: terms of processing time within other terms than
AfterWatermark, because it asks them with the watermark; terms that fire more than once within AfterAny and AfterAll;
and sessions that grow after they fired on time, which start again with us. Lateness is over only where nothing but late
elements shows it: Beam's driver keeps windows after that, and judges sessions before they merge. Ends of windows and
watermarks have other last digits, since Beam's window ends a step later than ours.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.flink.environment import python_with
from tests.transcripts.doubles import CaseFunction
from tidegate.windowing import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    EventTimeSessionWindows,
    OrFinally,
    Repeatedly,
    TumblingEventTimeWindows,
    Windows,
)
from tidegate.windowing.operators.records import WindowResult
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.testing import window_harness
from tidegate.windowing.triggers.terms import Term

BEAM = "2.77.0"
BEGIN = 10_000
"""Event time starts here, and the clock stays below it, because Beam's driver compares the two."""

Json = dict[str, Any]
Panes = list[list[Any]]


def scenario(seed: int) -> Json:
    """Return the scenario of a seed, always the same."""
    draw = random.Random(f"beam {seed}")
    windows = draw.choice(
        [{"type": "tumbling", "size": 20}, {"type": "tumbling", "size": 50}, {"type": "session", "gap": 25}]
    )
    trigger = _trigger(draw)
    stays = windows["type"] == "tumbling" and "after_processing_time" not in json.dumps(trigger)
    return {
        "id": f"beam {seed}",
        "windows": windows,
        "trigger": trigger,
        "accumulation": draw.choice(["accumulating", "discarding"]),
        "lateness": draw.choice([0, 20, 100]) if stays and draw.random() < 0.5 else 1_000_000,
        "steps": _steps(draw, windows),
    }


def _trigger(draw: random.Random) -> Json:
    delay = {"type": "after_processing_time", "delay": draw.randint(1, 30)}
    count = {"type": "after_count", "count": draw.randint(1, 4)}
    match draw.randint(0, 9):
        case 0:
            return draw.choice([delay, {"type": "repeatedly", "of": delay}])
        case 1:
            return {"type": "after_watermark", "early": delay, "late": draw.choice([count, None])}
        case 2:
            return {"type": "after_watermark", "early": draw.choice([count, None]), "late": delay}
        case 3:
            return {"type": "default"}
        case _:
            return _term(draw, 0)


def _once(draw: random.Random, depth: int) -> Json:
    """Return a term that fires once."""
    kinds = ["after_count", "after_count", "after_watermark", *(["after_any", "after_all"] if depth < 3 else [])]
    match draw.choice(kinds):
        case "after_count":
            return {"type": "after_count", "count": draw.randint(1, 5)}
        case "after_watermark":
            return {"type": "after_watermark", "early": None, "late": None}
        case kind:
            return {"type": kind, "of": [_once(draw, depth + 1) for _ in range(draw.randint(1, 3))]}


def _term(draw: random.Random, depth: int) -> Json:
    kinds = [
        "once",
        "once",
        "after_watermark",
        *(["repeatedly", "repeatedly", "after_each", "or_finally"] if depth < 3 else []),
    ]
    match draw.choice(kinds):
        case "once":
            return _once(draw, depth)
        case "after_watermark":
            early, late = (draw.choice([None, _once(draw, depth + 1)]) for _ in range(2))
            return {"type": "after_watermark", "early": early, "late": late}
        case "repeatedly":
            return {"type": "repeatedly", "of": _term(draw, depth + 1)}
        case "or_finally":
            return {"type": "or_finally", "of": _term(draw, depth + 1), "until": _once(draw, depth + 1)}
        case kind:
            return {"type": kind, "of": [_term(draw, depth + 1) for _ in range(draw.randint(1, 3))]}


def _steps(draw: random.Random, windows: Json) -> list[Json]:
    watermark, clock, steps = BEGIN - 100 + 2, 0, []
    sessions: list[tuple[int, int]] = []
    for number in range(draw.randint(8, 30)):
        roll = draw.random()
        if roll < 0.65:
            ts = watermark - 2 + draw.choice([-70, -40, -20, -10, 0, 0, 10, 10, 20, 30])
            if windows["type"] == "session":
                met = [window for window in sessions if window[0] < ts + windows["gap"] and ts < window[1]]
                merged = (min([ts, *(a for a, _ in met)]), max([ts + windows["gap"], *(b for _, b in met)]))
                if any(window[1] <= watermark for window in met) and met != [merged]:
                    continue
                sessions = [*(window for window in sessions if window not in met), merged]
            steps.append({"element": {"value": number, "ts": ts}})
        elif roll < 0.85:
            watermark += draw.choice([0, 10, 20, 30])
            steps.append({"watermark": watermark})
        else:
            clock += draw.choice([1, 5, 10, 40])
            steps.append({"processing_time": clock})
    return [*steps, {"watermark": watermark + 300}, {"processing_time": clock + 100}]


def answers(scenarios: Sequence[Json]) -> list[list[Panes]]:
    """Return Beam's panes of each step of each scenario."""
    command = [str(python_with("apache-beam", BEAM)), str(Path(__file__).with_name("beam_driver.py"))]
    lines = "".join(json.dumps(scenario) + "\n" for scenario in scenarios)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Beam's driver failed: {done.stderr[-3000:]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["id"] for answer in found] == [scenario["id"] for scenario in scenarios]
    return [answer["panes"] for answer in found]


def ours(scenario: Json) -> list[Panes]:
    """Return our panes of each step."""
    raw = scenario["windows"]
    windows = Windows(
        EventTimeSessionWindows.with_gap(raw["gap"])
        if raw["type"] == "session"
        else TumblingEventTimeWindows.of(raw["size"]),
        _built(scenario["trigger"]),
        allowed_lateness=scenario["lateness"],
        accumulation=Accumulation(scenario["accumulation"]),
        process=CaseFunction("collect"),
    )
    harness = window_harness(windows)
    panes = []
    for step in scenario["steps"]:
        [(kind, value)] = step.items()
        if kind == "element":
            harness.element("a", value["value"], value["ts"])
        elif kind == "watermark":
            harness.watermark(value)
        else:
            harness.processing_time(value)
        results = [record for record in harness.records() if isinstance(record, WindowResult)]
        panes.append([[list(record.window), sorted(record.value)] for record in results])
    return panes


def _built(raw: Json) -> Term:
    match raw["type"]:
        case "default":
            return AfterWatermark()
        case "after_count":
            return AfterCount(raw["count"])
        case "after_processing_time":
            return AfterProcessingTime(raw["delay"])
        case "after_watermark":
            early, late = (_built(raw[part]) if raw[part] else None for part in ("early", "late"))
            return AfterWatermark(early, late)
        case "repeatedly":
            return Repeatedly(_built(raw["of"]))
        case "or_finally":
            return OrFinally(_built(raw["of"]), _built(raw["until"]))
        case kind:
            several = {"after_any": AfterAny, "after_all": AfterAll, "after_each": AfterEach}
            return several[kind].of(*map(_built, raw["of"]))


TIMERS_ARE_A_SET = "timers are a set, and a term that is done leaves none: Beam's driver asks a window once for each"
END_WITHOUT_ELEMENT = "the next term of AfterEach waits for the window's end without another element"


def difference(scenario: Json, beams: list[Panes]) -> tuple[str, str]:
    """Return the first difference, and the rule that explains it; both are "" if there is none.

    A window is compared until a rule explains a difference. Panes of several windows in one step may come in any order.
    """
    explained: dict[str, str] = {}
    asked_again: set[str] = set()
    found, watermark = ("", ""), -math.inf
    for step, theirs, own in zip(
        scenario["steps"], map(_by_window, beams), map(_by_window, ours(scenario)), strict=True
    ):
        watermark = step.get("watermark", watermark)
        for window in sorted({*theirs, *own} - {*explained}):
            panes, came = theirs.get(window, []), own.get(window, [])
            if len(panes) > 1:
                asked_again.add(window)
            # We emit nothing for an empty window.
            shown = [values for values in panes if values]
            if shown == came:
                continue
            what = f"{step}, window {window}: Beam {panes}, ours {came}"
            if window in asked_again:
                explained[window] = TIMERS_ARE_A_SET
            elif _waits_later(scenario["trigger"]) and (
                all(values in came for values in shown) if "watermark" in step else watermark >= json.loads(window)[1]
            ):
                explained[window] = END_WITHOUT_ELEMENT
            else:
                return what, ""
            found = found if found[0] else (what, explained[window])
    return found


def _by_window(panes: Panes) -> dict[str, list[Any]]:
    """Return the values of the panes of each window, in their order."""
    found: dict[str, list[Any]] = {}
    for window, values in panes:
        found.setdefault(str(window), []).append(values)
    return found


def _waits_later(raw: Any) -> bool:
    """Return True if a term after the first one of an AfterEach waits for the end of the window."""
    if isinstance(raw, list):
        return any(map(_waits_later, raw))
    if not isinstance(raw, dict):
        return False
    later = raw["of"][1:] if raw["type"] == "after_each" else []
    return "after_watermark" in json.dumps(later) or any(map(_waits_later, raw.values()))
