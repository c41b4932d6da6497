"""Measure the growth of our cost with events, keys, open windows, sizes of epochs and shards, up to 50 million events.

    python -m benchmarks.scaling [events keys open epochs shard hot large large_hot large_local] [--quick] [--json FILE]

Everything runs in a Spark session on two cores and writes results and state. Without arguments all parts are measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.bench import Bench, Run, bench_of, typical_run
from benchmarks.events import START, EventSet, events_of, keys_of_group, one_each
from benchmarks.figures import Figure, Wanted, tell
from benchmarks.memory import PeakMemory
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.local import LocalEngine

MILLION = 1_000_000
SMALL_EPOCH = Wanted("at most", 0.2)
"""Bound on the seconds of an epoch of 1,000 events with 10,000 open windows."""
MANY_WINDOWS = Wanted("at most", 6)
"""Bound on the seconds of an epoch of 100,000 events with 10 million open windows."""
HOT = Wanted("at most", 1.5)
"""Bound on the cost with half of all events in one key, as a ratio to even keys."""
SHARDS = 100
ONE_OF_SHARDS = Wanted("at most", 0.02)
"""Bound on the state that an epoch writes whose keys lie in one of 100 shards, as a ratio to one that touches all."""


def events(bench: Bench, quick: bool) -> Iterator[Figure]:
    """Measure backfills of more and more events of 100,000 keys."""
    for count in (MILLION, 5 * MILLION) if quick else (MILLION, 5 * MILLION, 20 * MILLION, 50 * MILLION):
        run = _batch(bench, EventSet(count), f"events-{count}")
        yield Figure("backfill by events", run.seconds, "s", detail=str(run), size=count)


def keys(bench: Bench, quick: bool) -> Iterator[Figure]:
    """Measure backfills of equally many events of more and more keys."""
    count = MILLION if quick else 5 * MILLION
    for number in (1_000, 100_000, MILLION) if quick else (1_000, 10_000, 100_000, MILLION, 10 * MILLION):
        run = _batch(bench, EventSet(count, number), f"keys-{number}")
        yield Figure(f"backfill of {count:,} events by keys", run.seconds, "s", detail=str(run), size=number)


def open_windows(bench: Bench, quick: bool) -> Iterator[Figure]:
    """Measure epochs over more and more windows that stay open."""
    for windows in (10_000, 100_000) if quick else (10_000, 100_000, MILLION, 10 * MILLION):
        runs = over_open_windows(bench, windows, [1_000] * 6)
        detail = str(typical_run(runs))
        seconds = median(run.seconds for run in runs)
        yield Figure("epoch of 1,000 events by open windows", seconds, "s", detail=detail, size=windows)
    windows = MILLION if quick else 10 * MILLION
    run = typical_run(over_open_windows(bench, windows, [100_000] * 3))
    wanted = None if quick else MANY_WINDOWS
    what = f"epoch of 100,000 events, {windows:,} open windows"
    yield Figure(what, run.seconds, "s", wanted, str(run))


def epochs(bench: Bench, quick: bool) -> Iterator[Figure]:
    """Measure epochs of more and more events over 10,000 open windows."""
    small = typical_run(over_open_windows(bench, 10_000, [1_000] * (10 if quick else 30)))
    yield Figure("epoch of 1,000 events, 10,000 open windows", small.seconds, "s", SMALL_EPOCH, str(small))
    for count in (1_000, 10_000, 100_000, MILLION):
        run = small if count == 1_000 else typical_run(over_open_windows(bench, 10_000, [count] * 3))
        yield Figure("epoch over 10,000 open windows by events", run.seconds, "s", detail=str(run), size=count)


def hot(bench: Bench, quick: bool) -> Iterator[Figure]:
    """Compare a key with half of all events with even keys, in turns."""
    count, rounds = (2 * MILLION, 1) if quick else (5 * MILLION, 3)
    even, skewed = (replace(bench, name=f"{name}-{count}") for name in ("even", "hot"))
    even.write(EventSet(count))
    skewed.write(EventSet(count, hot=0.5))
    even.batch("session"), skewed.batch("session")
    pairs = [(even.batch("session"), skewed.batch("session")) for _ in range(rounds)]
    even_run, hot_run = (typical_run([pair[side] for pair in pairs]) for side in (0, 1))
    detail = f"even {even_run.seconds:.2f} s, hot {hot_run.seconds:.2f} s ({hot_run})"
    yield Figure("half of all events in one key", hot_run.seconds / even_run.seconds, "x", HOT, detail)


def shard(bench: Bench, quick: bool) -> Iterator[Figure]:
    """Compare epochs whose keys all lie in one of 100 shards with epochs that touch every shard, in turns."""
    windows, count, rounds = (100_000 if quick else MILLION), 1_000, 3
    sharded = replace(bench, name=f"shards-{windows}", shards=SHARDS)
    sharded.append(one_each(windows, windows, START))
    for _ in range(1 + rounds):
        sharded.append(one_each(count, windows, START))
        sharded.append(events_of(keys_of_group(windows, 0, SHARDS), count, START))
    with sharded.project() as config:
        runs = sharded.epochs("session", config)
        written = [state_written(config, "session", epoch) for epoch in range(1, 1 + len(runs))]
    every, single = typical_run(runs[3::2]), typical_run(runs[4::2])
    what = f"epoch of {count:,} events, {windows:,} open windows in {SHARDS} shards"
    yield Figure(f"{what}: in all of them", every.seconds, "s", detail=str(every))
    yield Figure(f"{what}: in one of them", single.seconds, "s", detail=str(single))
    detail = f"all {written[3] / 2**20:.2f} MiB, one {written[4] / 2**20:.2f} MiB"
    yield Figure("state written for one of 100 shards", written[4] / written[3], "x", ONE_OF_SHARDS, detail)


def state_written(config: Config, pipeline: str, epoch: int) -> int:
    """Return the bytes of the state files that the tasks of an epoch wrote."""
    return sum(file.stat().st_size for file in Path(config.root).rglob(f"{pipeline}/state/state-{epoch:06d}-*.parquet"))


def large(bench: Bench, quick: bool, hot: float = 0, is_local: bool = False) -> Iterator[Figure]:
    """Measure one epoch of 50 million events, and the peak memory of every process.

    Args:
        bench: a bench with a driver of 3 GiB.
        quick: True for a tenth of the events.
        hot: share of all events that one key has.
        is_local: True for the local engine.
    """
    count = 5 * MILLION if quick else 50 * MILLION
    many = replace(bench, name=f"large-{hot}", per_commit=MILLION)
    many.write(EventSet(count, hot=hot))
    engine = LocalEngine() if is_local else None
    with PeakMemory() as memory:
        run = replace(many, engine=engine).batch("session")
    if engine is not None:
        engine.close()
    by = "engine local" if is_local else "driver of 3 GiB"
    what = f"one epoch of {count:,} events, {by}{f', {hot:.0%} of one key' if hot else ''}"
    yield Figure(what, run.seconds, "s", detail=str(run))
    for role, peaks in memory.by_role().items():
        each = " and ".join(f"{peak:,}" for peak in peaks)
        yield Figure(f"{what}: peak of {role}", float(max(peaks)), "MiB", detail=f"each: {each} MiB")


PARTS: dict[str, Callable[[Bench, bool], Iterator[Figure]]] = {
    "events": events,
    "keys": keys,
    "open": open_windows,
    "epochs": epochs,
    "shard": shard,
    "hot": hot,
    "large": large,
    "large_hot": partial(large, hot=0.5),
    "large_local": partial(large, is_local=True),
}


def over_open_windows(bench: Bench, windows: int, sizes: Sequence[int]) -> list[Run]:
    """Return the runs of epochs whose events all fall into windows that stay open.

    The epoch that opens the windows and a further one come first, and are left out.
    """
    opened = replace(bench, name=f"open-{windows}-{sizes[0]}-{len(sizes)}")
    opened.append(one_each(windows, windows, START))
    for size in (sizes[0], *sizes):
        opened.append(EventSet(size, windows, span=1_000, jitter=1).arrays())
    with opened.project() as config:
        return opened.epochs("session", config)[2:]


def _batch(bench: Bench, event_set: EventSet, name: str) -> Run:
    filled = replace(bench, name=name, per_commit=MILLION)
    filled.write(event_set)
    return filled.batch("session")


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    """Measure parts in one session; the large ones get a session of their own, with a driver of 3 GiB."""
    inside = [part for part in parts if not part.startswith("large")]
    if inside:
        with bench_of() as bench:
            # The first work of a session is slow, and the JVM compiles for some tens of epochs: this warms it up.
            _batch(bench, EventSet(MILLION // 5), "warm")
            over_open_windows(bench, 1_000, [100] * 30)
            for part in inside:
                yield from PARTS[part](bench, quick)
    for part in parts:
        if part not in inside:
            with bench_of(driver_memory="3g") as bench:
                yield from PARTS[part](bench, quick)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="smaller sizes, to be done in two minutes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tell(measure(options.parts or list(PARTS), options.quick), options.json)


if __name__ == "__main__":
    main()
