"""Delta's jars for Spark, resolved once by Spark's own resolver, and kept in one folder per version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tidegate.pipelines.engine.spark.connect import without_remote
from tidegate.pipelines.engine.spark.versions import MATCHING_PAIR, check_spark, delta_coordinates
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.remedy import Act, Remedy

JARS_ENVIRONMENT = "TIDEGATE_JARS"
LOCAL_ADDRESS_ENVIRONMENT = "SPARK_LOCAL_IP"
"""Spark's environment variable for the address of this machine."""
LOOPBACK = "127.0.0.1"


def jars_folder() -> Path:
    """Return the folder of the resolved jars: TIDEGATE_JARS, or a folder for these versions in the user's cache."""
    if named := os.environ.get(JARS_ENVIRONMENT):
        return Path(named).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tidegate" / f"jars-spark-{version('pyspark')}-delta-{version('delta-spark')}"


def find_jars() -> list[Path]:
    """Return the jars that a session needs in addition to Spark's own.

    Raises:
        UsageError: they were never resolved.
    """
    jars = sorted(jars_folder().glob("*.jar"))
    if not jars:
        raise UsageError(f"no Delta jars in {jars_folder()}", Remedy(Act.SET_UP))
    return jars


def resolve_jars() -> list[Path]:
    """Resolve Delta's jars with Spark's own resolver, if necessary, and return them.

    Jars that Spark already has are left out.

    Raises:
        UsageError: Spark is too old, or they can't be resolved; the message then has the resolver's reason.
    """
    spark, delta = check_spark(), version("delta-spark")
    folder = jars_folder()
    if jars := sorted(folder.glob("*.jar")):
        return jars
    check_java()
    import pyspark

    home = Path(pyspark.__file__).parent
    coordinates = delta_coordinates(spark, delta)
    ivy = folder.with_name(f"{folder.name}.resolving")
    shutil.rmtree(ivy, ignore_errors=True)
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local", "--packages", coordinates, "--conf", f"spark.jars.ivy={ivy}"),
        *("--class", "org.apache.spark.api.python.PythonGatewayServer", "spark-internal"),
    ]
    environment = {
        # Without an address, Spark looks up the machine's name, which may have none, as in the build of an image.
        LOCAL_ADDRESS_ENVIRONMENT: LOOPBACK,
        **without_remote(),
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(ivy / "connection")
    ivy.mkdir(parents=True)
    resolver = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    in_spark = {_artifact(jar.name) for jar in (home / "jars").glob("*.jar")}
    resolved = [jar for jar in (ivy / "jars").glob("*.jar") if _artifact(jar.name.split("_", 1)[1]) not in in_spark]
    if not resolved:
        raise UsageError(
            f"Delta's jars ({coordinates}) can't be resolved: {_reason(resolver.stderr)}. Setting up needs access to "
            f"Maven Central once; or put the jars into {folder} yourself. If Delta {delta} has no jars for Spark "
            f"{spark}, install a matching pair, such as `{MATCHING_PAIR}`"
        )
    ours = ivy / "ours"
    ours.mkdir()
    for jar in resolved:
        jar.rename(ours / jar.name)
    # The jars appear together, because a partly filled folder would look complete.
    ours.rename(folder)
    shutil.rmtree(ivy, ignore_errors=True)
    return sorted(folder.glob("*.jar"))


def _reason(stderr: str) -> str:
    """Return the line of the resolver's output that says why it failed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    unresolved = [line for line in lines if "unresolved" in line.lower()]
    # The last cause of an exception is its root, and comes after the exceptions that it led to.
    causes = [line for line in lines if line.startswith("Caused by: ")]
    exceptions = [line for line in lines if "exception" in line.lower()]
    found = [*unresolved[:1], *causes[-1:], *exceptions[:1], *lines[-1:], "it wrote no message"]
    return found[0]


def _artifact(name: str) -> str:
    """Return the name of a jar's artifact. A version may contain a hyphen, as in zstd-jni-1.5.7-3.jar."""
    return re.sub(r"-\d.*", "", name)


_MINIMUM_JAVA = 17


def check_java() -> str:
    """Return the version text of the Java that Spark will run on.

    Raises:
        UsageError: there is no Java on the PATH or in JAVA_HOME, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not Path(java).exists():
        raise UsageError(f"no Java found: install Java {_MINIMUM_JAVA} or newer, or set JAVA_HOME")
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    number = re.search(r'version "(\d+)', text)
    if number is None or int(number[1]) < _MINIMUM_JAVA:
        version = number[1] if number else "of an unknown version"
        raise UsageError(
            f"{java} is Java {version}: Spark needs {_MINIMUM_JAVA} or newer; install it, or set JAVA_HOME to its "
            "folder"
        )
    return text
