"""The services start from nothing, become healthy, and look as docker-compose.yml promises."""

from __future__ import annotations

import pytest

from tests.cluster.running import STAYING, Cluster

pytestmark = [pytest.mark.containers, pytest.mark.long, pytest.mark.timeout(3600)]


def test_every_service_becomes_healthy(cluster: Cluster) -> None:
    assert cluster.health() == dict.fromkeys(STAYING, "healthy")
