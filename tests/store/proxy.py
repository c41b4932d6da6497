"""A proxy in front of the S3 server: it counts requests, and makes some of them fail as networks and stores do. A fault
happens before the request reaches the server, or after it; then the server has executed the request, and the client
doesn't know.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from urllib.parse import parse_qs, unquote, urlsplit

_END = b"\r\n\r\n"
_OFFSET = re.compile(rb"&?start-after=[^&\s]*")
_CONTROL = "/-/control"
"""Path of the proxy itself."""
_REASONS = {412: "Precondition Failed", 500: "Internal Server Error", 503: "Slow Down"}
_CODES = {412: "PreconditionFailed", 500: "InternalError", 503: "SlowDown"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client.

    Args:
        method: `GET`, `PUT`, ...
        path: bucket and key, unquoted.
        query: parameters; if a name occurs several times, the last one counts.
        headers: names in lower case.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def kind(self) -> str:
        """Name under which the request is counted: its method, or `LIST` or `COPY`."""
        if self.method == "GET" and "list-type" in self.query:
            return "LIST"
        return "COPY" if "x-amz-copy-source" in self.headers else self.method

    @property
    def is_write(self) -> bool:
        """Return True if the request changes the bucket."""
        return self.method in ("PUT", "POST", "DELETE")

    @property
    def is_conditional(self) -> bool:
        """Return True if the server must refuse the request for an existing object, or for another version of it."""
        return bool({"if-none-match", "if-match"} & self.headers.keys())


class Fault(Enum):
    """Ways to fail a request; with those that end in AFTER the server executes it first."""

    PRECONDITION_FAILED = "412"
    INTERNAL_ERROR = "500"
    INTERNAL_ERROR_AFTER = "500 after"
    SLOW_DOWN = "503"
    TIME_OUT = "time-out"
    TIME_OUT_AFTER = "time-out after"
    CUT = "cut"
    CUT_AFTER = "cut after"
    CUT_WITHIN = "cut within the answer"
    SLOW = "slow"
    """The request is executed, but late."""

    @property
    def reaches_server(self) -> bool:
        """Return True if the server executes the request."""
        return self in _DONE

    def fits(self, request: Request) -> bool:
        """Return True if a store may fail a request in this way."""
        return request.is_conditional if self is Fault.PRECONDITION_FAILED else True


_DONE = {Fault.INTERNAL_ERROR_AFTER, Fault.TIME_OUT_AFTER, Fault.CUT_AFTER, Fault.CUT_WITHIN, Fault.SLOW}
_STATUS = {
    Fault.PRECONDITION_FAILED: 412,
    Fault.INTERNAL_ERROR: 500,
    Fault.INTERNAL_ERROR_AFTER: 500,
    Fault.SLOW_DOWN: 503,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults of a proxy, as data that is sent to its process.

    Args:
        seed: seed of the random choices.
        share: share of all requests that fail in a random way.
        fault: way in which the requests fail that `kind` and `pattern` name.
        kind: kind of these requests; empty for every kind.
        pattern: regular expression that is searched in their paths.
        times: number of requests that fail in this way.
        ignores_conditions: True for a store that accepts every PUT, whatever its conditions.
        ignores_offsets: True for a store that lists all objects, wherever the list should begin.
        outage_after: number of writes after which the store answers no request any more; None for no outage.
        hold: seconds for which a request hangs that times out; a slow one takes half of it.
    """

    seed: int = 0
    share: float = 0.0
    fault: Fault | None = None
    kind: str = ""
    pattern: str = ""
    times: int = 1
    ignores_conditions: bool = False
    ignores_offsets: bool = False
    outage_after: int | None = None
    hold: float = 1.0


class _Faults:
    """Chooses a fault for each request."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._draw = random.Random(plan.seed)
        self._left = plan.times
        self._writes = 0

    def choose(self, request: Request) -> Fault | None:
        plan = self.plan
        if plan.outage_after is not None:
            if self._writes >= plan.outage_after:
                return Fault.CUT
            self._writes += request.is_write
            # The server executes the last write, but nobody is told.
            return Fault.CUT_AFTER if self._writes == plan.outage_after and request.is_write else None
        if plan.fault is not None and self._left and self._is_meant(request) and plan.fault.fits(request):
            self._left -= 1
            return plan.fault
        if self._draw.random() >= plan.share:
            return None
        fault = self._draw.choice(list(Fault))
        return fault if fault.fits(request) else None

    def _is_meant(self, request: Request) -> bool:
        return self.plan.kind in ("", request.kind) and re.search(self.plan.pattern, request.path) is not None


class _Service:
    """The connections of a proxy."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.faults = _Faults(Plan())
        self.requests: list[Request] = []
        self.failed: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(_END)
                request = _request(head)
                body = await reader.readexactly(int(request.headers.get("content-length", 0)))
                if request.path == _CONTROL:
                    writer.write(self._control(body))
                    await writer.drain()
                    continue
                self.requests.append(request)
                fault, plan = self.faults.choose(request), self.faults.plan
                if fault is not None:
                    self.failed.append(f"{fault.value}: {request.kind} {request.path}")
                answer = b""
                if fault is Fault.SLOW:
                    await asyncio.sleep(plan.hold / 2)
                if fault is None or fault.reaches_server:
                    server = server or await asyncio.open_connection("127.0.0.1", self.upstream)
                    sent = _unconditional(head) if plan.ignores_conditions else head
                    server[1].write((_OFFSET.sub(b"", sent) if plan.ignores_offsets else sent) + body)
                    answer = await _answer(server[0], request)
                if fault in _STATUS:
                    answer = _error(_STATUS[fault])
                elif fault in (Fault.TIME_OUT, Fault.TIME_OUT_AFTER):
                    await asyncio.sleep(plan.hold)
                    break
                elif fault in (Fault.CUT, Fault.CUT_AFTER):
                    break
                elif fault is Fault.CUT_WITHIN:
                    writer.write(answer[: len(answer) // 2])
                    await writer.drain()
                    break
                writer.write(answer)
                await writer.drain()
        for stream in (writer, *([server[1]] if server else [])):
            stream.close()

    def _control(self, body: bytes) -> bytes:
        """Apply a new plan, if there is one, and report what happened since the last call."""
        happened = {"requests": [asdict(request) for request in self.requests], "failed": self.failed}
        self.requests, self.failed = [], []
        if body:
            plan = json.loads(body)
            self.faults = _Faults(Plan(**{**plan, "fault": plan["fault"] and Fault(plan["fault"])}))
        text = json.dumps(happened).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)


@dataclass
class Proxy:
    """A running proxy: a separate process, because deltalake holds Python's lock during some of its requests.

    Args:
        port: its port on the loopback interface.
        failed: the faults so far.
    """

    port: int
    failed: list[str] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self.port}"

    def set(self, plan: Plan) -> None:
        """Make requests fail from now on as a plan says."""
        self._call(json.dumps({**asdict(plan), "fault": plan.fault and plan.fault.value}).encode())

    def requests(self) -> list[Request]:
        """Return the requests since the last call."""
        return self._call(None)

    def counted(self) -> Counter[str]:
        """Return the number of requests of each kind since the last call."""
        return Counter(request.kind for request in self.requests())

    def _call(self, body: bytes | None) -> list[Request]:
        with urllib.request.urlopen(f"{self.endpoint}{_CONTROL}", data=body, timeout=10) as answer:
            happened = json.loads(answer.read())
        self.failed += happened["failed"]
        return [Request(**request) for request in happened["requests"]]


@contextmanager
def running_proxy(upstream: int) -> Iterator[Proxy]:
    """Start a proxy; it ends with the body."""
    process = subprocess.Popen([sys.executable, __file__, str(upstream)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = process.stdout.readline()
        assert port, "the proxy ended before it was ready"
        yield Proxy(int(port))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _main(upstream: int) -> None:
    server = await asyncio.start_server(_Service(upstream).serve, "127.0.0.1", 0, limit=1 << 26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _unconditional(head: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith((b"if-none-match:", b"if-match:")))


def _request(head: bytes) -> Request:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    url = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(method, unquote(url.path), query, headers)


async def _answer(reader: asyncio.StreamReader, request: Request) -> bytes:
    head = await reader.readuntil(_END)
    lines = head.decode("latin-1").lower().split("\r\n")
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if request.method == "HEAD" or lines[0].split(" ")[1] in ("204", "304"):
        return head
    if headers.get("transfer-encoding") == "chunked":
        chunks = [head]
        while True:
            size = await reader.readuntil(b"\r\n")
            chunks += [size, await reader.readexactly(int(size, 16) + 2)]
            if int(size, 16) == 0:
                return b"".join(chunks)
    return head + await reader.readexactly(int(headers.get("content-length", 0)))


def _error(status: int) -> bytes:
    body = f"<Error><Code>{_CODES[status]}</Code><Message>injected by the test's proxy</Message></Error>"
    return (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        f"{body}"
    ).encode()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
