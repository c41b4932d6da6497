"""Messages name the types of columns as Spark SQL does."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.windowing.type_names import name_of


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.int8(), "tinyint"),
        (pa.int32(), "int"),
        (pa.bool_(), "boolean"),
        (pa.date32(), "date"),
        (pa.large_string(), "string"),
        (pa.decimal128(10, 2), "decimal(10,2)"),
        (pa.timestamp("us", tz="UTC"), "timestamp"),
        (pa.timestamp("ms", tz="Europe/Berlin"), "timestamp"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.list_(pa.int32()), "array<int>"),
        (pa.map_(pa.string(), pa.float32()), "map<string, float>"),
        (pa.struct([("os", pa.string()), ("app", pa.struct([("beta", pa.bool_())]))]), "struct<os: string, app: "),
        (pa.uint64(), "uint64"),
    ],
    ids=str,
)
def test_a_type_has_the_name_that_its_user_wrote(kind: pa.DataType, name: str) -> None:
    assert name_of(kind).startswith(name)
