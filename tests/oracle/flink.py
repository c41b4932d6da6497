"""Flink's answers to cases: Oracle.java runs them with the harnesses of Flink's own tests."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.flink.environment import cache_folder

HERE = Path(__file__).parent
POM, SOURCE = HERE / "pom.xml", HERE / "Oracle.java"


def version() -> str:
    """Return the version of Flink."""
    found = re.search(r"<flink>(.*)</flink>", POM.read_text())
    assert found is not None
    return found[1]


def answers(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases with Flink's `expect`, and `expect_error` where Flink refuses a step.

    Raises:
        FileNotFoundError: there is no Maven or no Java compiler.
        subprocess.CalledProcessError: Maven, the compiler or the program failed.
    """
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    command = [_java("java"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g", "-cp", _class_path(), "Oracle"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Flink's driver failed: {done.stderr[-3000:]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["id"] for answer in found] == [case["id"] for case in cases]
    return [case | answer for case, answer in zip(cases, found, strict=True)]


def _class_path() -> str:
    """Copy the libraries and compile the driver, unless the cache has them, and return the class path."""
    folder = cache_folder(f"oracle-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}")
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        maven = shutil.which("mvn")
        if maven is None:
            raise FileNotFoundError("no mvn found: the oracle needs Maven to copy Flink's libraries")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}"]
        subprocess.run([maven, "-q", "-B", "-f", str(POM), *goal], check=True)
        (folder / "made").touch()
    libraries = str(folder / "lib" / "*")
    classes = folder / f"classes-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if not classes.exists():
        making = classes.with_suffix(f".{os.getpid()}")
        subprocess.run([_java("javac"), "-nowarn", "-d", str(making), "-cp", libraries, str(SOURCE)], check=True)
        making.rename(classes)
    return f"{classes}{os.pathsep}{libraries}"


def _java(name: str) -> str:
    return str(Path(os.environ["JAVA_HOME"], "bin", name)) if "JAVA_HOME" in os.environ else name
