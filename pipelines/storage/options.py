"""Storage options as in deltalake, converted for the library that reads and writes Tidegate's own files.

deltalake ignores unknown keys, and accepts connection and retry settings among the keys of the store. obstore wants
these separate, and refuses unknown keys. Both only get options that were checked here: a wrong value would cause a
panic, a message that does not name the option, or requests to the wrong host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
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
_OF_DELTALAKE = {
    *("allow_unsafe_rename", "assume_role_arn", "bucket", "bucket_name", "conditional_put", "config"),
    *("copy_if_not_exists", "disable_bulk_delete", "dynamo_lock_table_name", "endpoint_url_dynamodb"),
    *("endpoint_url_sts", "force_credential_load", "force_path_style", "iam_role_arn", "iam_role_session_name"),
    *("imdsv1_fallback", "profile"),
    *("region_dynamodb", "s3_addressing_style", "s3_allow_unsafe_rename", "s3_assume_role_arn", "s3_force_path_style"),
    *("s3_get_internal_server_error_retries", "s3_locking_provider", "s3_pool_idle_timeout_seconds"),
    *("s3_role_session_name", "shared_credentials_file", "sts_pool_idle_timeout_seconds", "sts_regional_endpoints"),
}
"""S3 options that deltalake supports but Tidegate's own file access does not need."""

_AZURE = {
    *("access_key", "account_key", "account_name", "authority_host", "authority_id", "bearer_token", "client_id"),
    *("client_secret", "container_name", "disable_tagging", "endpoint", "fabric_cluster_identifier"),
    *("fabric_session_token", "fabric_token_service_url", "fabric_workload_host", "federated_token_file"),
    *("identity_endpoint", "master_key", "msi_endpoint", "msi_resource_id", "object_id", "sas_key", "sas_token"),
    *("skip_signature", "tenant_id", "token", "use_azure_cli", "use_emulator", "use_fabric_endpoint"),
}
_WITHOUT_AZURE = {
    "access_key",
    "account_key",
    "account_name",
    "master_key",
    "sas_key",
    "sas_token",
    "token",
    "use_emulator",
}
"""Names that may begin with `azure_storage_`, but not with `azure_`: deltalake would ignore them."""
_GOOGLE = {
    *("application_credentials", "base_url", "bucket", "bucket_name", "service_account", "service_account_key"),
    *("service_account_path", "skip_signature"),
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of store: the names of its options without prefix, and the prefixes that they may have, longest first."""

    names: Set[str]
    prefixes: tuple[str, ...]

    def short(self, key: str) -> str:
        """Return the name of an option in lower case, without its prefix."""
        name = key.lower()
        short = next((name.removeprefix(prefix) for prefix in self.prefixes if name.startswith(prefix)), name)
        return name if name == f"azure_{short}" and short in _WITHOUT_AZURE else short


_OF_S3 = _Kind({*_S3, *_OTHER_NAMES, *_OF_DELTALAKE}, ("aws_",))
_OF_AZURE = _Kind(_AZURE, ("azure_storage_", "azure_"))
_OF_GOOGLE = _Kind(_GOOGLE, ("google_",))
_KINDS = {
    **dict.fromkeys(("s3", "s3a"), _OF_S3),
    **dict.fromkeys(("az", "adl", "azure", "abfs", "abfss"), _OF_AZURE),
    "gs": _OF_GOOGLE,
}
_UNKNOWN = _Kind(frozenset(), ("aws_",))

_RETRIES = {"max_retries", "retry_timeout"}
_PREFIX = "aws_"
_ALIKE = 0.74
"""Similarity from which an unknown name counts as misspelled, such as `secret_key` for `secret_access_key`."""
_BARE_NUMBER = re.compile(r"\s*\d+(\.\d+)?\s*")
_PLACE = "set it as {name} in [storage_options] of tidegate.toml, or as {variable} in the environment"
_BACKOFF = "backoff_config."
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_YES = ("true", "1", "t", "y", "yes", "on")
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The options of a store in the form that obstore expects.

    Args:
        config: options of the store, including credentials.
        client: options of the connections, including the address of a proxy, which may have a password.
        retry: options for failed requests.
    """

    config: dict[str, str] = field(repr=False)
    client: dict[str, Any] = field(repr=False)
    retry: dict[str, Any]


def settings_of(uri: str, options: Mapping[str, str]) -> StoreSettings:
    """Sort the storage options of a URI.

    Raises:
        UsageError: `check` refuses them, or a retry setting is not a number or duration.
    """
    check(uri, options)
    config: dict[str, str] = {}
    client, retry, backoff = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    kind = _kind(uri)
    for key, value in options.items():
        name, short = key.lower(), kind.short(key)
        if short in _CLIENT:
            client[short] = _switch(value)
        elif name.startswith(_BACKOFF):
            inner = name.removeprefix(_BACKOFF)
            backoff[inner] = _number(key, value) if inner == "base" else _duration(key, value)
        elif name == "max_retries":
            retry[name] = int(_number(key, value))
        elif name == "retry_timeout":
            retry[name] = _duration(key, value)
        elif kind is _OF_S3:
            if (key_of_s3 := _OTHER_NAMES.get(short, short)) in _S3:
                config[key_of_s3] = value
        elif not name.startswith(_PREFIX):
            # S3's options also come from the environment, even for other stores.
            config[name] = value
    if backoff:
        retry["backoff"] = backoff
    return StoreSettings(config, client, retry)


def check(uri: str, options: Mapping[str, str]) -> None:
    """Check the storage options of a URI. Messages show no values except the address of a server.

    Raises:
        UsageError: an option is misspelled, is not a duration, or conflicts with another one.
    """
    kind = _kind(uri)
    short = {kind.short(key): (key, value) for key, value in options.items()}
    for name, (key, value) in short.items():
        if name.endswith("timeout") and name in _CLIENT and _BARE_NUMBER.fullmatch(value):
            raise UsageError(f'storage option {key!r}: give a duration with its unit, such as "500ms", "10s" or "3m"')
        _check_name(kind, name, key)
    if kind is _OF_S3:
        _check_s3(uri, short)


def _check_s3(uri: str, short: Mapping[str, tuple[str, str]]) -> None:
    """Check the options of an S3 bucket, by their names without prefix, each with the key that was given."""
    given = {_OTHER_NAMES.get(name, name) for name, (_, value) in short.items() if value}
    for name, other in (("access_key_id", "secret_access_key"), ("secret_access_key", "access_key_id")):
        if name in given and other not in given:
            place = _PLACE.format(name=f"{_PREFIX}{other}", variable=f"{_PREFIX}{other}".upper())
            raise UsageError(f"the credentials of {uri} have {_PREFIX}{name} but no {_PREFIX}{other}: {place}")
    address = next((value for name, (_, value) in short.items() if _OTHER_NAMES.get(name, name) == "endpoint"), None)
    if address is None:
        return
    if not address.lower().startswith(("http://", "https://")):
        raise UsageError(
            f"aws_endpoint_url = {_without_user(address)!r}: the address of the store's server must begin with "
            "https:// or http://, such as https://minio.example.org:9000"
        )
    allowed = short.get("allow_http", ("", "false"))[1]
    if address.lower().startswith("http://") and allowed.lower() not in _YES:
        place = _PLACE.format(name="aws_allow_http", variable="AWS_ALLOW_HTTP")
        raise UsageError(
            f"aws_endpoint_url = {_without_user(address)!r} is not encrypted. If that is intended, allow it with "
            f'aws_allow_http = "true": {place}'
        )


def _check_name(kind: _Kind, name: str, key: str) -> None:
    names = {*_CLIENT, *kind.names, *_RETRIES}
    if not kind.names or name in names or name.startswith((_BACKOFF, _PREFIX)) or name.endswith("_dynamodb"):
        return
    if close := get_close_matches(name, sorted(names), 1, _ALIKE):
        prefix = "" if close[0] in _RETRIES else key.lower().removesuffix(name)
        raise UsageError(f"storage option {key!r} is unknown; did you mean '{prefix}{close[0]}'?")


def _kind(uri: str) -> _Kind:
    return _KINDS.get(uri.partition("://")[0].lower(), _UNKNOWN)


def _without_user(address: str) -> str:
    """Return an address without a name and password before its host."""
    return re.sub(r"^(\w+://)?[^/@]*@", r"\1", address)


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
