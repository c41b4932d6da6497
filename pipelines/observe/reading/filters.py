"""Condition `where` of a view: comparisons of columns with values, as an Arrow expression.

It supports only comparisons for which Arrow agrees with Spark: those of integers, strings, booleans, dates and times.
Everything else belongs in the query, where the engine applies it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from pyarrow import fs
from sqlglot import exp

from tidegate.pipelines.errors import UsageError

_COMPARED: dict[type[exp.Expr], tuple[Any, type[exp.Expr]]] = {
    exp.EQ: (pc.Expression.__eq__, exp.EQ),
    exp.GT: (pc.Expression.__gt__, exp.LT),
    exp.GTE: (pc.Expression.__ge__, exp.LTE),
    exp.LT: (pc.Expression.__lt__, exp.GT),
    exp.LTE: (pc.Expression.__le__, exp.GTE),
}
"""Comparisons, each with the equivalent one for swapped sides."""

_NO_MATCH = re.compile(r"No match for FieldRef\.Name\((.*)\)")


def condition(text: str, schema: pa.Schema) -> pc.Expression:
    """Parse a condition into an expression.

    Args:
        text: comparisons with AND, such as `user = 'ann' AND window_end > '2024-03-01'`; also IN, BETWEEN and
            IS [NOT] NULL. Times without a zone are in UTC.
        schema: the columns.

    Raises:
        UsageError: the text is anything else, or names an unknown column.
    """
    return _expression(_parsed(text), text, schema)


def columns_of(text: str) -> list[str]:
    """Return the names of the columns in a condition, each once.

    Raises:
        UsageError: the text is not a condition.
    """
    return list(dict.fromkeys(column.name for column in _parsed(text).find_all(exp.Column)))


def _parsed(text: str) -> exp.Expr:
    try:
        return sqlglot.parse_one(text, read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise UsageError(f"where = {text!r} is not a condition: {str(error).splitlines()[0]}") from None


def expression_of(where: str | pc.Expression, schema: pa.Schema) -> pc.Expression:
    """Return an expression that fits the columns, from a condition as text or from an Arrow expression.

    Raises:
        UsageError: it does not fit.
    """
    if isinstance(where, str):
        return condition(where, schema)
    try:
        schema.empty_table().filter(where)
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = _NO_MATCH.sub(r"no column '\1'", str(error).splitlines()[0].partition(" in ")[0])
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise UsageError(f"where: {reason}. The columns are {columns}") from None
    return where


def _expression(node: exp.Expr, text: str, schema: pa.Schema) -> pc.Expression:
    if isinstance(node, exp.Paren):
        return _expression(node.this, text, schema)
    if isinstance(node, exp.And):
        return _expression(node.left, text, schema) & _expression(node.right, text, schema)
    if isinstance(node, exp.Not) and isinstance(node.this, exp.Is):
        return ~_expression(node.this, text, schema)
    if isinstance(node, exp.Is) and isinstance(node.this, exp.Column) and isinstance(node.expression, exp.Null):
        return pc.field(_column(node.this, text, schema).name).is_null()
    if isinstance(node, exp.In) and isinstance(node.this, exp.Column) and node.expressions:
        field = _field(node.this, text, schema)
        values = [_scalar(item, field, text).as_py() for item in node.expressions]
        return pc.field(field.name).isin(pa.array(values, field.type))
    if isinstance(node, exp.Between) and isinstance(node.this, exp.Column):
        field = _field(node.this, text, schema)
        low, high = (_scalar(node.args[end], field, text) for end in ("low", "high"))
        return (pc.field(field.name) >= low) & (pc.field(field.name) <= high)
    if type(node) in _COMPARED:
        kind, column, value = type(node), node.this, node.expression
        if not isinstance(column, exp.Column):
            kind, column, value = _COMPARED[kind][1], value, column
        if isinstance(column, exp.Column):
            field = _field(column, text, schema)
            expression: pc.Expression = _COMPARED[kind][0](pc.field(field.name), _scalar(value, field, text))
            return expression
    raise _unfit(node.sql(dialect="spark"), text)


def _column(column: exp.Column, text: str, schema: pa.Schema) -> pa.Field:
    if column.table or column.name not in schema.names:
        raise UsageError(
            f"where = {text!r}: no column {column.sql(dialect='spark')}; the columns are {', '.join(schema.names)}"
        )
    return schema.field(column.name)


def _field(column: exp.Column, text: str, schema: pa.Schema) -> pa.Field:
    field = _column(column, text, schema)
    if not _is_comparable(field.type):
        raise _unfit(f"{column.name} of type {field.type}", text)
    return field


def _scalar(node: exp.Expr, field: pa.Field, text: str) -> pa.Scalar:
    """Return a literal as a value of a column's type."""
    inner = node.this if isinstance(node, exp.Cast | exp.Neg) else node
    value: Any = inner.this if isinstance(inner, exp.Boolean) else None
    if isinstance(inner, exp.Literal):
        value = inner.to_py()
    try:
        if isinstance(value, str) and pa.types.is_timestamp(field.type):
            moment = datetime.fromisoformat(value)
            value = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        elif isinstance(value, str) and pa.types.is_date(field.type):
            value = date.fromisoformat(value)
        if isinstance(node, exp.Neg):
            if type(value) is not int:
                raise ValueError
            value = -value
        kinds = {bool: pa.types.is_boolean, int: pa.types.is_integer, datetime: pa.types.is_timestamp}
        kinds |= {date: pa.types.is_date, str: _is_text}
        if type(value) not in kinds or not kinds[type(value)](field.type):
            raise ValueError
        return pa.scalar(value, field.type)
    except (ValueError, pa.ArrowTypeError, OverflowError):
        # sqlglot reads 'O''Brien' as two strings.
        quoted = '; write a string with a quote as "O\'Brien"' if isinstance(inner, exp.Concat) else ""
        raise UsageError(
            f"where = {text!r}: {node.sql(dialect='spark')} is not a value of column {field.name!r}, whose "
            f"type is {field.type}{quoted}"
        ) from None


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _unfit(part: str, text: str) -> UsageError:
    return UsageError(
        f"where = {text!r} has {part}: it can only have comparisons of columns with values (=, <, <=, >, "
        ">=, IN, BETWEEN, IS NULL) and AND, over integers, strings, booleans, dates and times. Put the rest in the "
        "query"
    )


def all_of(expressions: Iterable[pc.Expression | None]) -> pc.Expression | None:
    """Return the expression that is true if all given expressions are, or None if there are none."""
    both: pc.Expression | None = None
    for expression in expressions:
        if expression is not None:
            both = expression if both is None else both & expression
    return both


def files_that_may_match(files: Sequence[dict[str, Any]], schema: pa.Schema, where: pc.Expression | None) -> set[str]:
    """Return the names of the files that may have a row for which an expression is true; None keeps all files.

    No file is opened: the files of a table come with the statistics of its log.
    """
    if where is None:
        return {file["path"] for file in files}
    # This import is slow, and most commands don't need it.
    import pyarrow.dataset as ds

    columns = [field.name for field in schema if _is_comparable(field.type)]
    nowhere, parquet = fs.LocalFileSystem(), ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(
            file["path"],
            nowhere,
            partition_expression=all_of([pc.scalar(True), *(_bounds(file, schema.field(name)) for name in columns)]),
        )
        for file in files
    ]
    dataset = ds.FileSystemDataset(fragments, schema, parquet, nowhere)
    return {fragment.path for fragment in dataset.get_fragments(filter=where)}


def _bounds(file: dict[str, Any], field: pa.Field) -> pc.Expression | None:
    """Return an expression that is true for every value of a column in a file, or None if nothing is known about it."""
    least, most = (file.get(f"{end}.{field.name}") for end in ("min", "max"))
    if least is None or most is None:
        return None
    column = pc.field(field.name)
    between = (column >= pa.scalar(least, field.type)) & (column <= pa.scalar(most, field.type))
    return between if file.get(f"null_count.{field.name}") == 0 else between | column.is_null()


def _is_comparable(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_date)
    return any(kind(type_) for kind in kinds) or (pa.types.is_timestamp(type_) and type_.tz == "UTC")
