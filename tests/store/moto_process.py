"""The process of the S3 server, run by the interpreter of `.venv/store`: it prints its port and serves until killed."""

import io
import logging
from collections.abc import Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


class KeptAlive(MotoRequestHandler):
    """Moto's handler, with connections that stay open between requests, as with a real server."""

    protocol_version = "HTTP/1.1"
    # Answers are small and written in pieces: without this option, each waits 40 ms for the client's acknowledgement.
    disable_nagle_algorithm = True


class OneConditionAtATime:
    """Moto's application, which checks a condition and then writes, so that another writer may come in between. Such a
    store loses commits, and is rightly refused (`tests/store/test_commits.py`). Bodies are read before anybody waits,
    so that a slow writer does not block others.
    """

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT" or not {"HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"} & environ.keys():
            answer: Iterable[bytes] = self._application(environ, start_response)
            return answer
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        with self._lock:
            return list(self._application(environ, start_response))


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Moto's own server selects the service for each request, and searches its folder of services each time.
    application = OneConditionAtATime(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=KeptAlive)
    print(server.server_port, flush=True)
    server.serve_forever()
