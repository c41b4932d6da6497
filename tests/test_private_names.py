"""The product uses no private name of Spark: they differ between versions, and Spark Connect has none of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("pipelines", "expectations", "windowing", "dags")

PRIVATE = re.compile(r"_(j[a-z]\w*|sc|gateway)")
"""Attributes of Spark's objects that lead into its JVM."""
SPARKS = {"spark", "session", "sparkContext", "context", "frame", "SparkContext", "SparkSession", "DataFrame", "Column"}
"""Names of Spark's objects, whose private attributes may not be used."""
OURS = {"self", "cls"}


def private_names(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the private attributes of Spark's objects that a file reads, with their lines."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
        if owner in SPARKS or (owner not in OURS and PRIVATE.fullmatch(node.attr)):
            yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("room", ROOMS)
def test_no_private_name_of_spark_is_used(room: str) -> None:
    broken = [
        f"{file.relative_to(ROOT)}:{line}: {code}"
        for file in sorted((ROOT / room).rglob("*.py"))
        for line, code in private_names(file)
    ]
    assert broken == []


@pytest.mark.parametrize(
    "code",
    [
        "frame._jdf.queryExecution()",
        "SparkContext._gateway",
        "spark._jvm",
        "session._jsparkSession",
        "spark.sparkContext._jsc",
    ],
)
def test_the_search_finds_private_names(code: str, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(code)
    assert list(private_names(file))
