"""Credentials of an object store from an Airflow connection, for commands and for tasks that read tables.

A command gets them through its environment, which only its user can read: they never appear in a command line,
template, log or file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidegate.pipelines.airflow.provider import CONNECTION_TYPE
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.storage.credentials import FURTHER, further, options_in

_ROLES = ("role_arn", "assume_role_method", "profile_name")
_OTHER_OPTIONS = "secret_storage_options"
"""Field of a connection of type `tidegate` with further storage options, as JSON."""


def options_of(connection_id: str) -> dict[str, str]:
    """Return the storage options for an Airflow connection of type `tidegate` or `aws`.

    Raises:
        UsageError: there is no such connection, a field of it can't be read, or it names a role and the Amazon provider
            is not installed.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException

    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowException as error:
        raise UsageError(
            f"connection = {connection_id!r} in tidegate.toml: Airflow has no such connection; add it under Admin, "
            f"Connections, or set AIRFLOW_CONN_{connection_id.upper()}"
        ) from error
    extra: dict[str, Any] = connection.extra_dejson
    options: dict[str, str | None] = {
        "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
        "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "aws_region": extra.get("region_name"),
        "aws_endpoint_url": extra.get("endpoint_url"),
    }
    if connection.conn_type == CONNECTION_TYPE:
        options |= options_in(extra.get(_OTHER_OPTIONS), f"connection {connection_id!r}: {_OTHER_OPTIONS}")
    elif any(extra.get(name) for name in _ROLES):
        options |= _by_role(connection_id)
    if str(options["aws_endpoint_url"] or "").startswith("http://"):
        options.setdefault("aws_allow_http", "true")
    return {name: str(value) for name, value in options.items() if value}


def _by_role(connection_id: str) -> dict[str, str | None]:
    """Return the keys that Airflow's own hook obtains for a connection with a role or a profile."""
    try:
        from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook  # type: ignore[import-not-found]
    except ImportError as error:
        raise UsageError(
            f"connection = {connection_id!r} in tidegate.toml names a role or a profile: install "
            "apache-airflow-providers-amazon, which gets its keys, or give the connection a key"
        ) from error
    keys = AwsBaseHook(aws_conn_id=connection_id).get_credentials()
    return {
        "aws_access_key_id": keys.access_key,
        "aws_secret_access_key": keys.secret_key,
        "aws_session_token": keys.token,
    }


def environment_of(config_file: str) -> dict[str, str | None]:
    """Return the variables with which a command opens its project's object store. None removes a variable."""
    try:
        config = load_config(Path(config_file))
    except UsageError:
        # The command itself reports this error, with the exit code that makes its task fail without retries.
        return {}
    if config.connection is None:
        return {}
    given = options_of(config.connection)
    others = further(given)
    options = {name.upper(): value for name, value in given.items() if name not in others}
    if others:
        options[FURTHER] = json.dumps(others)
    # Otherwise another key's token would be used with this key.
    return {"AWS_SESSION_TOKEN": None, **options} if "AWS_ACCESS_KEY_ID" in options else dict(options)
