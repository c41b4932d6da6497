"""The machine that measures: its description, without its name or paths, and the processor time that was used."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import psutil


def describe_machine() -> str:
    """Return cores, memory, system and versions in one line."""
    memory = round(psutil.virtual_memory().total / 2**30)
    java = subprocess.run([_java(), "-version"], capture_output=True, text=True, check=True).stderr
    version_of_java = re.search(r'version "([^"]+)"', java)
    packages = ", ".join(f"{title} {version(name)}" for title, name in _PACKAGES.items())
    return (
        f"{len(os.sched_getaffinity(0))} cores of {_processor()}, {memory} GiB of memory, {platform.system()}, "
        f"Python {platform.python_version()}, "
        f"Java {version_of_java[1] if version_of_java else 'unknown'}, {packages}"
    )


_PACKAGES = {
    "Spark": "pyspark",
    "Delta": "delta-spark",
    "deltalake": "deltalake",
    "Arrow": "pyarrow",
    "NumPy": "numpy",
}


def processor_time() -> float:
    """Return the seconds of this process and of those that it started and that still run."""
    times = [each.cpu_times() for each in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(each.user + each.system for each in times)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists() and (model := re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)):
        return model[1]
    return platform.machine()
