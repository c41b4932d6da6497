"""A job for Flink's own Python: the final contents of streaming SQL queries, as JSON.

    python sql_content.py FILE

FILE is JSON: `tables` are statements that make tables, `queries` have a name each. A line with `query` and `rows` is
printed for each query. It imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from pyflink.common import RowKind
from pyflink.table import EnvironmentSettings, TableEnvironment


def main(file: str) -> None:
    """Print the rows that the changelog of each query leaves."""
    given = json.loads(Path(file).read_text())
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", "1")
    tables.get_config().set("table.local-time-zone", "UTC")
    for statement in given["tables"]:
        tables.execute_sql(statement)
    for name, query in given["queries"].items():
        rows: Counter[tuple[object, ...]] = Counter()
        with tables.execute_sql(query).collect() as changes:
            for row in changes:
                away = row.get_row_kind() in (RowKind.UPDATE_BEFORE, RowKind.DELETE)
                rows[tuple(row)] += -1 if away else 1
        print(json.dumps({"query": name, "rows": [list(row) for row in rows.elements()]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
