"""`tidegate setup`: what a machine needs once."""

from __future__ import annotations

import click

from pipelines.cli.screen import Screen, with_screen


@click.command()
@with_screen
def setup(screen: Screen) -> None:
    """Check Java, and fetch Delta's jars for Spark; done once, and quick when it was done before."""
    from pipelines.session import check_java, resolve_jars

    check_java()
    jars = resolve_jars()
    screen.show({"jars": [str(jar) for jar in jars]}, f"Java is there, and {len(jars)} jars are in {jars[0].parent}")
