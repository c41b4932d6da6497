"""The images that the project's files are based on: pulled, or made of Debian's packages without a registry."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.cluster.engine import HERE, Engine

ROOT = HERE.parent.parent
DEBIAN = "localhost/tidegate-tests/debian:bookworm"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
GATEWAY = "github.com/versity/versitygw/cmd/versitygw"
CLEAN = """\
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""
_TARGETS = {"python": "python", "postgres": "postgres", "versitygw": "store"}
"""Stage of base/Dockerfile by the last word of an image's name."""


def bases() -> set[str]:
    """Return the images that are pulled, as the project's files name them."""
    files = (ROOT / "Dockerfile", ROOT / "deployment" / "store" / "Dockerfile")
    found = {name for file in files for name in re.findall(r"^FROM (\S+)", file.read_text(), re.MULTILINE)}
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    return found | {service["image"] for service in services if "build" not in service}


def prepare(engine: Engine) -> dict[str, str]:
    """Return how each base image was got: `there`, `pulled`, or `made of Debian's packages`.

    Without a registry, debootstrap and Go make stand-ins under the same names; where these are missing the tests are
    skipped.
    """
    how = {}
    for name in sorted(bases()):
        if engine.has_image(name):
            how[name] = "there"
        elif engine.run("pull", "--quiet", name, check=False).returncode == 0:
            how[name] = "pulled"
        else:
            _make(engine, name)
            how[name] = "made of Debian's packages"
    return how


def _make(engine: Engine, name: str) -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, ("debootstrap", "go"))):
        pytest.skip(f"{name} can't be pulled, and a stand-in needs root, debootstrap and go")
    if not engine.has_image(DEBIAN):
        _make_debian(engine)
    stage = _TARGETS[re.split("[/:]", name)[-2]]
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        for file in (HERE / "base").iterdir():
            shutil.copy(file, context)
        # Certificates of a gateway to the package registries. The images of users have none of these.
        (context / "certificates").mkdir()
        for file in CERTIFICATES.glob("*.crt"):
            shutil.copy(file, context / "certificates")
        (context / "programs").mkdir()
        if stage == "store":
            version = name.rpartition(":")[2]
            go = {**os.environ, "GOBIN": str(context / "programs")}
            subprocess.run(["go", "install", f"{GATEWAY}@{version}"], env=go, check=True, capture_output=True)
        engine.run("build", "--target", stage, "--tag", name, str(context))


def _make_debian(engine: Engine) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, archive = Path(folder) / "root", Path(folder) / "root.tar"
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root)], check=True, capture_output=True)
        # As in Debian's own image, apt keeps no packages, and no indices of them.
        (root / "etc" / "apt" / "apt.conf.d" / "docker-clean").write_text(CLEAN)
        for folder in ("var/cache/apt", "var/lib/apt/lists"):
            for file in filter(Path.is_file, (root / folder).rglob("*")):
                file.unlink()
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
        engine.run("import", str(archive), DEBIAN)
