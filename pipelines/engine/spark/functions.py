"""Names of Spark's SQL functions, read without a JVM from the jar of the Spark that is installed."""

from __future__ import annotations

import re
import zipfile
from functools import cache
from pathlib import Path

from tidegate.pipelines.config import Config
from tidegate.pipelines.engine.spark.known_settings import known_settings, spark_homes

_REGISTRY = "org/apache/spark/sql/catalyst/analysis/FunctionRegistry$.class"
_NAME = re.compile(rb"\x01\x00.([a-z_][a-z_0-9]*)", re.DOTALL)
"""A text among the constants of a class: its kind, two bytes of its length, and the text itself."""
_OF_GRAMMAR = frozenset(
    {"timestampadd", "timestampdiff", "dateadd", "date_add", "datediff", "date_diff", "timediff", "identifier"}
)
"""Names that Spark's grammar knows and its registry does not."""
_ADDS = ("spark.sql.extensions", "spark.sql.catalogImplementation", "spark.sql.catalog.spark_catalog")
"""Settings that may bring functions of other libraries."""


def function_names(config: Config) -> frozenset[str] | None:
    """Return the names of all functions of a project's Spark, and some more; None if there may be functions of others.

    The names are the constants of the class that registers the functions, so they are those of the installed version.
    """
    if known_settings(config) is None or any(name in config.spark for name in _ADDS):
        return None
    return installed_names()


@cache
def installed_names() -> frozenset[str] | None:
    """Return the constants that may be names of functions; None without jars of Spark, as beside Connect's client."""
    jars = (jar for home in spark_homes() for jar in Path(home, "jars").glob("spark-catalyst_*.jar"))
    if (jar := next(jars, None)) is None:
        return None
    with zipfile.ZipFile(jar) as archive:
        try:
            constants = archive.read(_REGISTRY)
        except KeyError:
            return None
    return _OF_GRAMMAR | {name.decode() for name in _NAME.findall(constants)}
