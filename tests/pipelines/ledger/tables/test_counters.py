"""Every number that an epoch counts is in one list, and the tables keep what the list says."""

from __future__ import annotations

from tidegate.pipelines.definition import counters, epochs
from tidegate.windowing.operators.counters import Counters


def test_the_list_has_all_that_operators_count() -> None:
    assert set(Counters().by_name()) <= {counter.name for counter in counters.COUNTERS}


def test_names_are_unique_and_each_counter_says_what_it_counts() -> None:
    names = [counter.name for counter in counters.COUNTERS]
    assert len(set(names)) == len(names)
    assert all(counter.meaning for counter in counters.COUNTERS)


def test_table_epochs_keeps_every_counter_that_is_kept_and_no_other() -> None:
    kept = {counter.name for counter in counters.KEPT}
    fields = {field.name: field for field in epochs.SCHEMA}
    assert kept <= set(fields)
    assert not {counter.name for counter in counters.COUNTERS if not counter.is_kept} & set(fields)
    for counter in counters.KEPT:
        assert fields[counter.name].nullable is counter.is_younger
        assert fields[counter.name].metadata[b"comment"].decode() == counter.meaning


def test_each_range_of_key_groups_keeps_the_counters_of_shards_in_their_order() -> None:
    shard = epochs.SCHEMA.field("shards").type.value_type
    assert shard.names == ["first", "last", *counters.OF_SHARDS]
    assert set(counters.OF_SHARDS) <= set(counters.OF_TASKS)


def test_what_becomes_of_rows_adds_up_without_the_rows_themselves() -> None:
    assert counters.FATES == ("on_time", "late", "no_window", "rejected", "dropped")
    assert counters.filtered({"on_time": 1, "late": 2, "no_window": 4, "rejected": 8, "dropped": 16}) == 28
    assert counters.fired({"fired_early": 1, "fired_on_time": 2, "fired_late": 4}) == 7
