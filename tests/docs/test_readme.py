"""The first screen of the README: a picture of a real run, three numbers that are so, and the two commands."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FIRST_SCREEN = "\n".join(README.splitlines()[:30])


def test_the_picture_is_there_and_light() -> None:
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", FIRST_SCREEN)
    data = (ROOT / picture).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1200, 800)
    assert len(data) < 300_000
    assert "picture" in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_first_screen_has_three_sentences_with_a_number_each() -> None:
    reasons = re.findall(r"^- \*\*\w+\.\*\* (.*?)(?=^- |^$)", FIRST_SCREEN, re.DOTALL | re.MULTILINE)
    assert len(reasons) == 3
    assert [reason for reason in reasons if not re.search(r"\d", reason)] == []


def test_the_number_of_conformance_cases_is_so() -> None:
    cases = [json.loads(file.read_text())["cases"] for file in (ROOT / "tests" / "conformance").glob("*.json")]
    # One case is Spark's: that of the key groups.
    (number,) = re.findall(r"(\d+) \[conformance cases\]", FIRST_SCREEN)
    assert int(number) == sum(map(len, cases)) - 1


def test_the_ratio_to_spark_is_that_of_the_benchmarks() -> None:
    (number,) = re.findall(r"(\d+\.\d) times as fast as with Spark's own\s+`session_window`", FIRST_SCREEN)
    page = (ROOT / "docs" / "benchmarks" / "quick.md").read_text()
    (measured,) = re.findall(r"\| batch, session windows, beside Spark \| (\d+\.\d+) x", page)
    assert float(number) <= float(measured) < float(number) + 0.1, "say less where it is measured anew"


def test_the_number_of_kills_is_that_of_the_test() -> None:
    (number,) = re.findall(r"kills a stream (\d+) times", FIRST_SCREEN)
    text = (ROOT / "tests" / "recovery" / "test_kills.py").read_text()
    assert f'"TIDEGATE_TEST_KILLS", "{number}"' in text


def test_the_two_commands_stand_on_the_first_screen() -> None:
    (block,) = re.findall(r"^```\n(.*?)^```$", FIRST_SCREEN, re.DOTALL | re.MULTILINE)
    assert [line.partition("#")[0].strip() for line in block.splitlines()] == ["make run", "make test"]


def test_the_comparison_has_a_cell_for_each_system_in_every_row() -> None:
    (section,) = re.findall(r"^## Compared with other tools\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert [name for name in ("Tidegate", "Spark", "Flink", "dbt") if not any(name in cell for cell in rows[0])] == []
    assert [row for row in rows if len(row) != 5 or not all(row[1:])] == []


def test_examples_import_from_tidegate() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"^from (tidegate[\w.]*) import", "\n".join(blocks), re.MULTILINE)) == {"tidegate"}
