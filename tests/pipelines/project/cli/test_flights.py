"""`tidegate flights`: what the example pipelines read is there, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tidegate.pipelines.examples.flights.source import SCHEMA
from tidegate.pipelines.project.cli import run


def test_the_source_of_the_example_is_written_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tidegate.toml").write_text('warehouse = "tables"\n')
    command = ["flights", "--config", str(tmp_path / "tidegate.toml"), "--json", "--days"]
    assert run([*command, "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    table = DeltaTable(told["table"])
    assert told["table"] == str(tmp_path / "tables" / "flights")
    assert set(SCHEMA.names) == {field.name for field in table.schema().fields}
    assert told["rows"] == table.count() > 500, "a day of flights from New York"
    assert run([*command, "2"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert run([*command, "400"]) == 2
    assert "--days 400" in json.loads(capsys.readouterr().out)["message"]
