"""`python -m pipelines.cli`: the command, where its script is not on the PATH."""

from pipelines.cli import main

main()
