"""The project that tests of commands have."""

from tests.pipelines.project.cli.conftest import project as project
