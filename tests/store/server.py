"""An S3 server in memory, which tests start themselves: moto's, from an environment of its own.

Moto needs an older python-dateutil than Airflow, so `make env` builds `.venv/store` for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

KEY, SECRET = "AKIATIDEGATETEST0001", "tidegate/Test+Secret/0123456789abcdefghi"
"""Credentials of tests; moto accepts any. Tests search for the second in all that a run leaves behind."""

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
        """Make an empty bucket."""
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys of a bucket's objects, in the order of the server."""
        keys, after = [], ""
        while True:
            url = f"{self.endpoint}/{bucket}?list-type=2&prefix={prefix}&start-after={after}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                page = re.findall(r"<Key>([^<]*)</Key>", answer.read().decode())
            if not page:
                return keys
            keys += page
            after = page[-1]

    def write(self, bucket: str, key: str, content: bytes) -> None:
        """Write an object."""
        # A form, which is what urllib says without a type, would be parsed.
        headers = {"Content-Type": "application/octet-stream"}
        url = f"{self.endpoint}/{bucket}/{quote(key)}"
        urllib.request.urlopen(urllib.request.Request(url, content, headers, method="PUT"), timeout=10).close()

    def read(self, bucket: str, key: str) -> bytes:
        """Return what an object holds."""
        # Moto lets nobody read without a signature, and takes any.
        request = urllib.request.Request(f"{self.endpoint}/{bucket}/{quote(key)}", headers={"Authorization": _SIGNED})
        with urllib.request.urlopen(request, timeout=10) as answer:
            content: bytes = answer.read()
            return content


def options_of(endpoint: str) -> dict[str, str]:
    """Return storage options with credentials, for a server at an endpoint."""
    return {**place_of(endpoint), "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def place_of(endpoint: str) -> dict[str, str]:
    """Return storage options without credentials."""
    return {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-central-1"}


@contextmanager
def running_server() -> Iterator[S3Server]:
    """Start a server on a free port; it ends with the body."""
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
