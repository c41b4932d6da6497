"""`tidegate setup` prepares a machine: Java, Delta's jars, and the archive of Spark's classes."""

from __future__ import annotations

import click

from tidegate.extras import require
from tidegate.pipelines.project.cli.screen import Screen, with_screen


@click.command()
@with_screen
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
