"""Drawn cases (tests/conformance/FORMAT.md) without `expect`: a seed gives the same case for ever.

They leave out what Flink does not define or gets wrong, and differences.json has one of each:

- The order of contents after a merge is that of its state windows. Functions over sessions don't see it.
- A lateness without end overflows where sessions merge and where an element has no window. We refuse it, so the longest
  one that is drawn is our limit.
- An element whose window equals a session that has grown takes away the contents of that session.
- Sessions take an element without a time for one of the smallest time.
- A timeout within a timeout shares its state.

A continuous trigger in event time fires for each interval since the smallest long if an element has no time, and up to
the largest one in global windows; so there is none of that either.
"""

from __future__ import annotations

import random
from typing import Any

from tidegate.windowing.time import LONGEST_DURATION, MAX_TIMESTAMP, MIN_TIMESTAMP

KEYS = ("a", "b", "c")

Json = dict[str, Any]


def case(kind: str, seed: int) -> Json:
    """Return the case of a seed."""
    draw = random.Random(f"{kind} {seed}")
    made = KINDS[kind](draw)
    restores = any(name.startswith("snapshot") for step in made["steps"] for name in step)
    tags = {"tags": ["restore_watermark"]} if restores else {}
    return {"id": f"{kind} {seed}", "source": f"generated (seed {seed})", "kind": kind, **made, **tags}


# --- windows ---------------------------------------------------------------------------------


def _assigner(draw: random.Random) -> Json:
    time = draw.choice(["event", "event", "event", "processing"])
    size = draw.choice([1, 5, 10, 20])
    match draw.choice(
        ["tumbling", "tumbling", "sliding", "sliding", "session", "session", "dynamic_session", "global"]
    ):
        case "tumbling":
            return {
                "type": "tumbling",
                "time": time,
                "size": size,
                "offset": draw.choice([0, 0, size // 2, -(size // 3)]),
            }
        case "sliding":
            slide = draw.choice([1, 3, 5, 10, 15])
            return {
                "type": "sliding",
                "time": time,
                "size": size,
                "slide": slide,
                "offset": draw.choice([0, 0, slide // 2, -(slide // 3)]),
            }
        case "session":
            return {"type": "session", "time": time, "gap": size}
        case "dynamic_session":
            return {"type": "dynamic_session", "time": time}
        case kind:
            return {"type": kind, "end_of_stream": draw.random() < 0.3}


def _trigger(draw: random.Random, assigner: Json, depth: int = 0, timeouts: bool = True) -> Json:
    """Return a trigger that Flink's types allow for the windows; those at the top may be of the other clock."""
    domain, merging = assigner.get("time", "event"), assigner["type"].endswith("session")
    kinds = ["count", "count", f"continuous_{domain}_time"]
    if depth == 0:
        kinds += ["continuous_event_time", "continuous_processing_time"]
    if assigner["type"] == "global":
        kinds += ["never", "end_of_stream"]
    else:
        kinds += [f"{domain}_time"] * 2 + ([] if depth else ["processing_time"])
    if not merging:
        kinds += ["delta"] + (["processing_timeout"] * 2 if timeouts else [])
    if depth < 2:
        kinds += ["purging"] * 3
    match draw.choice(kinds):
        case "count":
            return {"type": "count", "count": draw.randint(1, 4)}
        case "delta":
            return {"type": "delta", "threshold": draw.randint(0, 5)}
        case "purging":
            return {"type": "purging", "of": _trigger(draw, assigner, depth + 1, timeouts)}
        case "processing_timeout":
            return {
                "type": "processing_timeout",
                "of": _trigger(draw, assigner, depth + 1, False),
                "timeout": draw.randint(1, 12),
                "reset_timer_on_new_record": draw.random() < 0.5,
                "clear_on_timeout": draw.random() < 0.5,
            }
        case str() as kind if kind.startswith("continuous"):
            return {"type": kind, "interval": draw.randint(2, 15)}
        case kind:
            return {"type": kind}


def _evictor(draw: random.Random, merging: bool) -> Json | None:
    after = draw.random() < 0.4
    evictor = draw.choice(
        [
            *[None] * 6,
            {"type": "count", "max": draw.randint(0, 3), "evict_after": after},
            {"type": "time", "size": draw.randint(0, 10), "evict_after": after},
            {"type": "delta", "threshold": draw.randint(0, 5), "evict_after": after},
        ]
    )
    return None if merging and evictor is not None and evictor["type"] != "time" else evictor


def _function(draw: random.Random, merging: bool) -> Any:
    function = draw.choice(
        [
            *["collect"] * 4,
            *["reduce_sum"] * 3,
            "sum",
            "count",
            "passthrough",
            {"type": "query_time", "domain": draw.choice(["event", "processing"])},
        ]
    )
    return "sorted" if merging and function in ("collect", "passthrough") else function


def _windows(draw: random.Random) -> Json:
    assigner = _assigner(draw)
    merging = assigner["type"].endswith("session")
    default = assigner["type"] != "global" and draw.random() < 0.35
    operator = {
        "assigner": assigner,
        "trigger": None if default else _trigger(draw, assigner),
        "evictor": _evictor(draw, merging),
        "allowed_lateness": draw.choice(
            [0, 0, 0, 3, 10, 30, LONGEST_DURATION if assigner["type"] == "tumbling" else 1000]
        ),
        "late_output": draw.random() < 0.7,
        "function": _function(draw, merging),
    }
    moves, continuous = Moves(draw), "continuous_event_time" in str(operator["trigger"])
    steps: list[Json] = []
    sessions: dict[str, list[tuple[int, int]]] = {key: [] for key in KEYS}
    for _ in range(draw.randint(8, 35)):
        roll = draw.random()
        if roll < 0.6:
            row = _row(draw, moves, assigner)
            if row["ts"] is None and (continuous or (merging and assigner["time"] == "event")):
                row["ts"] = moves.near()
            if assigner["type"] == "dynamic_session":
                _equal_no_session(row, row["ts"] if assigner["time"] == "event" else moves.now, sessions[row["key"]])
            steps.append({"element": row})
        elif roll < 0.78:
            steps.append({"watermark": moves.watermark()})
        elif roll < 0.93:
            steps.append({"processing_time": moves.clock()})
        else:
            steps.append(moves.restore())
    if draw.random() < 0.6:
        end = draw.choice([1000, MAX_TIMESTAMP])
        steps.append({"watermark": 1000 if continuous and assigner["type"] == "global" else end})
        steps.append({"processing_time": 1000})
    return {"operator": operator, "steps": steps}


def _row(draw: random.Random, moves: Moves, assigner: Json) -> Json:
    ts: int | None = moves.near() + draw.choice([0, 1, 5, -5, -10, 10, 15, -25, 20])
    if draw.random() < 0.01 or (assigner.get("time") == "processing" and draw.random() < 0.3):
        ts = None
    row = {"key": draw.choice(KEYS), "value": draw.randint(0, 9), "ts": ts}
    return row | {"gap": draw.choice([1, 3, 5, 12])} if assigner["type"] == "dynamic_session" else row


def _equal_no_session(row: Json, start: int | None, sessions: list[tuple[int, int]]) -> None:
    """Make the gap of a row longer while its window is one of the sessions of its key, and merge it into them."""
    if start is None:
        return
    while (start, start + row["gap"]) in sessions:
        row["gap"] += 1
    end = start + row["gap"]
    met = [session for session in sessions if session[0] <= end and start <= session[1]]
    sessions[:] = [session for session in sessions if session not in met]
    sessions.append((min([start, *(first for first, _ in met)]), max([end, *(last for _, last in met)])))


class Moves:
    """The clocks of a case. They never go back, except the watermark after a restore."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._marks = [MIN_TIMESTAMP, MIN_TIMESTAMP]
        self._last = draw.choice([0, 0, -30])
        self.now = 0

    def near(self) -> int:
        """Return a time that is near the watermark."""
        return self._last

    def watermark(self, side: int = 0) -> int:
        """Return the next watermark of an input."""
        self._last += self._draw.choice([0, 1, 4, 5, 9, 10, 20])
        self._marks[side] = max(self._marks[side], self._last + self._draw.choice([0, -1, -3]))
        return self._marks[side]

    def clock(self) -> int:
        """Return the next processing time."""
        self.now += self._draw.choice([0, 1, 4, 5, 10, 20])
        return self.now

    def restore(self) -> Json:
        """Return a restore, after which watermarks start again."""
        self._marks = [MIN_TIMESTAMP, MIN_TIMESTAMP]
        self._last -= self._draw.choice([0, 0, 10])
        if self._draw.random() < 0.5:
            return {"snapshot_restore": True}
        return {"snapshot_rescale": {"parallelism": self._draw.randint(1, 3)}}


# --- process functions -----------------------------------------------------------------------


def _acts(draw: random.Random, key: int, near: int) -> list[Any]:
    """Actions of an element. The timers of each key have times of their own, so that their order is certain."""

    def time() -> int:
        return len(KEYS) * ((near + draw.randint(-10, 25)) // len(KEYS)) + key

    acts: list[Any] = []
    for _ in range(draw.randint(1, 4)):
        domain = draw.choice(["event", "processing"])
        acts.append(
            draw.choice(
                [
                    ["register", domain, time()],
                    ["register", domain, time()],
                    ["register", domain, time()],
                    ["delete", domain, time()],
                    ["add", draw.randint(1, 5)],
                    ["clear"],
                    ["emit"],
                    ["emit"],
                    ["side", draw.choice(["x", "y"]), draw.randint(0, 9)],
                ]
            )
        )
    return acts


def _process(draw: random.Random, inputs: int) -> Json:
    function: Json = {"type": "acts"}
    if draw.random() < 0.5:
        function |= {"again": len(KEYS) * draw.randint(1, 4), "until": draw.randint(20, 80)}
    moves = Moves(draw)
    steps: list[Json] = []
    for _ in range(draw.randint(8, 35)):
        roll, side = draw.random(), draw.randint(1, inputs)
        end = "" if inputs == 1 else str(side)
        if roll < 0.55:
            key = draw.randrange(len(KEYS))
            near = moves.near()
            row = {"key": KEYS[key], "value": _acts(draw, key, near), "ts": near + draw.randint(-10, 10)}
            if draw.random() < 0.1:
                row["ts"] = None
            steps.append({f"element{end}": row})
        elif roll < 0.75:
            steps.append({f"watermark{end}": moves.watermark(side - 1)})
        elif roll < 0.9:
            steps.append({"processing_time": moves.clock()})
        elif roll < 0.95 and inputs == 2:
            steps.append({f"idle{end}": draw.random() < 0.5})
        else:
            steps.append(moves.restore())
    ends = ["watermark"] if inputs == 1 else ["watermark1", "watermark2"]
    return {"function": function, "steps": [*steps, *({end: 1000} for end in ends)]}


# --- joins -----------------------------------------------------------------------------------


def _join(draw: random.Random) -> Json:
    lower = draw.randint(-12, 6)
    join = {
        "lower": lower,
        "lower_inclusive": draw.random() < 0.5,
        "upper": lower + draw.randint(2, 15),
        "upper_inclusive": draw.random() < 0.5,
        "late_output": draw.random() < 0.7,
    }
    moves = Moves(draw)
    steps: list[Json] = []
    for _ in range(draw.randint(10, 40)):
        roll, side = draw.random(), draw.randint(1, 2)
        if roll < 0.75:
            ts: int | None = moves.near() + draw.randint(-15, 15)
            if draw.random() < 0.01:
                ts = None
            steps.append({f"element{side}": {"key": draw.choice(KEYS), "value": draw.randint(0, 99), "ts": ts}})
        elif roll < 0.95:
            steps.append({f"watermark{side}": moves.watermark(side - 1)})
        else:
            steps.append(moves.restore())
    return {"join": join, "steps": steps}


KINDS = {
    "window_operator": _windows,
    "keyed_process": lambda draw: _process(draw, 1),
    "keyed_co_process": lambda draw: _process(draw, 2),
    "interval_join": _join,
}
