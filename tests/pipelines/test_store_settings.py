"""Wrong settings of an object store are named, with the way out, before or instead of what libraries say of them."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidegate.pipelines.errors import BucketMissing, StoreFailed, TidegateError, UsageError
from tidegate.pipelines.storage.options import check
from tidegate.pipelines.storage.warehouse import Warehouse

GOOD = {"AWS_ACCESS_KEY_ID": "AKIA0123456789", "AWS_SECRET_ACCESS_KEY": "hush-0123456789", "AWS_REGION": "eu-west-1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"aws_endpont_url": "https://a"},
            "storage option 'aws_endpont_url' is unknown; did you mean 'aws_endpoint_url'?",
        ),
        ({"aws_secret_key": "hush"}, "'aws_secret_key' is unknown; did you mean 'aws_secret_access_key'?"),
        ({"secret_key": "hush"}, "'secret_key' is unknown; did you mean 'secret_access_key'?"),
        ({"max_retry": "3"}, "'max_retry' is unknown; did you mean 'max_retries'?"),
        ({"timeout": "30"}, "storage option 'timeout': give a duration with its unit, such as \"500ms\""),
        ({"aws_endpoint_url": "127.0.0.1:9000"}, "aws_endpoint_url = '127.0.0.1:9000': the address"),
        (
            {"AWS_ENDPOINT_URL": "http://me:hush@store:9000"},
            "'http://store:9000' is not encrypted. If that is intended",
        ),
        ({"AWS_ENDPOINT_URL": "http://store", "AWS_ALLOW_HTTP": "false"}, 'aws_allow_http = "true"'),
        (
            {"AWS_ACCESS_KEY_ID": "AKIA"},
            "aws_access_key_id but no aws_secret_access_key: set it as aws_secret_access_key",
        ),
        ({"aws_secret_access_key": "hush"}, "AWS_ACCESS_KEY_ID in the environment"),
    ],
)
def test_a_wrong_option_is_named_with_the_way_out(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check("s3://lake", options)
    assert message in str(refused.value)
    assert "hush" not in str(refused.value)
    for path in ("s3://lake/events", "s3a://lake/events"):
        with pytest.raises(UsageError):
            Warehouse("s3://lake", options).open(path)
        with pytest.raises(UsageError):
            Warehouse("s3://lake", options).exists(path)


def test_options_of_other_stores_and_of_deltalake_are_taken() -> None:
    check("az://lake", {"azure_storage_account_key": "a", "account_nam": "b"})
    check("s3://lake", {**GOOD, "AWS_S3_ALLOW_UNSAFE_RENAME": "true", "AWS_REGION_DYNAMODB": "eu", "unlike_all": "1"})
    check("s3://lake", {"token": "t", "endpoint_url": "https://store", "backoff_config.base": "2", "timeout": "1m 30s"})
    # Settings in the environment of a project without a store refuse nothing.
    assert Warehouse("/lake", {"AWS_ENDPOINT_URL": "http://store"}).options_of("/lake/events") is None


@contextmanager
def answering(status: int, code: str, message: str) -> Iterator[Warehouse]:
    """A warehouse whose server gives one answer to all."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_GET  # noqa: N815 - the name of http.server

        def log_message(self, *given: object) -> None:
            """Write no line."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        place = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ALLOW_HTTP": "true"}
        try:
            yield Warehouse("s3://lake/here", {**GOOD, **place, "max_retries": "0"})
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((403, "AccessDenied", "Access Denied"), StoreFailed, "docs/operations/object-stores.md lists the permissions"),
        (
            (403, "SignatureDoesNotMatch", "Wrong."),
            StoreFailed,
            "The store does not know the key",
        ),
        ((400, "ExpiredToken", "Too old."), StoreFailed, "has expired, or is of another key: get new credentials"),
        ((400, "AuthorizationHeaderMalformed", "no"), StoreFailed, "Set `aws_region` under [storage_options]"),
        ((404, "NoSuchBucket", "none"), BucketMissing, "there is no bucket 'lake', which s3://lake/here"),
    ],
)
def test_an_answer_of_the_store_is_told_with_its_code_and_the_way_out(
    answer: tuple[int, str, str], kind: type[TidegateError], message: str
) -> None:
    with answering(*answer) as warehouse:
        for request in (
            lambda: warehouse.open(warehouse.path("t")),
            lambda: warehouse.exists(warehouse.path("t")),
            lambda: warehouse.replace_file(warehouse.path("t"), "a", b"1"),
        ):
            with pytest.raises(kind) as failed:
                request()
            text = str(failed.value)
            assert message in text
            assert "<" not in text
            assert (answer[1] in text) == (kind is StoreFailed), text
    assert (BucketMissing.exit_code, StoreFailed.exit_code) == (3, 1)


def test_a_server_that_does_not_answer_is_told_with_the_setting_of_its_address() -> None:
    options = {**GOOD, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "max_retries": "0"}
    with pytest.raises(StoreFailed, match=r"check its address .`aws_endpoint_url` under"):
        Warehouse("s3://lake", options).exists("s3://lake/t")
