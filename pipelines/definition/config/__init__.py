"""tidegate.toml: the one place that names the warehouse, Spark's settings and the pipelines.

DAG files and the command line read only this file, so adding a pipeline to a project requires no other change.
Importing this package does not import Spark.
"""

from tidegate.pipelines.definition.config.file import config_of, find_config, load_config
from tidegate.pipelines.definition.config.settings import (
    ANY_START,
    FILE_NAME,
    RESERVED,
    Config,
    EngineName,
    MetricsSettings,
    Notifier,
    PartitionUnit,
    PipelineEntry,
    SourceAsset,
    Suites,
    TaskArguments,
    WindowsTable,
)
from tidegate.pipelines.definition.environment import CONFIG_FILE as ENVIRONMENT
from tidegate.pipelines.definition.environment import LEASE_NOTE

__all__ = [
    "ANY_START",
    "ENVIRONMENT",
    "FILE_NAME",
    "LEASE_NOTE",
    "RESERVED",
    "Config",
    "EngineName",
    "MetricsSettings",
    "Notifier",
    "PartitionUnit",
    "PipelineEntry",
    "SourceAsset",
    "Suites",
    "TaskArguments",
    "WindowsTable",
    "config_of",
    "find_config",
    "load_config",
]
