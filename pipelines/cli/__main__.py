"""`python -m tidegate.pipelines.cli` runs the command if its script is not on the PATH."""

from tidegate.pipelines.cli import main

main()
