"""The process of the S3 server, run by the interpreter of `.venv/store`: it prints its port and serves until killed."""

import logging

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


class KeptAlive(MotoRequestHandler):
    """Moto's handler, with connections that stay open between requests, as a real server's do."""

    protocol_version = "HTTP/1.1"
    # Answers are small and written in pieces: without it, each waits 40 ms for the client's acknowledgement.
    disable_nagle_algorithm = True


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Moto's own server chooses the service by each request, and looks through its folder of services each time.
    application = create_backend_app("s3")
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=KeptAlive)
    print(server.server_port, flush=True)
    server.serve_forever()
