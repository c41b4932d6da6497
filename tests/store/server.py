"""An S3 server in memory, which tests start themselves: moto's, in a separate environment. Moto needs an older
python-dateutil than Airflow, so `make env` builds `.venv/store` for it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import quote

from tests.waiting import wait_until

KEY, SECRET = "AKIATIDEGATETEST0001", "tidegate/Test+Secret/0123456789abcdefghi"
"""Credentials of tests; moto accepts any. Tests search for the secret in everything that a run leaves behind."""

_SIGNED = f"AWS4-HMAC-SHA256 Credential={KEY}/20240301/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=0"

INTERPRETER = Path(sys.prefix) / "store" / "bin" / "python"
"""Interpreter of the environment that has moto."""

MAIN = Path(__file__).parent / "moto_process.py"


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Args:
        port: its port on the loopback interface.
    """

    port: int

    @property
    def endpoint(self) -> str:
        """URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> None:
        """Create an empty bucket."""
        place = "<CreateBucketConfiguration><LocationConstraint>eu-central-1</LocationConstraint>"
        self._ask("PUT", name, f"{place}</CreateBucketConfiguration>".encode())

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys of a bucket's objects, in the server's order."""
        keys, after = [], ""
        while True:
            answer = self._ask("GET", f"{bucket}?list-type=2&prefix={quote(prefix)}&start-after={quote(after)}")
            page = [unescape(key) for key in re.findall(r"<Key>([^<]*)</Key>", answer.decode())]
            if not page:
                return keys
            keys += page
            after = page[-1]

    def write(self, bucket: str, key: str, content: bytes) -> None:
        """Write an object."""
        self._ask("PUT", f"{bucket}/{quote(key)}", content)

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object."""
        self._ask("DELETE", f"{bucket}/{quote(key)}")

    def content(self, bucket: str) -> dict[str, bytes]:
        """Return all objects of a bucket."""
        return {key: self.read(bucket, key) for key in self.keys(bucket)}

    def put_back(self, bucket: str, content: dict[str, bytes]) -> None:
        """Make a bucket contain exactly these objects."""
        for key in set(self.keys(bucket)) - content.keys():
            self.delete(bucket, key)
        for key, value in content.items():
            self.write(bucket, key, value)

    def read(self, bucket: str, key: str) -> bytes:
        """Return the content of an object."""
        return self._ask("GET", f"{bucket}/{quote(key)}")

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        # Moto rejects reads without a signature, but accepts any signature. A form, which is urllib's default type,
        # would be parsed.
        headers = {"Content-Type": "application/octet-stream", "Authorization": _SIGNED}
        request = urllib.request.Request(f"{self.endpoint}/{path}", content, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            held: bytes = answer.read()
            return held


def options_of(endpoint: str) -> dict[str, str]:
    """Return storage options with credentials, for a server at an endpoint."""
    return {**place_of(endpoint), "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def place_of(endpoint: str) -> dict[str, str]:
    """Return storage options without credentials."""
    return {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-central-1"}


@dataclass(frozen=True)
class Versity(S3Server):
    """A versitygw over a folder: a second implementation, for tests by hand (docs/operations/object-stores.md).

    Args:
        folder: holds a folder for each bucket.
    """

    folder: Path

    def make_bucket(self, name: str) -> None:
        (self.folder / name).mkdir()

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        root = self.folder / bucket
        names = (str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())
        # It stores parts of uploads in a separate folder.
        return sorted(name for name in names if name.startswith(prefix) and not name.startswith(".sgwtmp"))

    def write(self, bucket: str, key: str, content: bytes) -> None:
        file = self.folder / bucket / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def read(self, bucket: str, key: str) -> bytes:
        return (self.folder / bucket / key).read_bytes()


@contextmanager
def running_server() -> Iterator[S3Server]:
    """Start a server on a free port; it ends with the body. TIDEGATE_TEST_VERSITYGW names a versitygw to use."""
    if program := os.environ.get("TIDEGATE_TEST_VERSITYGW"):
        with _running_versity(program) as versity:
            yield versity
        return
    assert INTERPRETER.exists(), f"there is no {INTERPRETER}: run `make env`"
    process = subprocess.Popen([INTERPRETER, MAIN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = process.stdout.readline()
        assert port, "the server ended before it was ready"
        yield S3Server(int(port))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def _running_versity(program: str) -> Iterator[Versity]:
    # The server that tests normally use doesn't need it.
    from tests.deployment.native import free_port

    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        process = subprocess.Popen(
            [program, "--port", f"127.0.0.1:{port}", "--region", "eu-central-1", "--quiet", "posix", folder],
            env={**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: _listens(port), "versitygw")
            yield Versity(port, Path(folder))
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
