"""Protection of the connections between Spark's processes, on unless a project switches it off.

Whoever reaches a standalone master without authentication runs code on its workers. The secret that all processes
share comes from their environment, under the name that Spark itself uses, so no file and no command line has it. In
local mode Spark makes a secret of its own: other users of the machine reach the ports on loopback, too. On Kubernetes
it makes one as well, and writes it into the pods of executors, unless `spark.authenticate.secret.file` names a file of
a Secret that the driver and the executors mount.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tidegate.pipelines.errors import UsageError

SECRET = "_SPARK_AUTH_SECRET"
"""Variable with the secret; Spark gives it to the executors, too."""

_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_STANDALONE = "spark://"
_KUBERNETES = "k8s://"
_AUTHENTICATE = "spark.authenticate"
_OTHER_PLACES = ("spark.authenticate.secret", "spark.authenticate.secret.file", "spark.authenticate.secret.driver.file")
_PROTECTION: dict[str, str | int | bool] = {
    _AUTHENTICATE: True,
    "spark.network.crypto.enabled": True,
    "spark.network.crypto.authEngineVersion": 2,
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": False,
    # What executors spill to their disks.
    "spark.io.encryption.enabled": True,
}


def protection(settings: Mapping[str, str | int | bool], file: str) -> dict[str, str | int | bool]:
    """Return the settings that protect the connections of a project's Spark; none for a master of another kind.

    Args:
        settings: Spark settings of the project.
        file: the file that has them, for messages.

    Raises:
        UsageError: the secret is missing.
    """
    master = str(settings.get("spark.master", "local[*]"))
    if _LOCAL.fullmatch(master):
        return {_AUTHENTICATE: True}
    if str(settings.get(_AUTHENTICATE, True)).lower() == "false":
        return {}
    if master.startswith(_KUBERNETES):
        return dict(_PROTECTION)
    if not master.startswith(_STANDALONE):
        return {}
    if not os.environ.get(SECRET) and not any(settings.get(name) for name in _OTHER_PLACES):
        raise UsageError(
            f"spark.master = {master!r} in {file}: set {SECRET} to the secret of the cluster, the same for its master, "
            f'its workers and this process. For a cluster without authentication, set "{_AUTHENTICATE}" = false: then '
            "whoever reaches the cluster runs code on it"
        )
    return dict(_PROTECTION)


def secret(settings: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Return the setting with the secret of the environment, which Spark wants of a driver on a standalone cluster."""
    is_standalone = str(settings.get("spark.master", "")).startswith(_STANDALONE)
    return {_OTHER_PLACES[0]: os.environ[SECRET]} if is_standalone and os.environ.get(SECRET) else {}
