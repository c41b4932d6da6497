"""A command for a test of hosts: it drives a pipeline, just by holding its lease, until it is asked to end."""

import json
import signal
import sys
import threading
from pathlib import Path

from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.run.parent import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *ignored: ended.set())
    pipeline, output = sys.argv[1], sys.argv[sys.argv.index("--output") + 1]
    with Lease(PipelineTables(warehouse_of(load_config()), pipeline), "stream", system_clock) as lease:
        print("driving", pipeline, flush=True)
        while not (ended.wait(0.5) or lease.stop_requested):
            continue
    Path(output).write_text(json.dumps({"epoch": 7, "driver": lease.holder.host}))
    print("ended in order", flush=True)
