"""Names of datasets by OpenLineage's naming convention, so that events of other tools name the same table.

| place | namespace | name |
|---|---|---|
| `/lake/events` | `file` | `/lake/events` |
| `s3a://lake/raw/events` | `s3://lake` | `raw/events` |
| `abfss://lake@acme.dfs.core.windows.net/events` | `abfss://lake@acme.dfs.core.windows.net` | `events` |
| `az://lake/events`, `abfss://lake/events` of account `acme` | `abfss://lake@acme.dfs.core.windows.net` | `events` |
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs"}
"""Schemes that the convention writes differently."""
_AZURE = frozenset({"az", "azure", "adl", "abfs", "abfss"})
"""Schemes of deltalake that may name only the container; the options or the environment name the account."""
_OF_OBJECTS = frozenset({"s3", "gs", "abfss", "wasbs"})
"""Stores whose names are keys of objects; others have paths, which begin with a slash."""
_ACCOUNT = ("azure_storage_account_name", "account_name")
"""Options with the account, in lower case. The first one is also an environment variable, in upper case."""


class DatasetName(NamedTuple):
    """Name of a dataset, unique within a namespace.

    Args:
        namespace: the store, such as `s3://lake`; `file` for the files of a machine.
        name: the path in it.
    """

    namespace: str
    name: str


def dataset_name(path: str, options: Mapping[str, str] | None = None) -> DatasetName:
    """Return the name of the table at an absolute path or URI; options are the warehouse's, as in deltalake.

    Example:
        >>> dataset_name("s3a://lake/raw/events/")
        DatasetName(namespace='s3://lake', name='raw/events')
    """
    if "://" not in path or path.startswith("file://"):
        local = unquote(path.removeprefix("file://")) if path.startswith("file://") else path
        return DatasetName("file", posixpath.normpath(local))
    given_scheme, _, place = path.partition("://")
    authority, _, key = place.rstrip("/").partition("/")
    scheme, name = _SCHEMES.get(given_scheme, given_scheme), key or "/"
    if given_scheme in _AZURE and "@" not in authority:
        settings = {option.lower(): value for option, value in (options or {}).items()}
        given = (settings[option] for option in _ACCOUNT if option in settings)
        account = next(given, os.environ.get(_ACCOUNT[0].upper()))
        if account is not None:
            return DatasetName(f"abfss://{authority}@{account}.dfs.core.windows.net", name)
    return DatasetName(f"{scheme}://{authority}", name if scheme in _OF_OBJECTS else f"/{key}")
