"""The project that tests of commands have."""

from tests.pipelines.cli.conftest import project as project
