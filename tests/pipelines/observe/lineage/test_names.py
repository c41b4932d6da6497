"""Names of datasets by OpenLineage's naming convention, compared with the helpers of its own client."""

from __future__ import annotations

import pytest
from openlineage.client.naming.dataset import ABFSS, GCS, HDFS, S3, WASBS, DatasetNaming, LocalFileSystem

from tidegate.pipelines.observe.lineage.names import DatasetName, dataset_name

ACCOUNT = {"AZURE_STORAGE_ACCOUNT_NAME": "acme", "azure_storage_account_key": "hush"}


@pytest.mark.parametrize(
    ("path", "convention"),
    [
        ("/lake/raw/events", LocalFileSystem("/lake/raw/events")),
        ("/lake/raw/../events/", LocalFileSystem("/lake/events")),
        ("file:///lake/my%20events", LocalFileSystem("/lake/my events")),
        ("s3://lake/raw/events", S3("lake", "raw/events")),
        ("s3a://lake/raw/events/", S3("lake", "raw/events")),
        ("gcs://lake/raw/events", GCS("lake", "raw/events")),
        ("gs://lake/raw/events", GCS("lake", "raw/events")),
        ("abfs://lake@acme.dfs.core.windows.net/events", ABFSS("lake", "acme", "events")),
        ("az://lake/events", ABFSS("lake", "acme", "events")),
        ("abfss://lake/events", ABFSS("lake", "acme", "events")),
        ("abfss://lake@other.dfs.core.windows.net/events", ABFSS("lake", "other", "events")),
        ("wasb://lake@acme.dfs.core.windows.net/events", WASBS("lake", "acme", "events")),
        ("hdfs://node:8020/raw/events", HDFS("node", "8020", "/raw/events")),
    ],
)
def test_a_place_has_the_name_that_other_tools_give_it(path: str, convention: DatasetNaming) -> None:
    assert dataset_name(path, ACCOUNT) == DatasetName(convention.get_namespace(), convention.get_name())


@pytest.mark.parametrize("scheme", ["az", "abfs", "abfss"])
def test_the_environment_may_name_the_account(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    place = f"{scheme}://lake/events"
    assert dataset_name(place).namespace == ABFSS("lake", "acme", "events").get_namespace()
    options = {"account_name": "other"}
    assert dataset_name(place, options).namespace == ABFSS("lake", "other", "events").get_namespace()


def test_a_store_that_the_convention_does_not_name_keeps_its_scheme() -> None:
    assert dataset_name("az://lake/events") == DatasetName("az://lake", "/events")
    assert dataset_name("ofs://service/volume/events") == DatasetName("ofs://service", "/volume/events")
