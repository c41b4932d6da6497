"""Storage options in deltalake's spelling, sorted for the library that reads and writes our own files.

deltalake ignores a key that it doesn't know, and takes settings of the connection and of retries among the keys of the
store. obstore wants them apart, and refuses a key that it doesn't know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tidegate.pipelines.errors import UsageError

_CLIENT = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only"),
    *("http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"),
    *("proxy_excludes", "randomize_addresses", "read_timeout", "timeout", "user_agent"),
}
_S3 = {
    *("access_key_id", "checksum_algorithm", "container_authorization_token_file"),
    *("container_credentials_full_uri", "container_credentials_relative_uri", "default_region", "disable_tagging"),
    *("endpoint", "metadata_endpoint", "region", "request_payer", "role_arn", "role_session_name", "s3_express"),
    *("secret_access_key", "server_side_encryption", "session_token", "skip_signature", "sse_bucket_key_enabled"),
    *("sse_customer_key_base64", "sse_kms_key_id", "sts_endpoint", "unsigned_payload"),
    *("virtual_hosted_style_request", "web_identity_token_file"),
}
_OTHER_NAMES = {"endpoint_url": "endpoint", "token": "session_token", "endpoint_url_s3": "endpoint"}
_PREFIX = "aws_"
_BACKOFF = "backoff_config."
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The options of a store as obstore takes them.

    Args:
        config: of the store, among them credentials.
        client: of the connections.
        retry: of requests that fail.
    """

    config: dict[str, str] = field(repr=False)
    client: dict[str, Any]
    retry: dict[str, Any]


def settings_of(uri: str, options: Mapping[str, str]) -> StoreSettings:
    """Sort the storage options of a URI.

    Raises:
        UsageError: a setting of the retries is no number or duration.
    """
    config: dict[str, str] = {}
    client, retry, backoff = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    is_s3 = uri.startswith(("s3://", "s3a://"))
    for key, value in options.items():
        name = key.lower()
        short = name.removeprefix(_PREFIX)
        if short in _CLIENT:
            client[short] = _switch(value)
        elif name.startswith(_BACKOFF):
            inner = name.removeprefix(_BACKOFF)
            backoff[inner] = _number(key, value) if inner == "base" else _duration(key, value)
        elif name == "max_retries":
            retry[name] = int(_number(key, value))
        elif name == "retry_timeout":
            retry[name] = _duration(key, value)
        elif not is_s3:
            config[name] = value
        elif (key_of_s3 := _OTHER_NAMES.get(short, short)) in _S3:
            config[key_of_s3] = value
    if backoff:
        retry["backoff"] = backoff
    return StoreSettings(config, client, retry)


def _switch(value: str) -> str | bool:
    return value.lower() == "true" if value.lower() in ("true", "false") else value


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"storage option {key!r}: give a number in quotes") from None


def _duration(key: str, value: str) -> timedelta:
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise UsageError(f'storage option {key!r}: give a duration, such as "500ms", "10s" or "3m"')
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
