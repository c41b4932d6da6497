"""A flipped bit in the footer of a file of tidegate's tables is found by `quality` and `verify`, before it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.lake import Lake, at, hourly_pipeline
from tidegate import Project
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.damaged_footers import damaged_footers
from tidegate.pipelines.ledger.tables.files import FOOTER
from tidegate.pipelines.storage.delta_log import statistics_in

pytestmark = pytest.mark.recovery

PIPELINE = hourly_pipeline(allowed_lateness=timedelta(hours=1))
TABLES = ("state", "results", "late", "epochs", "windows")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A pipeline with open windows, published windows and late rows."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    for moment in ("10:00", "14:20", "10:30", "15:10"):
        lake.append(*((user, at(moment), 1) for user in ("ann", "bob", "cem")))
        lake.project(PIPELINE).stream("hours")
    return lake


def path_of(lake: Lake, table: str) -> Path:
    return Path(lake.tables(PIPELINE).path(table))


def files_of(lake: Lake, table: str) -> list[Path]:
    return sorted(Path(uri) for uri in DeltaTable(str(path_of(lake, table))).file_uris())


@contextmanager
def flipped(file: Path, draw: st.DataObject) -> Iterator[None]:
    """Flip a bit of a file's footer for a while."""
    content = file.read_bytes()
    length = int.from_bytes(content[-8:-4], "little") + 8
    place, bit = draw.draw(st.integers(len(content) - length, len(content) - 1)), draw.draw(st.integers(0, 7))
    damaged = bytearray(content)
    damaged[place] ^= 1 << bit
    file.write_bytes(damaged)
    try:
        yield
    finally:
        file.write_bytes(content)


@given(draw=st.data())
def test_every_flipped_bit_is_found_in_every_table(lake: Lake, draw: st.DataObject) -> None:
    table = draw.draw(st.sampled_from(TABLES))
    tables, handle = lake.tables(PIPELINE), lake.tables(PIPELINE).open(table)
    file = draw.draw(st.sampled_from(files_of(lake, table)))
    with flipped(file, draw):
        assert damaged_footers(tables, table, handle) == {file.name}
    assert damaged_footers(tables, table, handle) == set()


@settings(max_examples=settings.default.max_examples // 10, phases=[Phase.generate])
@given(draw=st.data())
def test_neither_command_passes_or_ends_with_an_error_of_arrow(lake: Lake, draw: st.DataObject) -> None:
    project = lake.project(PIPELINE)
    table = draw.draw(st.sampled_from(TABLES))
    with flipped(draw.draw(st.sampled_from(files_of(lake, table))), draw):
        with pytest.raises(Refused, match=f"the footer of file .* of table .*/{table} is damaged"):
            project.verify("hours", sample="all")
        assert not passes(project)
    assert project.verify("hours", sample="all").to_dict()["faults"] == []
    assert passes(project)


def passes(project: Project) -> bool:
    """Return True if all checks of `quality` succeed. A table that it can't start without is refused."""
    with suppress(Refused):
        return project.quality.check("hours", all=True).success
    return False


def test_a_file_of_every_table_has_a_checksum_of_its_footer_even_after_a_checkpoint(lake: Lake) -> None:
    for table in TABLES:
        DeltaTable(str(path_of(lake, table))).create_checkpoint()
        log = lake.tables(PIPELINE).warehouse.log(str(path_of(lake, table)))
        names = [file.name for file in (path_of(lake, table) / "_delta_log").iterdir()]
        adds = log.added(DeltaTable(str(path_of(lake, table))).version(), names, ["stats"])
        for file in files_of(lake, table):
            assert len(statistics_in(adds[file.name])[FOOTER]) == 16
    for file in lake.snapshot(PIPELINE).manifest.publish["late"].files:
        assert FOOTER in json.loads(file.stats)
