"""The warehouse and the artifacts of a project, as named in its settings.

The stores are imported on use, because reading tidegate.toml alone must stay fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.pipelines.definition.config.settings import Config

if TYPE_CHECKING:
    from tidegate.pipelines.storage.artifacts import Artifacts
    from tidegate.pipelines.storage.warehouse import Warehouse


def warehouse_of(config: Config, place: str = "") -> Warehouse:
    """Return the warehouse that tidegate.toml names, with credentials that are also those of another place.

    Raises:
        UsageError: the credentials of its object store are not available.
    """
    from tidegate.pipelines.storage.credentials import complete
    from tidegate.pipelines.storage.warehouse import Warehouse, is_local

    in_bucket = next((each for each in (config.warehouse_uri, place) if not is_local(each)), "")
    return Warehouse(config.warehouse_uri, complete(config.storage_options, config.connection, in_bucket))


def artifacts_of(config: Config) -> Artifacts:
    """Return the artifacts of a project.

    Raises:
        UsageError: the credentials of their object store are not available.
    """
    from tidegate.pipelines.storage.artifacts import artifacts_at
    from tidegate.pipelines.storage.credentials import complete

    place = config.artifacts_uri
    options = complete(config.storage_options, config.connection, place) if "://" in place else {}
    return artifacts_at(place, options)
