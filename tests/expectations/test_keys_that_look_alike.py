"""Rules over rows in pandas tell keys apart that pandas itself takes for one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.expectations.broken import broken_by_rules
from tests.lake import DAY0, Lake, hourly_pipeline, session_pipeline
from tests.pipelines.looping import available
from tidegate.expectations.pinned import pin

KEYS = [
    (pa.string(), ["a\0b", "a\0c"]),
    (pa.string(), ["", "\0"]),
    (pa.string(), ["nan", None]),
    (pa.int64(), [2**53, 2**53 + 1, None]),
    (pa.timestamp("us", "UTC"), [DAY0, DAY0 + timedelta(microseconds=1), None]),
    (pa.binary(), [b"a\0b", b"a\0c", None]),
]


@pytest.mark.first(4)
@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=repr)
@pytest.mark.parametrize("make", [hourly_pipeline, session_pipeline])
def test_no_rule_takes_one_key_for_another(tmp_path: Path, kind: pa.DataType, keys: list[Any], make: Any) -> None:
    lake, pipeline = Lake(tmp_path), make(null_keys="keep")
    minutes = [5, 6, 7][: len(keys)]
    columns = {
        "user": pa.array([*keys, keys[0]], kind),
        "at": pa.array([DAY0 + timedelta(minutes=minute) for minute in (*minutes, 900)], pa.timestamp("us", "UTC")),
        "value": pa.array([1] * (len(keys) + 1)),
    }
    lake.write(pa.table(columns))
    available(lake, pipeline)
    pinned = pin(lake.tables(pipeline), pipeline)
    assert broken_by_rules(pinned) == set()
    windows = pinned.fresh
    assert len(windows) == len(keys)
    assert not windows.duplicated(["user"]).any(), "a suite of the pipeline's own sees them as they are, too"
    assert windows.groupby("user", dropna=False).ngroups == len(keys)
