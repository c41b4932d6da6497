"""The DAGs of every pipeline in tidegate.toml."""

from pathlib import Path

from tidegate.pipelines.airflow import project_dags

globals().update(project_dags(Path(__file__).parent.parent / "tidegate.toml"))
