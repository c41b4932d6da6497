"""Drawn sources are read in a bucket as on disk: features of Delta, and files of any name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.property import test_delta_features, test_file_names
from tests.store.lives import upload
from tests.store.server import S3Server, options_of
from tidegate.pipelines.storage.warehouse import Warehouse

Brought = Callable[[Path], Warehouse]
ROOT = "lake of é, a+b=c & d~'(e);@!$"


@pytest.fixture(scope="module")
def brought(server: S3Server) -> Brought:
    """Copies a folder into a bucket, below a folder of its own."""
    server.make_bucket("drawn-sources")

    def bring(folder: Path) -> Warehouse:
        key = f"{ROOT}/{uuid.uuid4().hex}"
        upload(server, folder, "drawn-sources", key)
        return Warehouse(f"s3://drawn-sources/{key}", options_of(server.endpoint))

    return bring


@settings(max_examples=6)
@given(test_delta_features.files())
def test_a_table_with_drawn_features_is_read_in_a_bucket(brought: Brought, drawn: dict[str, Any]) -> None:
    test_delta_features.holds(drawn, brought)


@settings(max_examples=3)
@given(test_file_names.NAMES)
def test_files_of_any_name_are_read_in_a_bucket(brought: Brought, names: list[str]) -> None:
    test_file_names.placed(names, brought=brought)
