"""Each service is killed while a backfill of a day works, and worse: the tables are those of a run without faults. The
tests build on each other, a day each, in this order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.duty import assert_as_without_faults, begin_next_day, run_next_day, trigger_next_day
from tests.cluster.running import Cluster, new_secrets

pytestmark = [pytest.mark.containers, pytest.mark.long, pytest.mark.timeout(3600), pytest.mark.usefixtures("flights")]

MEGABYTE = bytes(1 << 20)
CONNECTION = "of_a_user"


@pytest.mark.parametrize("service", ["airflow-scheduler", "spark-worker-1", "spark-master", "store", "postgres"])
def test_a_run_ends_right_although_a_service_was_killed(service: str, cluster: Cluster) -> None:
    run = begin_next_day(cluster)
    cluster.crash(service)
    assert run.ended()["state"] == "success"
    cluster.wait_for_health()
    assert_as_without_faults(cluster)


def test_a_run_ends_right_although_everything_was_taken_down_and_up_again(cluster: Cluster) -> None:
    run = begin_next_day(cluster)
    cluster.down()
    cluster.up()
    assert run.ended()["state"] == "success"
    assert_as_without_faults(cluster)


def test_a_full_volume_fails_the_run_with_its_reason_and_loses_nothing(cluster: Cluster) -> None:
    filler = cluster.folder / "lake" / "filler"
    run = trigger_next_day(cluster)
    _fill(filler)
    try:
        assert run.ended()["state"] == "failed"
        assert "no space left" in run.log().lower(), run.log()[-3000:]
    finally:
        filler.unlink()
    run.again()
    assert run.ended()["state"] == "success"
    assert_as_without_faults(cluster)


def _fill(file: Path) -> None:
    """Write until the disk is full."""
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(MEGABYTE)
        except OSError:
            return


def test_a_run_ends_right_after_every_secret_was_rotated(cluster: Cluster) -> None:
    """In the order of the page on clusters."""
    connections = ("airflow-scheduler", "airflow", "connections")
    cluster.exec(*connections, "add", CONNECTION, "--conn-type", "generic", "--conn-password", "hushed", check=False)
    old, new = dict(cluster.env), new_secrets()
    # The name of the store's user stays, because it owns the bucket.
    rotated = {name: new[name] for name in new if name.endswith(("_PASSWORD", "_SECRET", "_SECRET_KEY"))}
    cluster.write_env(**rotated, AIRFLOW_FERNET_KEY=f"{new['AIRFLOW_FERNET_KEY']},{old['AIRFLOW_FERNET_KEY']}")
    cluster.compose("up", "-d", "--no-build", "postgres")
    cluster.wait_for_health("postgres")
    cluster.exec("postgres", "database", "password")
    cluster.up()
    cluster.exec("airflow-scheduler", "airflow", "rotate-fernet-key")
    cluster.write_env(AIRFLOW_FERNET_KEY=new["AIRFLOW_FERNET_KEY"])
    cluster.up()
    read = cluster.exec(*connections, "get", CONNECTION, "--output", "json")
    assert '"password": "hushed"' in read, "the new key alone decrypts it"
    assert run_next_day(cluster)["state"] == "success"
    assert_as_without_faults(cluster)
    environments = [str(cluster.inspect(name)["Config"]["Env"]) for name in ("postgres", "store", "airflow-scheduler")]
    for name, value in old.items():
        if cluster.env[name] != value:
            assert not any(value in environment for environment in environments), f"the old {name} is gone"
