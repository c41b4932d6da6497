"""The fingerprint includes the user's code with everything that it names: a fix anywhere in it is noticed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.lake import EVENTS, hourly_pipeline
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.fingerprint import LEFT_OUT_AT_DEFAULT, describe, fingerprint
from tidegate.windowing import TumblingEventTimeWindows, Windows

AGGREGATE = """
    from dataclasses import dataclass
    import pyarrow as pa
    from tidegate.windowing import AggregateFunction
    from tidegate.windowing.aggregates.bound import Aggregate

    class Added(AggregateFunction):
        accumulator_type = pa.int64()
        result_type = pa.int64()
        def create_accumulator(self): return 0
        def add(self, value, accumulator): return accumulator + value["value"]
        def merge(self, accumulator, other): return accumulator + other
        def get_result(self, accumulator): return accumulator FIX

    @dataclass(frozen=True)
    class Value(Aggregate):
        column: str
        def bind(self, schema): return BOUND
        @property
        def columns(self): return (self.column,)

    made = Value("value")
"""

CORRECTED = {
    "a function bound by an aggregate": AGGREGATE.replace("BOUND", "Added()"),
    "a helper of a process function": """
        from tidegate.windowing import ProcessWindowFunction
        def rate(count): return count FIX
        class Rated(ProcessWindowFunction):
            def process(self, key, ctx, elements): yield {"rate": rate(len(list(elements)))}
        made = Rated()
    """,
    "a helper of a helper that calls back": """
        def one(n): return other(n - 1) if n else 0
        def other(n): return one(n) FIX
        made = lambda a, b: one(a)
    """,
    "a table of pandas": """
        import pandas as pd
        RATES = pd.DataFrame({"currency": ["CHF", "EUR"], "rate": [1.0, 0.9 FIX]})
        made = lambda a, b: RATES["rate"].sum()
    """,
    "a label of a series": """
        import pandas as pd
        RATES = pd.Series([1, 2], index=[1, 2 FIX])
        made = lambda a, b: RATES.sum()
    """,
    "a table of Arrow": """
        import pyarrow as pa
        RATES = pa.table({"rate": [1.0, 0.9 FIX]})
        made = lambda a, b: RATES
    """,
    "a link of a chain of objects": """
        class Link:
            def __init__(self, n, following): self.n, self.following = f"it's \\"{n}\\"", following
        chain = None
        for n in range(40):
            chain = Link(n FIX, chain)
        made = lambda a, b: chain.n
    """,
    "a neighbour in a net of objects": """
        from dataclasses import dataclass, field
        @dataclass(eq=False)
        class Stop:
            n: int
            near: list = field(default_factory=list)
        net = [Stop(n) for n in range(30)]
        for stop in net:
            stop.near += [other for other in net if other.n != stop.n FIX]
        made = lambda a, b: net[0]
    """,
    "a constant of the module": """
        LIMIT = 5 FIX
        made = lambda a, b: a if a > LIMIT else b
    """,
    "a constant in a nested table": """
        LIMITS = {"a": [1, {2, 3}], "b": (4 FIX,)}
        made = lambda a, b: LIMITS[a]
    """,
    "a method of a base class": """
        from tidegate.windowing import ProcessWindowFunction
        class Base(ProcessWindowFunction):
            def process(self, key, ctx, elements): yield {"n": 1 FIX}
        class Mine(Base): pass
        made = Mine()
    """,
    "a property": """
        class Mine:
            @property
            def limit(self): return 1 FIX
        made = Mine()
    """,
    "a static method": """
        class Mine:
            @staticmethod
            def limit(): return 1 FIX
        made = Mine()
    """,
    "a constant of a class": """
        class Mine:
            LIMIT = 1 FIX
        made = Mine()
    """,
    "an attribute": """
        class Mine:
            def __init__(self): self.limit = 1 FIX
        made = Mine()
    """,
    "a slot": """
        class Mine:
            __slots__ = ("limit",)
            def __init__(self): self.limit = 1 FIX
        made = Mine()
    """,
    "the object of a bound method": """
        class Mine:
            def __init__(self): self.limit = 1 FIX
            def reduce(self, a, b): return a
        made = Mine().reduce
    """,
    "a default": """
        def made(a, b, limit=1 FIX): return a
    """,
    "a default of a keyword": """
        def made(a, b, *, limit=1 FIX): return a
    """,
    "a helper behind a cache": """
        from functools import lru_cache
        @lru_cache
        def rate(n): return n FIX
        made = lambda a, b: rate(a)
    """,
    "a helper behind a decorator": """
        from functools import wraps
        def logged(function):
            @wraps(function)
            def call(*given): return function(*given)
            return call
        @logged
        def rate(n): return n FIX
        made = lambda a, b: rate(a)
    """,
    "a partial call": """
        from functools import partial
        made = partial(max, 1 FIX)
    """,
    "a function within a function": """
        def rate(n): return n FIX
        def made(a, b):
            def inner(n): return [rate(each) for each in n]
            return inner(a)
    """,
    "a class that a function makes": """
        class Tool:
            def rate(self, n): return n FIX
        made = lambda a, b: Tool().rate(a)
    """,
    "a length of time": """
        from datetime import timedelta
        PATIENCE = timedelta(minutes=1 FIX)
        made = lambda a, b: PATIENCE
    """,
    "an array": """
        import numpy as np
        WEIGHTS = np.array([1, 2 FIX])
        made = lambda a, b: WEIGHTS
    """,
    "a pattern": """
        import re
        PATTERN = re.compile("a" * (1 FIX))
        made = lambda a, b: PATTERN
    """,
}


def module(text: str, **given: Any) -> ModuleType:
    made = ModuleType("mine")
    made.__dict__.update(given)
    exec(compile(textwrap.dedent(text), "mine.py", "exec", dont_inherit=True), made.__dict__)
    return made


def of(text: str, fix: str = "", **given: Any) -> str:
    return fingerprint(module(text.replace("FIX", fix), **given).made)


@pytest.mark.parametrize("what", CORRECTED)
def test_a_correction_is_seen_and_the_same_code_is_the_same(what: str) -> None:
    text = CORRECTED[what]
    assert of(text) == of(text)
    assert of(text) != of(text, "+ 2")
    moved = f"# a comment\n\n\n{textwrap.dedent(text)}"
    assert of(moved) == of(text)


def test_what_an_aggregate_is_bound_to_counts_though_its_value_does_not_show_it() -> None:
    """A function from a registry is not a name in the code of `bind`."""
    text = AGGREGATE.replace("BOUND", "_FUNCTIONS['value'][0]()") + "    _FUNCTIONS = {}\n"

    def bound(fix: str) -> str:
        own = module(text.replace("FIX", fix))
        own._FUNCTIONS["value"] = [own.Added]
        windows = Windows(TumblingEventTimeWindows.of(1000), aggregate={"total": own.made})
        return bind(hourly_pipeline(compute=windows), EVENTS, EVENTS).fingerprint

    assert bound("") == bound("")
    assert bound("") != bound("* 2")


@pytest.mark.parametrize(
    "text",
    [
        """
        class Any:
            def __getattr__(self, name): return None
        whatever = Any()
        made = lambda a, b: whatever.limit
        """,
        """
        class Strict:
            def __getattr__(self, name): raise RuntimeError(name)
        strict = Strict()
        made = lambda a, b: strict
        """,
        """
        chain = None
        for n in range(5_000):
            chain = [chain]
        made = lambda a, b: chain
        """,
        """
        class Link:
            def __init__(self, following): self.following = following
        chain = None
        for n in range(5_000):
            chain = Link(chain)
        made = lambda a, b: chain
        """,
    ],
    ids=["answers to every name", "fails for every name", "deep lists", "deep objects"],
)
def test_odd_values_end_no_pipeline(text: str) -> None:
    assert of(text) == of(text)


def test_many_values_are_told_by_a_few_bytes() -> None:
    zeros, ones = (of("made = lambda a, b: ARRAY[a]", ARRAY=np.full(3_000_000, n)) for n in (0, 1))
    assert zeros != ones
    described = describe(module("made = lambda a, b: ARRAY[a]", ARRAY=np.zeros(3_000_000)).made)
    assert len(repr(described)) < 10_000


def test_members_of_a_set_are_told_apart_from_each_other() -> None:
    text = """
        def helper(n): return n
        def one(n): return helper(n)
        def other(n): return helper(n) + 1
        both = ORDER([one, other])
        made = lambda a, b: both
    """
    found = set()
    for way in (iter, reversed):

        class Ordered(frozenset):  # type: ignore[type-arg]
            """A set with an order of its own, since each process has a different one."""

            def __iter__(self, way: Any = way) -> Any:
                return way(sorted(super().__iter__(), key=lambda code: code.__name__))

        found.add(of(text, ORDER=Ordered))
    assert len(found) == 1


def test_a_pipelines_fingerprint_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream puts it into the manifest of each epoch."""
    made: list[int] = []
    monkeypatch.setattr("tidegate.pipelines.definition.binding.fingerprint", lambda *values: made.append(1) or "0" * 16)
    bound = bind(hourly_pipeline(), EVENTS, EVENTS)
    assert bound.fingerprint == bound.fingerprint
    assert len(made) == 1


def test_what_no_code_of_ones_own_says_is_told_by_its_name() -> None:
    text = """
        import logging, threading
        LOG, LOCK = logging.getLogger("mine"), threading.Lock()
        def made(a, b):
            with LOCK:
                LOG.info("%s", a)
            return a
    """
    before = of(text)
    module(text).LOG.isEnabledFor(10)
    assert of(text) == before


def test_a_field_that_says_so_is_left_out_at_its_default() -> None:
    text = """
        from dataclasses import dataclass, field
        @dataclass(frozen=True)
        class Mine:
            size: int = 1
            FIELD
        Mine.__module__ = "tidegate.mine"
        made = lambda *given: Mine(*given)
    """

    def described(field: str, *given: Any) -> str:
        return fingerprint(module(text.replace("FIELD", field)).made(*given))

    added = f'sorted: bool = field(default=False, metadata={{"{LEFT_OUT_AT_DEFAULT}": True}})'
    assert described("") == described(added) != described(added, 1, True)
    assert described("") != described("sorted: bool = False")


FINGERPRINT = "from tidegate.pipelines.definition.fingerprint import fingerprint"

PIPES = """
from dataclasses import dataclass
import helpers
NAMES = {"a", "b", "c"}
@dataclass(frozen=True)
class Mine:
    size: int
    def rate(self, n):
        from helpers import least
        return least(helpers.rate(n)) if n in {"p", "q", ("r", frozenset({"s", "t"}))} else NAMES
made = Mine(3)
"""

HELPERS = """
LEAST = 1
def least(n): return max(n, LEAST)
def rate(n): return n + 1
"""


def told_by_a_process(folder: Path, seed: str, helpers: str = HELPERS) -> str:
    """Return the fingerprint that a separate process computes, with the modules in a folder."""
    folder.mkdir()
    (folder / "pipes.py").write_text(PIPES)
    (folder / "helpers.py").write_text(helpers)
    code = f"import pipes\n{FINGERPRINT}\nprint(fingerprint(pipes.made))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": f".:{folder}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_neither_the_process_nor_the_place_of_the_files_counts(tmp_path: Path) -> None:
    """One of the modules has the name of a standard library module."""
    found = {told_by_a_process(tmp_path / f"at{seed}", seed, "\n" * int(seed) + HELPERS) for seed in ("1", "2", "3")}
    assert len(found) == 1
    assert told_by_a_process(tmp_path / "global", "1", HELPERS.replace("n + 1", "n + 2")) not in found
    assert told_by_a_process(tmp_path / "imported", "1", HELPERS.replace("LEAST = 1", "LEAST = 0")) not in found


def test_a_package_that_is_installed_is_followed_only_from_within_itself(tmp_path: Path) -> None:
    """A pipeline may be installed too; what it uses from other packages is identified by name."""
    site = tmp_path / "site-packages"
    for name, text in {
        "ours/__init__.py": "",
        "ours/pipes.py": "import theirs\nfrom ours.tools import rate\nmade = lambda a, b: theirs.rate(rate(a))",
        "ours/tools.py": "def rate(n): return n",
        "theirs/__init__.py": "def rate(n): return n",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)

    def told() -> str:
        code = f"import ours.pipes\n{FINGERPRINT}\nprint(fingerprint(ours.pipes.made))"
        environment = {"PYTHONPATH": f".:{site}", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    before = told()
    (site / "theirs/__init__.py").write_text("def rate(n): return 2 * n")
    assert told() == before
    (site / "ours/tools.py").write_text("def rate(n): return 3 * n")
    assert told() != before
