"""Credentials of an object store: where they come from, and how they stay out of everything that people read.

The first of these that has a key gives it: `storage_options` of tidegate.toml, the Airflow connection that the file
names, the environment (`AWS_*`), the profile in `AWS_PROFILE`. Without any, the store's libraries ask the platform:
the role of an instance, a container or a web identity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from pathlib import Path

from tidegate.pipelines.errors import UsageError

_ACCESS, _SECRET, _TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
_KEYS = (_ACCESS, _SECRET, _TOKEN)
_PLACES = ("aws_region", "aws_default_region", "aws_endpoint_url", "aws_allow_http")
_PROFILE = "AWS_PROFILE"
_OTHER_NAMES = {
    **{name.removeprefix("aws_"): name for name in (*_KEYS, *_PLACES)},
    "aws_token": _TOKEN,
    "token": _TOKEN,
    "aws_endpoint": "aws_endpoint_url",
    "endpoint": "aws_endpoint_url",
}
_SECRET_PARTS = ("secret", "token", "password", "account_key", "account_token", "sas", "private_key", "customer_key")
"""Parts of the names of options whose values must not be shown."""
_MASK = "***"
_SHORTEST = 6
"""A secret of fewer letters is not masked: it would mask words."""

_secrets: set[str] = set()
_maskers: list[Callable[[str], None]] = []
_connections: list[Callable[[str], Mapping[str, str]]] = []


def read_connections_by(options_of: Callable[[str], Mapping[str, str]]) -> None:
    """Let a function return the storage options of an Airflow connection; processes of Airflow call this."""
    _connections[:] = [options_of]


def mask_secrets_by(mask: Callable[[str], None]) -> None:
    """Let a function mask each secret that this process gets to know; processes of Airflow call this."""
    _maskers[:] = [mask]


def complete(given: Mapping[str, str], connection: str | None = None) -> dict[str, str]:
    """Return storage options, with the credentials and the place of the store that they leave to others.

    Options come back as they were given, so that tasks on other machines get the driver's credentials with them.

    Args:
        given: storage options of tidegate.toml.
        connection: name of an Airflow connection; outside of Airflow it is passed over.

    Raises:
        UsageError: AWS_PROFILE names a profile that has no key of its own.
    """
    options = dict(given)
    present = {_usual(name) for name in options}
    sources: list[Mapping[str, str]] = []
    if connection is not None and _connections:
        sources.append(_connections[-1](connection))
    sources.append({name: os.environ[name.upper()] for name in (*_KEYS, *_PLACES) if os.environ.get(name.upper())})
    if profile := os.environ.get(_PROFILE):
        has_key = _ACCESS in present or any(_ACCESS in map(_usual, source) for source in sources)
        sources.append(_of_profile(profile, has_key))
    # A key, its secret and its token belong together.
    keys = next((source for source in sources if _ACCESS not in present and _ACCESS in map(_usual, source)), {})
    options |= {name: value for name, value in keys.items() if _usual(name) in _KEYS}
    for source in sources:
        for name, value in source.items():
            if _usual(name) in _PLACES and _usual(name) not in present:
                options[name] = value
                present.add(_usual(name))
    remember(options)
    return options


def remember(options: Mapping[str, str]) -> None:
    """Mask the secrets among storage options from now on."""
    for name, value in options.items():
        is_secret = any(part in name.lower() for part in _SECRET_PARTS) and len(value) >= _SHORTEST
        if is_secret and value not in _secrets:
            _secrets.add(value)
            for mask in _maskers:
                mask(value)


def masked(text: str) -> str:
    """Return a text without the secrets of the stores that this process opened."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


def _usual(name: str) -> str:
    lower = name.lower()
    return _OTHER_NAMES.get(lower, lower)


def _of_profile(profile: str, has_key: bool) -> dict[str, str]:
    """Return key and region of a profile of the AWS command line."""
    home = Path.home() / ".aws"
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials")),
        os.environ.get("AWS_CONFIG_FILE", str(home / "config")),
    )
    # A value may have a percent sign.
    parser = ConfigParser(interpolation=None)
    parser.read(files, encoding="utf-8")
    found_in = [section for section in (profile, f"profile {profile}") if parser.has_section(section)]
    values = {name: value for section in found_in for name, value in parser[section].items()}
    if _ACCESS not in values and not has_key:
        raise UsageError(
            f"{_PROFILE} = {profile!r}: {' and '.join(files)} have no aws_access_key_id of this profile. For a profile "
            "that takes its keys from a role or a sign-on, put them into the environment first: "
            f"`eval $(aws configure export-credentials --profile {profile} --format env)`, and unset {_PROFILE}"
        )
    options = {name: values[name] for name in _KEYS if name in values}
    return {**options, "aws_region": values["region"]} if "region" in values else options
