"""The Spark tests with each pair of Spark and Delta, in separate environments: `make test-matrix`.

`python -m tests.matrix 4.0.5 4.1.4 -- tests/spark/test_reading.py` runs some pairs and some tests. The table at the end
belongs in docs/operations/versions.md.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".work" / "matrix"
UV = str(Path(sys.executable).with_name("uv"))
TESTS = ("-m", "spark and not long", "tests")


@dataclass(frozen=True, slots=True)
class Pair:
    """Versions that are tested together.

    Args:
        spark: version of pyspark.
        delta: version of delta-spark.
        is_supported: False if the pair must be refused, before any test.
    """

    spark: str
    delta: str
    is_supported: bool = True

    @property
    def folder(self) -> Path:
        """Return the folder of the environment."""
        return FOLDER / f"spark-{self.spark}-delta-{self.delta}"


PAIRS = (
    Pair("4.0.1", "4.2.0"),
    Pair("4.0.5", "4.4.0"),
    Pair("4.1.4", "4.4.0"),
    Pair("4.2.0", "4.4.0"),
    Pair("3.5.9", "3.3.3", is_supported=False),
    # Delta has no jars for Spark 4.3, and those of 4.4.1 are not on Maven Central.
    Pair("4.2.0", "4.4.1", is_supported=False),
    Pair("4.3.0", "4.4.1", is_supported=False),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a pair: a text for the table, True if it is as expected, and the seconds that it took."""

    text: str
    is_expected: bool
    seconds: float


class Failed(Exception):
    """A step before the tests failed; the message is its last line."""


def main(arguments: Sequence[str]) -> int:
    """Run the pairs named by their Spark version, by default all, and return the exit code."""
    names, tests = split(arguments)
    if unknown := names - {pair.spark for pair in PAIRS}:
        print(f"unknown Spark {', '.join(sorted(unknown))}: {', '.join(pair.spark for pair in PAIRS)}", file=sys.stderr)
        return 2
    outcomes = {pair: run(pair, tests or TESTS) for pair in PAIRS if not names or pair.spark in names}
    print("\n".join(table(outcomes)))
    return 0 if all(outcome.is_expected for outcome in outcomes.values()) else 1


def split(arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the versions before `--`, and the arguments for pytest after it."""
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    return set(arguments[:at]), list(arguments[at + 1 :])


def run(pair: Pair, tests: Sequence[str]) -> Outcome:
    """Create the environment of a pair, set it up as a user does, and run tests in it."""
    began = time.monotonic()
    print(f"Spark {pair.spark} with Delta {pair.delta}", flush=True)
    try:
        make_environment(pair)
        lend_store(pair)
        step("tidegate setup", [str(pair.folder / "bin" / "tidegate"), "setup"])
    except Failed as error:
        return Outcome(f"refused: {error}", not pair.is_supported, time.monotonic() - began)
    report = pair.folder / "tests.xml"
    report.unlink(missing_ok=True)
    command = [str(pair.folder / "bin" / "python"), "-m", "pytest", "-q", f"--junitxml={report}", *tests]
    ran = subprocess.run(command, cwd=ROOT, env=environment(), check=False)
    text = count(report) if report.exists() else f"pytest ended with exit code {ran.returncode}"
    return Outcome(text, pair.is_supported and ran.returncode == 0, time.monotonic() - began)


def make_environment(pair: Pair) -> None:
    """Create a virtual environment with what requirements.lock pins, but with the Spark and Delta of a pair. An
    environment that was created from the same lock file is reused.

    An environment that was made from the same lock file stays.

    Raises:
        Failed: they can't be installed together.
    """
    made, lock = pair.folder / "made", (ROOT / "requirements.lock").read_text()
    if made.exists() and made.read_text() == digest(lock):
        return
    step("uv venv", [UV, "venv", "--quiet", "--clear", "--python", sys.executable, str(pair.folder)])
    pinned = pair.folder / "requirements.txt"
    pinned.write_text("".join(without(lock.splitlines(keepends=True), ("pyspark", "delta-spark", "py4j"))))
    python = ("--quiet", "--python", str(pair.folder / "bin" / "python"))
    step("uv pip sync", [UV, "pip", "sync", *python, str(pinned)])
    step("uv pip install", [UV, "pip", "install", *python, f"pyspark=={pair.spark}", f"delta-spark=={pair.delta}"])
    # Without its own requirements, which may exclude the pair.
    step("uv pip install", [UV, "pip", "install", *python, "--no-deps", "--no-build-isolation", "--editable", "."])
    made.write_text(digest(lock))


def lend_store(pair: Pair) -> None:
    """Link an environment to that of the tests' S3 server, which is the same for each pair."""
    lent = pair.folder / "store"
    if not lent.exists():
        lent.symlink_to(Path(sys.prefix) / "store")


def digest(lock: str) -> str:
    """Return the text that records which lock file an environment was created from."""
    return hashlib.sha256(lock.encode()).hexdigest()


def without(lock: Iterable[str], packages: Sequence[str]) -> Iterable[str]:
    """Yield the lines of a lock file, without those of some packages."""
    is_left_out = False
    for line in lock:
        if not line.startswith((" ", "#")):
            is_left_out = line.partition("==")[0].strip() in packages
        if not is_left_out:
            yield line


def step(name: str, command: Sequence[str]) -> None:
    """Run a command.

    Raises:
        Failed: it did not end with exit code 0.
    """
    ran = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if ran.returncode:
        lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        raise Failed(f"`{name}` ended with exit code {ran.returncode}: {' '.join(lines[-3:])}")


def environment() -> dict[str, str]:
    """Return the variables of a command: it imports this checkout, and uses the jars of its own versions."""
    return {name: text for name, text in os.environ.items() if name != "TIDEGATE_JARS"} | {"PYTHONPATH": str(ROOT)}


def count(report: Path) -> str:
    """Return the numbers of a JUnit report of pytest as a text."""
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    tests, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    counted = {"passed": tests - skipped - failed, "failed": failed, "skipped": skipped}
    return ", ".join(f"{number} {what}" for what, number in counted.items() if number) or "no tests"


def table(outcomes: dict[Pair, Outcome]) -> Iterable[str]:
    """Yield the lines of a table in Markdown."""
    yield "| Spark | Delta | outcome | seconds |"
    yield "|---|---|---|---|"
    for pair, outcome in outcomes.items():
        note = "" if outcome.is_expected else " (not as expected)"
        yield f"| {pair.spark} | {pair.delta} | {outcome.text}{note} | {outcome.seconds:.0f} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
