"""A stand-in for the API server of Kubernetes: it stores what a driver creates, and starts the pods' processes on this
machine. It answers the requests of Spark's client by the rules of a Role, and refuses pods that violate the restricted
pod security standard. It is not a cluster: nothing is scheduled, limited or isolated.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Thing = dict[str, Any]
"""An object of the API, as JSON."""

_PATH = re.compile(
    r"/apis?/(?:(?P<group>[a-z.]+)/)?v1/namespaces/(?P<namespace>[^/]+)/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?"
)
_WITHIN = re.compile(r"([^ ,!=]+) (not)?in \(([^)]*)\)")


@dataclass(frozen=True)
class Request:
    """A request as the rules of a Role see it."""

    group: str
    resource: str
    verb: str


@dataclass
class PodProcess:
    """The process of a pod's container on this machine.

    Args:
        pod: the pod as it was requested.
        address: its address on loopback.
        process: the process.
    """

    pod: Thing
    address: str
    process: subprocess.Popen[bytes]


@dataclass
class KubernetesApi:
    """A server that holds the objects of one namespace.

    Args:
        namespace: the only namespace.
        rules: rules of the caller's Role.
        check: called with each pod that is asked for; it returns the reasons to refuse the pod.
        logs: folder for what the pods' processes write; None starts no process.
        commands: programs of the image, by the names that pods use.
    """

    namespace: str
    rules: list[Thing]
    check: Callable[[Thing], list[str]] = lambda pod: []
    logs: Path | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    objects: dict[tuple[str, str], Thing] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    created: list[Thing] = field(default_factory=list)
    started: list[PodProcess] = field(default_factory=list)
    _events: list[tuple[str, str, Thing]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_closed: bool = False

    def put(self, resource: str, thing: Thing, kind: str = "ADDED") -> Thing:
        """Store an object, and notify the watchers."""
        with self._changed:
            meta = thing["metadata"]
            meta.setdefault("uid", str(uuid.uuid4()))
            meta["namespace"], meta["resourceVersion"] = self.namespace, str(len(self._events) + 1)
            self.objects[resource, meta["name"]] = thing
            self._events.append((resource, kind, json.loads(json.dumps(thing))))
            self._changed.notify_all()
        return thing

    def remove(self, resource: str, name: str) -> Thing:
        """Remove an object; the process of a pod ends."""
        with self._changed:
            thing = self.objects.pop((resource, name))
            self._events.append((resource, "DELETED", thing))
            self._changed.notify_all()
        for pod in self.started:
            if resource == "pods" and pod.pod["metadata"]["name"] == name:
                pod.process.terminate()
        return thing

    def listed(self, resource: str, selector: str = "") -> list[Thing]:
        """Return the objects of a resource that match a label selector."""
        return [each for (of, _), each in list(self.objects.items()) if of == resource and _fits(each, selector)]

    @property
    def history(self) -> list[Thing]:
        """Return every state of every object."""
        return [thing for _, _, thing in self._events]

    @property
    def running(self) -> list[PodProcess]:
        """Return the processes of running pods."""
        return [pod for pod in self.started if pod.process.poll() is None]

    def allows(self, request: Request) -> bool:
        """Return True if a rule of the Role allows a request."""
        return any(
            request.group in rule["apiGroups"]
            and request.resource in rule["resources"]
            and request.verb in rule["verbs"]
            for rule in self.rules
        )

    def create(self, resource: str, thing: Thing) -> tuple[int, Thing]:
        """Create an object, unless it is a forbidden pod; return status code and content of the response."""
        if resource == "pods":
            self.created.append(thing)
            if reasons := self.check(thing):
                self.refused += reasons
                return 403, _status(403, f"violates PodSecurity: {'; '.join(reasons)}")
        if (resource, thing["metadata"]["name"]) in self.objects:
            return 409, _status(409, "AlreadyExists")
        stored = self.put(resource, json.loads(json.dumps(thing)) | {"status": {"phase": "Pending"}})
        if resource == "pods" and self.logs is not None:
            threading.Thread(target=self._run, args=(stored,), daemon=True).start()
        return 201, stored

    def _run(self, pod: Thing) -> None:
        """Start the process of a pod, and track its state until it ends."""
        assert self.logs is not None
        name = pod["metadata"]["name"]
        address = f"127.0.0.{10 + len(self.started)}"
        (container,) = pod["spec"]["containers"]
        command = [*container.get("command", []), *container.get("args", [])]
        # The image's init process is left out: this machine has one.
        command = command[command.index("--") + 1 :] if "--" in command else command
        command[0] = self.commands.get(command[0], command[0])
        environment = {
            **{key: os.environ[key] for key in ("JAVA_HOME", "LANG") if key in os.environ},
            # As in the image, the environment's programs come first.
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            **{each["name"]: _value(each, pod, address) for each in container.get("env", [])},
        }
        folder = self.logs / name
        folder.mkdir()
        with (self.logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
            )
        self.started.append(PodProcess(pod, address, process))
        self._say(name, "Running", {"running": {"startedAt": "2024-03-01T00:00:00Z"}}, address)
        code = process.wait()
        self._say(name, "Failed" if code else "Succeeded", {"terminated": {"exitCode": code}}, address)

    def _say(self, name: str, phase: str, state: Thing, address: str) -> None:
        pod = self.objects.get(("pods", name))
        if pod is not None:
            (container,) = pod["spec"]["containers"]
            states = [{"name": container["name"], "state": state, "ready": phase == "Running", "restartCount": 0}]
            ready = [{"type": "Ready", "status": str(phase == "Running")}]
            status = {"phase": phase, "podIP": address, "containerStatuses": states, "conditions": ready}
            self.put("pods", pod | {"status": status}, "MODIFIED")

    def watch(self, resource: str, selector: str, since: int) -> Iterator[Thing | None]:
        """Yield the changes of objects since a version, and None now and then, until the server is closed."""
        at = since
        while not self._is_closed:
            with self._changed:
                if len(self._events) <= at:
                    self._changed.wait(1)
                news, at = self._events[at:], len(self._events)
            yield None
            for of, kind, thing in news:
                if of == resource and _fits(thing, selector):
                    yield {"type": kind, "object": thing}

    def close(self) -> None:
        """End the watches and the processes of pods."""
        self._is_closed = True
        for pod in self.started:
            pod.process.kill()
            pod.process.wait()


def _value(variable: Thing, pod: Thing, address: str) -> str:
    """Return the value of a container's variable."""
    if "value" in variable or "valueFrom" not in variable:
        return str(variable.get("value", ""))
    fields = {"status.podIP": address, "metadata.name": pod["metadata"]["name"]}
    return str(fields[variable["valueFrom"]["fieldRef"]["fieldPath"]])


def _fits(thing: Thing, selector: str) -> bool:
    """Return True if an object has the labels that a selector requires."""
    labels = thing["metadata"].get("labels", {})
    for key, is_not, values in _WITHIN.findall(selector):
        if (labels.get(key) in values.split(",")) == bool(is_not):
            return False
    for part in filter(None, _WITHIN.sub("", selector).split(",")):
        key, is_not, value = re.fullmatch(r"([^!=]+)(!?)==?(.*)", part).groups()  # type: ignore[union-attr]
        if (labels.get(key) == value) == bool(is_not):
            return False
    return True


def _status(code: int, message: str) -> Thing:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


@contextmanager
def serving(api: KubernetesApi) -> Iterator[str]:
    """Serve an API on loopback, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, options = self._asked()
            verb = "watch" if options.get("watch") == "true" else "get" if path["name"] else "list"
            if not self._is_allowed(path, verb):
                return
            if verb == "get":
                thing = api.objects.get((path["resource"], path["name"]))
                self._answer(200 if thing else 404, thing or _status(404, "NotFound"))
                return
            selector = options.get("labelSelector", "")
            if name := re.search(r"metadata.name=([^,]+)", options.get("fieldSelector", "")):
                selector = f"{selector},tests/name={name[1]}".lstrip(",")
            if verb == "list":
                items = api.listed(path["resource"], selector)
                self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})
            elif self.headers.get("Upgrade"):
                # The client then watches without a web socket.
                self._answer(200, {})
            else:
                self._stream(api.watch(path["resource"], selector, int(options.get("resourceVersion") or 0)))

        def do_POST(self) -> None:
            path, _ = self._asked()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._is_allowed(path, "create"):
                self._answer(*api.create(path["resource"], body))

        def do_PATCH(self) -> None:
            path, _ = self._asked()
            self.rfile.read(int(self.headers["Content-Length"]))
            if self._is_allowed(path, "patch"):
                self._answer(200, api.objects.get((path["resource"], path["name"]), {}))

        def do_DELETE(self) -> None:
            path, options = self._asked()
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not self._is_allowed(path, "delete" if path["name"] else "deletecollection"):
                return
            selector = options.get("labelSelector", "")
            names = (
                [path["name"]]
                if path["name"]
                else [each["metadata"]["name"] for each in api.listed(path["resource"], selector)]
            )
            gone = [api.remove(path["resource"], name) for name in names if (path["resource"], name) in api.objects]
            self._answer(
                200 if gone or not path["name"] else 404, gone[0] if path["name"] and gone else {"kind": "Status"}
            )

        def _asked(self) -> tuple[dict[str, str], dict[str, str]]:
            url = urlsplit(self.path)
            match = _PATH.fullmatch(unquote(url.path))
            assert match is not None, self.path
            return (
                {key: value or "" for key, value in match.groupdict().items()},
                {key: values[-1] for key, values in parse_qs(url.query).items()},
            )

        def _is_allowed(self, path: dict[str, str], verb: str) -> bool:
            request = Request(path["group"], path["resource"], verb)
            api.asked.append(request)
            if path["namespace"] == api.namespace and api.allows(request):
                return True
            api.refused.append(f"{verb} {path['resource']} in {path['namespace']}")
            self._answer(403, _status(403, f"{path['resource']} is forbidden: cannot {verb}"))
            return False

        def _answer(self, code: int, content: Thing) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, changes: Iterator[Thing | None]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for change in changes:
                if change is not None:
                    line = json.dumps(change).encode() + b"\n"
                    try:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                        self.wfile.flush()
                    except OSError:
                        return

        def log_message(self, *ignored: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        api.close()
        server.shutdown()
        thread.join()
        server.server_close()
