"""A separate host for a test, with its own name and process ids, on which a worker starts a command and dies.

Run as: HOST CONFIG PIPELINE RUN COMMAND..., by `unshare`. It prints the handle of the run as JSON, and is the first
process of the host: all others end with it.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

from tidegate.pipelines.airflow import process
from tidegate.pipelines.airflow.elsewhere import Hosts
from tidegate.pipelines.definition.config import ENVIRONMENT, load_config

if __name__ == "__main__":
    name, config, pipeline, run, *command = sys.argv[1:]
    socket.sethostname(name)
    folder = load_config(Path(config)).work_folder / "runs" / run
    reading, writing = os.pipe()
    if not os.fork():
        # The worker: it starts the command and dies, as a killed worker does, before Airflow has the handle.
        handle = process.start(
            [sys.executable, *command, "--output", str(folder / "result.json")],
            folder,
            {ENVIRONMENT: config},
            grace=2.0,
            copy=Hosts.of(config, pipeline).copy_of(run),
        )
        os.write(writing, json.dumps(handle.to_dict()).encode() + b"\n")
        os.kill(os.getpid(), signal.SIGKILL)
    print(os.fdopen(reading).readline(), end="", flush=True)
    while True:
        # It collects processes whose parents have ended, as the first process of a host does.
        try:
            os.wait()
        except ChildProcessError:
            signal.pause()
