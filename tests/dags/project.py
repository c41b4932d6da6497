"""A project with the tables of two good epochs in it, as DAG files and tasks see it."""

from __future__ import annotations

from pathlib import Path

from tests.expectations.quality_lake import QualityLake, session_lake


def write_project(folder: Path, *lakes: QualityLake, **settings: str) -> Path:
    """Write tables and tidegate.toml of some pipelines; settings go into their entries as TOML. The file."""
    lines = []
    for lake in lakes or (session_lake(),):
        entry = lake.write(folder).pipelines[lake.pipeline.name]
        lines += [f"[pipelines.{lake.pipeline.name}]", f'object = "{entry.object}"', "start = 2024-03-01"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
    file = folder / "tidegate.toml"
    file.write_text("\n".join(lines) + "\n")
    return file
