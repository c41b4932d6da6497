"""Cases of kinds `key_groups` (Flink's own) and `spark_key_groups` (Spark's hash, which we use)."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.transcripts.case import CASE_FIELDS, Mismatch, Options, check_fields, expect_equal
from tests.transcripts.flink_keys import default_max_parallelism, flink_key_group, intersection
from tests.transcripts.steps import walk
from tidegate.windowing.keys import (
    KeySchema,
    check_max_parallelism,
    key_group_range,
    signed64,
    subtask_of,
)

_ANSWERS = {
    "ranges",
    "range",
    "covers",
    "key_group",
    "subtask",
    "default_max_parallelism",
    "intersection",
    "contains",
    "size",
}
_QUESTIONS = {"max_parallelism", "parallelism", "key", "a", "b"}
_SPARK_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
}


def flink_group(key: Any, max_parallelism: int) -> int:
    """Return Flink's key group of a key as cases write it: text, int, boolean, or `{"long": n}`."""
    if isinstance(key, dict):
        check_fields("key", key, {"long"})
        return flink_key_group(key["long"], max_parallelism, long=True)
    return flink_key_group(key, max_parallelism)


def run_key_groups(case: dict[str, Any], options: Options) -> None:
    """Run literal checks, each of which has the answer to its other fields."""
    check_fields(case["id"], case, CASE_FIELDS | {"checks", "expect_error"})
    walk(case, case["checks"], _check)


def _check(index: int, check: dict[str, Any]) -> None:
    check_fields(f"check {index}", check, _QUESTIONS | _ANSWERS)
    if "max_parallelism" in check:
        check_max_parallelism(check["max_parallelism"])
    asked = _ANSWERS & set(check)
    if "key" not in check and "subtask" in check:
        asked -= {"key_group"}
    if "range" in check:
        asked -= {"subtask"}
    if not asked:
        raise Mismatch("check", f"one of {sorted(_ANSWERS)}", sorted(check))
    for name in sorted(asked):
        expect_equal(f"{name} of {check}", check[name], _answer(name, check))


def _answer(name: str, check: dict[str, Any]) -> Any:
    match name:
        case "ranges":
            return [[r[0], r[-1]] for r in _ranges(check)]
        case "range":
            r = key_group_range(check["subtask"], check["parallelism"], check["max_parallelism"])
            return [r[0], r[-1]]
        case "covers":
            return _covers(check)
        case "key_group":
            return flink_group(check["key"], check["max_parallelism"])
        case "subtask":
            group = flink_group(check["key"], check["max_parallelism"]) if "key" in check else check["key_group"]
            return subtask_of(group, check["parallelism"], check["max_parallelism"])
        case "default_max_parallelism":
            return default_max_parallelism(check["parallelism"])
        case "intersection":
            met = intersection(_range(check["a"]), _range(check["b"]))
            return None if met is None else [met[0], met[-1]]
        case "contains":
            return [group for group in check["contains"] if group in _range(check["a"])]
        case _:
            return len(_range(check["a"]))


def _range(bounds: list[int]) -> range:
    return range(bounds[0], bounds[1] + 1)


def _ranges(check: dict[str, Any]) -> list[range]:
    parallelism = check["parallelism"]
    return [key_group_range(subtask, parallelism, check["max_parallelism"]) for subtask in range(parallelism)]


def _covers(check: dict[str, Any]) -> bool:
    """Return True if every group lies in the range of the subtask that owns it, and in no other."""
    groups = [group for r in _ranges(check) for group in r]
    owners = [subtask for subtask, r in enumerate(_ranges(check)) for _ in r]
    named = [subtask_of(group, check["parallelism"], check["max_parallelism"]) for group in groups]
    return groups == list(range(check["max_parallelism"])) and owners == named


def run_spark_key_groups(case: dict[str, Any], options: Options) -> None:
    """Run literal checks of Spark's hash and the key groups that follow from it."""
    check_fields(case["id"], case, CASE_FIELDS | {"checks"})
    for check in case["checks"]:
        check_fields("check", check, {"key", "types", "xxhash64", "key_group"})
        types = tuple(_spark_type(name) for name in check["types"])
        schema = KeySchema(tuple(f"k{i}" for i in range(len(types))), types)
        columns = [_spark_value(*pair) for pair in zip(check["key"], check["types"], strict=True)]
        key = schema.key_of(columns)
        expect_equal(f"xxhash64 of {check['key']}", check["xxhash64"], signed64(schema.hash_of(key)))
        came = {count: schema.key_group_of(key, int(count)) for count in check.get("key_group", {})}
        expect_equal(f"key groups of {check['key']}", check.get("key_group", {}), came)


def _spark_type(name: str) -> pa.DataType:
    if name.startswith("decimal("):
        precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    if name not in _SPARK_TYPES:
        raise Mismatch("types", f"one of {sorted(_SPARK_TYPES)}", name)
    return _SPARK_TYPES[name]


def _spark_value(value: Any, kind: str) -> Any:
    if value is None or not isinstance(value, str) or kind == "string":
        return value
    if kind == "date":
        return date.fromisoformat(value)
    if kind == "timestamp":
        return datetime.fromisoformat(value)
    return bytes.fromhex(value) if kind == "binary" else Decimal(value)
