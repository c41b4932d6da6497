"""A process that forks a child for each line that it reads. A child runs a command of tidegate, and may kill itself
with SIGKILL before its n-th operation that changes a file.

It has imported everything that the command needs, and has started no threads, so that forking is quick and safe.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tests.recovery.hung import MUTATIONS
from tidegate.pipelines.project.cli import run

IMPORTED_LATE = (
    "obstore.store",
    "pyarrow.dataset",
    "tidegate.pipelines.project.restore_from",
    "tidegate.pipelines.project.savepoints",
    "tidegate.pipelines.sources.delta.reader",
    "tidegate.pipelines.storage.object_files",
)
"""Modules that the commands import on their way."""


def work(arguments: list[str], operation: int) -> int:
    """Run a command, and kill the process before an operation; with 0 it lives, and its operations are counted."""
    count = [0]

    def watched(known: Callable[..., object]) -> Callable[..., object]:
        def act(*given: Any, **named: Any) -> object:
            count[0] += 1
            if count[0] == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return known(*given, **named)

        return act

    with pytest.MonkeyPatch.context() as planted:
        for owner, name in MUTATIONS:
            planted.setattr(owner, name, watched(getattr(owner, name)))
        code = run(arguments)
    if not operation:
        sys.stderr.write(f"operations {count[0]}\n")
    return code


def main() -> None:
    for module in IMPORTED_LATE:
        import_module(module)
    for line in sys.stdin:
        told = json.loads(line)
        child = os.fork()
        if not child:
            output = os.open(told["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(output, number)
            code = work(told["arguments"], told["operation"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
