"""The project that tests of commands use."""

from tests.pipelines.project.cli.conftest import project as project
