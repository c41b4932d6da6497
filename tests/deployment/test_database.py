"""`deployment/database`: Airflow's database is written to a file, lost, and restored."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.deployment.native import ROOT, Postgres

BEFORE = """
CREATE TYPE state AS ENUM ('queued', 'done');
CREATE TABLE dag_run (id serial PRIMARY KEY, note text, state state);
INSERT INTO dag_run (note, state) VALUES ('first', 'done'), ('it''s; ünïcode', 'queued');
"""
UPGRADED = """
ALTER TABLE dag_run ADD COLUMN partition_key text;
CREATE TABLE partition (id serial PRIMARY KEY, run int REFERENCES dag_run (id));
DELETE FROM dag_run WHERE state = 'queued';
"""
TABLES = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server with an empty database."""
    with Postgres() as postgres:
        yield postgres


def sql(postgres: Postgres, text: str) -> str:
    """Run statements, and return their output."""
    command = ["psql", "-U", "airflow", "-d", "airflow", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", text]
    return subprocess.run(command, env=postgres.environment, capture_output=True, text=True, check=True).stdout


def database(
    postgres: Postgres, verb: str, given: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the script."""
    command = [str(ROOT / "deployment" / "database"), *verb.split()]
    environment = {**postgres.environment, "LOCK_TIMEOUT": "100ms", **environment}
    return subprocess.run(command, env=environment, input=given, capture_output=True, check=False)


@pytest.mark.long
def test_what_was_lost_or_upgraded_since_is_as_before(postgres: Postgres) -> None:
    sql(postgres, BEFORE)
    before = sql(postgres, TABLES), sql(postgres, "SELECT * FROM dag_run ORDER BY id")
    dumped = database(postgres, "backup")
    assert dumped.returncode == 0, dumped.stderr
    sql(postgres, UPGRADED)
    upgraded = sql(postgres, TABLES)

    cut = database(postgres, "restore", dumped.stdout[:-400])
    assert cut.returncode != 0
    assert sql(postgres, TABLES) == upgraded, "a file that is cut short changes nothing"

    holding = subprocess.Popen(
        ["psql", "-U", "airflow", "-d", "airflow", "-qAt"],
        env=postgres.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holding.stdin is not None
    assert holding.stdout is not None
    holding.stdin.write("BEGIN; LOCK TABLE dag_run; SELECT 'locked';\n")
    holding.stdin.flush()
    assert holding.stdout.readline() == "locked\n"
    busy = database(postgres, "restore", dumped.stdout)
    holding.communicate("ROLLBACK;\n", timeout=10)
    assert b"lock timeout" in busy.stderr, "Airflow is at work"
    assert sql(postgres, TABLES) == upgraded

    restored = database(postgres, "restore", dumped.stdout)
    assert restored.returncode == 0, restored.stderr
    assert (sql(postgres, TABLES), sql(postgres, "SELECT * FROM dag_run ORDER BY id")) == before
    sql(postgres, "INSERT INTO dag_run (note) VALUES ('the numbers go on')")
    assert sql(postgres, "SELECT max(id) FROM dag_run") == "3\n"


def test_a_new_password_replaces_the_old_one(postgres: Postgres) -> None:
    unset = database(postgres, "password")
    assert unset.returncode != 0
    assert b"POSTGRES_PASSWORD" in unset.stderr
    old, new = postgres.password, "it's \\a new one; 'quoted'"
    changed = database(postgres, "password", POSTGRES_PASSWORD=new)
    assert changed.returncode == 0, changed.stderr
    assert b"authentication failed" in database(postgres, "backup").stderr, "the old one"
    postgres.password = new
    assert sql(postgres, "SELECT 1") == "1\n"
    assert database(postgres, "password", POSTGRES_PASSWORD=old).returncode == 0
    postgres.password = old


def test_it_says_how_it_is_used(postgres: Postgres) -> None:
    for verb in ("", "drop"):
        answer = database(postgres, verb)
        assert (answer.returncode, answer.stderr[:6]) == (2, b"usage:")
