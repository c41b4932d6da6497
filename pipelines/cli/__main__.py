"""`python -m tidegate.pipelines.cli`: the command, where its script is not on the PATH."""

from tidegate.pipelines.cli import main

main()
