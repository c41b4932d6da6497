"""`python -m tidegate` runs the command if its script is not on the PATH."""

from tidegate.pipelines.project.cli import main

main()
