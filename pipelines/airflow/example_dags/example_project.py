"""The DAGs of every pipeline in the tidegate.toml next to this file: backfill, stream and quality."""

from __future__ import annotations

from pathlib import Path

from tidegate.pipelines.airflow import project_dags

globals().update(project_dags(Path(__file__).parent / "tidegate.toml"))
