"""`tidegate demo`."""

import click


@click.command()
def demo() -> None:
    """X."""
