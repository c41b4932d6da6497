"""Ticks of cron expressions: a stream and Airflow, which uses croniter, reopen late rows at the same times."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from croniter import CroniterError, croniter

from tidegate.pipelines.definition.config.cron import check_cron, has_tick
from tidegate.windowing.time import to_millis

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
PRESETS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@quarterly", "@yearly", "@annually")


def field(draw: random.Random, low: int, high: int, names: tuple[str, ...] = ()) -> str:
    def number() -> str:
        value = draw.randint(low, high)
        return draw.choice([str(value), *([names[value - low]] if names else [])])

    step, first = draw.randint(2, 9), draw.randint(low, high)
    # croniter reads a range that is as long as its field, such as 5-4 or 5-5, in a way of its own.
    last = low + (first - low + draw.randint(1, 3)) % (high - low + 1)
    texts = ["*", "*", f"*/{step}", f"{number()}/{step}", number(), f"{number()},{number()}", f"{first}-{last}"]
    return draw.choice(texts)


def expression(draw: random.Random) -> str:
    if draw.random() < 0.1:
        return draw.choice(PRESETS)
    of_month = draw.choice([field(draw, 1, 28), "?", "l"])
    of_week = draw.choice(
        [*[field(draw, 0, 6, WEEKDAYS)] * 4, f"{draw.randint(0, 6)}#{draw.randint(1, 4)}", "l5", "5-7"]
    )
    fields = [field(draw, 0, 59), field(draw, 0, 23), of_month, field(draw, 1, 12, MONTHS), of_week]
    return " ".join([*fields, *([str(draw.randint(0, 59))] if draw.random() < 0.1 else [])])


@pytest.mark.parametrize("seed", range(10))
def test_the_next_tick_is_that_of_croniter(seed: int) -> None:
    draw, compared = random.Random(seed), 0
    while compared < 60:
        value = check_cron(expression(draw))
        now = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=draw.randrange(366 * 86_400))
        try:
            tick = croniter(value, now).get_next(datetime)
        except CroniterError:
            continue
        compared += 1
        if tick - now > timedelta(days=1):
            assert not has_tick(value, to_millis(now), to_millis(now + timedelta(days=1))), (value, now, tick)
        else:
            assert not has_tick(value, to_millis(now), to_millis(tick) - 1), (value, now, tick)
            assert has_tick(value, to_millis(now), to_millis(tick)), (value, now, tick)


def test_a_tick_is_in_its_time_zone_also_after_the_clocks_changed() -> None:
    for day, hour in ((datetime(2024, 3, 30, tzinfo=UTC), 3), (datetime(2024, 4, 1, tzinfo=UTC), 2)):
        tick = to_millis(day + timedelta(hours=hour))
        assert has_tick("0 4 * * *", tick - 1000, tick, "Europe/Berlin")
        assert not has_tick("0 4 * * *", tick, tick + 3_000_000, "Europe/Berlin")


def test_a_tick_counts_once() -> None:
    tick = to_millis(datetime(2024, 3, 1, 4, tzinfo=UTC))
    assert has_tick("0 4 * * *", tick - 1000, tick)
    assert not has_tick("0 4 * * *", tick, tick + 1000)
    assert not has_tick("0 4 * * *", tick, tick)
