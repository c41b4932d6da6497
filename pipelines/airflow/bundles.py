"""Projects in DAG bundles: their data must be outside of Airflow's copies of the bundle."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tidegate.pipelines.definition.config import Config, load_config
from tidegate.pipelines.errors import UsageError

_PLACES = ("warehouse", "work", "artifacts")


def check_outside_bundles(config: Config) -> None:
    """Refuse paths that are relative to a tidegate.toml in Airflow's copy of a DAG bundle.

    Raises:
        UsageError: the next version of the bundle would start on an empty warehouse; the error names the settings.
    """
    from airflow.sdk.configuration import conf

    given = conf.get("dag_processor", "dag_bundle_storage_path", fallback=None)
    copies = Path(given or Path(tempfile.gettempdir(), "airflow", "dag_bundles"))
    if not config.root.resolve().is_relative_to(copies.resolve()):
        return
    places = {name: getattr(config, name) for name in _PLACES}
    relative = [
        name for name, place in places.items() if place and "://" not in place and not Path(place).is_absolute()
    ]
    if relative:
        raise UsageError(
            f"{config.file} is Airflow's copy of a version of a DAG bundle, and the next version has a different "
            f"folder: `{'`, `'.join(relative)}` can't be relative to it. Give an absolute path or a URI"
        )


def check_file_outside_bundles(config_file: str) -> None:
    """Run `check_outside_bundles` for a tidegate.toml. If it can't be read, the command itself reports that.

    Raises:
        UsageError: as in `check_outside_bundles`.
    """
    try:
        config = load_config(Path(config_file))
    except UsageError:
        return
    check_outside_bundles(config)
