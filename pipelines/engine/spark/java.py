"""A check of the Java that starts Spark's JVM: the one of JAVA_HOME, else the first on the PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tidegate.pipelines.errors import UsageError

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
