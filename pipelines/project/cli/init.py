"""Commands that prepare a project or a machine: `init`, `schema`, `flights` and `setup`.

Help loads this module, so each command imports the libraries of tables when it is called.
"""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from tidegate.extras import require
from tidegate.pipelines import examples
from tidegate.pipelines.definition.config.file import SCHEMA_FILE, json_schema
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.examples.flights.days import DAYS as FLIGHT_DAYS
from tidegate.pipelines.examples.flights.days import FIRST_DAY
from tidegate.pipelines.examples.starter import DAYS
from tidegate.pipelines.project.cli.screen import Screen, command

STARTER = Path(examples.__file__).parent / "starter"
_TABLE = "warehouse/clicks"
_ABOUT = {
    "tidegate.toml": "the settings of the project and of each pipeline",
    "visits.py": "the pipeline",
    "test_visits.py": "its tests, for pytest: python -m pytest",
    "dags/tidegate_dags.py": "the DAGs of every pipeline, for Airflow",
    SCHEMA_FILE: "the keys of tidegate.toml, for editors",
    _TABLE: f"sample data of {DAYS} days, a Delta table",
}


@command(click.Argument(["name"], required=False, type=click.Path(path_type=Path, file_okay=False)))
def init(screen: Screen, name: Path | None) -> None:
    """Create a project in folder NAME, or in the current folder, and print the commands that compute its first windows.

    The project runs without Java, on the engine `local`. No file is replaced: if one exists, the command writes nothing
    and ends with exit code 2.
    """
    from deltalake import write_deltalake

    from tidegate.pipelines.examples.starter.clicks import clicks_of
    from tidegate.pipelines.storage.warehouse import check_local

    folder = name or Path()
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = today - timedelta(days=DAYS)
    texts = {
        file: (STARTER / f"{file}.txt").read_text().replace("@START@", f"{start:%Y-%m-%d}")
        for file in ("tidegate.toml", "visits.py", "test_visits.py", "dags/tidegate_dags.py")
    }
    texts[SCHEMA_FILE] = _schema_text()
    if there := [file for file in _ABOUT if (folder / file).exists()]:
        raise UsageError(
            f"{listed(there)} already in {folder.absolute()}: nothing was written. Give a new folder: `tidegate init "
            "NAME`"
        )
    check_local(str(folder / _TABLE))
    try:
        for file, text in texts.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
    except OSError as error:
        raise UsageError(f"folder {folder.absolute()} can't be created: {error.strerror}") from error
    for day in range(DAYS):
        write_deltalake(str(folder / _TABLE), clicks_of((start + timedelta(days=day)).date()), mode="append")
    run = ["tidegate", "backfill", "visits", "--start", f"{start:%Y-%m-%d}", "--end", f"{today:%Y-%m-%d}"]
    commands = [
        *([] if name is None else [shlex.join(["cd", str(name)])]),
        shlex.join([*run, "--slice", "1d"]),
        "tidegate results visits",
    ]
    screen.show(
        {"folder": str(folder.absolute()), "files": [*_ABOUT], "commands": commands},
        *(f"{file:24}{about}" for file, about in _ABOUT.items()),
        "\nThe first windows, in seconds:\n",
        *(f"  {command}" for command in commands),
    )


@command()
def schema(screen: Screen) -> None:
    """Print the JSON schema of tidegate.toml, which editors use to complete and check its keys."""
    screen.show(json_schema())
    if not screen.json:
        click.echo(_schema_text(), nl=False)


def _schema_text() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


@command(
    click.Option(["--days"], default=31, show_default=True, help=f"How many days of 2013 to write, 1 to {FLIGHT_DAYS}.")
)
def flights(screen: Screen, days: int) -> None:
    """Write table `flights` into the warehouse: real flights from New York, the source of the example pipelines.

    The table has one commit for each day of arrival, in the order in which the records would have arrived. An existing
    table is left unchanged.
    """
    from tidegate.pipelines.examples.flights.source import load_flights

    warehouse = warehouse_of(screen.config())
    path = warehouse.path("flights")
    rows = load_flights(path, days, warehouse.options_of(path))
    screen.show({"table": path, "rows": rows}, f"{path} holds {rows} records of flights, from {FIRST_DAY}")


@command()
def setup(screen: Screen) -> None:
    """Check Java, fetch Delta's jars for Spark, and make Spark start faster; needed once per machine.

    The last step takes a minute and 200 MB next to the jars: it creates an archive of Spark's classes, with which every
    run starts in about half the time. Runs work without it.
    """
    require("the set-up of Spark", "pyspark", "delta")
    from tidegate.pipelines.engine.spark.class_archive import archive_file, make_archive
    from tidegate.pipelines.engine.spark.jars import check_java, resolve_jars

    java = check_java()
    jars = resolve_jars()
    if not archive_file(java).exists():
        screen.tell("preparing Spark for fast starts, once: about a minute")
    archive = make_archive(java, "tidegate.pipelines.run.warm_up", screen.tell)
    screen.show(
        {"jars": [str(jar) for jar in jars], "classes": None if archive is None else str(archive)},
        f"Java is installed, and {len(jars)} jars are in {jars[0].parent}",
        "Spark starts quickly" if archive else "This Java can't create a class archive: Spark works, but starts slowly",
    )
