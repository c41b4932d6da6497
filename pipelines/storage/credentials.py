"""Credentials of an object store: where they come from, and how they are kept out of all output.

Credentials are looked up in this order, and the first match is used: `storage_options` of tidegate.toml, including
`aws_profile`; the Airflow connection that the file names; the environment (`AWS_*`); the profile in `AWS_PROFILE` or,
for an S3 bucket, the profile `default`. If there are none, the store's libraries ask the platform for the role of an
instance, a container or a web identity. A connection of type `tidegate` may have further options of the store, which
are passed to a command as JSON in `TIDEGATE_STORAGE_OPTIONS`.
"""

from __future__ import annotations

import json
import os
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from configparser import ConfigParser
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote

from tidegate.pipelines.errors import UsageError

_ACCESS, _SECRET, _TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
_KEYS = (_ACCESS, _SECRET, _TOKEN)
_PLACES = ("aws_region", "aws_default_region", "aws_endpoint_url", "aws_allow_http")
_PROFILE, _PROFILE_OPTION = "AWS_PROFILE", "aws_profile"
_DEFAULT_PROFILE = "default"
_WEB_IDENTITY = "AWS_WEB_IDENTITY_TOKEN_FILE"
"""Variables that the platform's credential chain reads before it looks for a profile."""
_TOKEN_VARIABLE, _ENDPOINT_OF_S3 = "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"
"""Variables that the libraries use in addition to the options, even if these set a key and an endpoint."""
FURTHER = "TIDEGATE_STORAGE_OPTIONS"
"""Environment variable that holds, as JSON, the storage options that have no variable of their own."""
_OTHER_NAMES = {
    **{name.removeprefix("aws_"): name for name in (*_KEYS, *_PLACES)},
    "aws_token": _TOKEN,
    "token": _TOKEN,
    "aws_endpoint": "aws_endpoint_url",
    "endpoint": "aws_endpoint_url",
    "allow_http": "aws_allow_http",
    "profile": _PROFILE_OPTION,
}
_SECRET_NAME = re.compile(
    r"secret|token|password|sas(?:_|$)|(?:account|private|customer|master|storage|encryption)_key|access_key$"
)
"""Names of options and settings whose values must not be shown, in lower case with `_`."""
_FILE_NAME = re.compile(r"_file$|_path$")
_SECRETS_WITHIN = (
    re.compile(r"://[^/@\s]*?:([^/@\s]+)@"),
    re.compile(r"\bsig=([^&\s]+)"),
    re.compile(r"\btoken=([^;&\s]+)"),
)
"""Secrets in the value of any option: a password in an address, an Azure signature, a Spark Connect token."""
_MASK = "***"
_SHORTEST = 6
"""Shortest secret that is masked. Shorter ones would match parts of ordinary words."""

_secrets: set[str] = set()
_maskers: list[Callable[[str], None]] = []
_connections: list[Callable[[str], Mapping[str, str]]] = []


def read_connections_by(options_of: Callable[[str], Mapping[str, str]]) -> None:
    """Register a function that returns the storage options of an Airflow connection; Airflow's processes call this."""
    _connections[:] = [options_of]


def mask_secrets_by(mask: Callable[[str], None]) -> None:
    """Register a function that masks each secret that this process learns; Airflow's processes call this."""
    _maskers[:] = [mask]


def complete(given: Mapping[str, str], connection: str | None = None, uri: str = "") -> dict[str, str]:
    """Return storage options completed with credentials and the location of the store from the environment.

    Given options are returned unchanged, so that tasks on other machines get the driver's credentials with them.

    Args:
        given: storage options of tidegate.toml.
        connection: name of an Airflow connection; ignored outside Airflow.
        uri: the URI that is opened with them; for an S3 bucket the profile `default` is used.

    Raises:
        UsageError: a named profile has no key, or TIDEGATE_STORAGE_OPTIONS is not a JSON object of strings.
    """
    written = _by_usual_name(given)
    connected = _connections[-1](connection) if connection is not None and _connections else {}
    sources = _sources(written, _by_usual_name(connected), uri)
    places = ChainMap(*sources)
    more = (
        {name: places[name] for name in _PLACES if name in places}
        | further(connected)
        | further(options_in(os.environ.get(FURTHER), FURTHER))
    )
    # Tasks on other machines get the profile's key, and do not look up the profile.
    options = {name: value for name, value in given.items() if _usual(name) != _PROFILE_OPTION}
    options |= {name: value for name, value in more.items() if _usual(name) not in written}
    if _ACCESS not in written:
        # A key, its secret and its token belong together.
        keys = next((source for source in sources if _ACCESS in source), {})
        options |= {name: keys[name] for name in _KEYS if name in keys}
    remember(options)
    return _alone(options)


def _sources(written: Mapping[str, str], connected: dict[str, str], uri: str) -> list[dict[str, str]]:
    """Return the options of each place in which credentials are looked up after tidegate.toml, first match first."""
    environment = {name: os.environ[name.upper()] for name in (*_KEYS, *_PLACES) if os.environ.get(name.upper())}
    if of_s3 := os.environ.get(_ENDPOINT_OF_S3):
        environment["aws_endpoint_url"] = of_s3
    sources = [connected, environment]
    if _PROFILE_OPTION in written:
        sources.insert(0, _of_profile(written[_PROFILE_OPTION], _PROFILE_OPTION, is_optional=_ACCESS in written))
    has_key = any(_ACCESS in source for source in (written, *sources))
    if profile := os.environ.get(_PROFILE):
        sources.append(_of_profile(profile, _PROFILE, is_optional=has_key))
    elif uri.startswith(("s3://", "s3a://")) and not has_key and not os.environ.get(_WEB_IDENTITY):
        sources.append(_of_profile(_DEFAULT_PROFILE, _PROFILE, is_optional=True))
    return sources


def other_variables(options: Mapping[str, str]) -> list[str]:
    """Return the environment variables that don't belong to the store that these options name.

    The libraries send the environment's token with any key, and prefer its S3 endpoint to any other.
    """
    usual = _by_usual_name(options)
    others = []
    if _ACCESS in usual and _TOKEN not in usual and _TOKEN_VARIABLE in os.environ:
        others.append(_TOKEN_VARIABLE)
    if "aws_endpoint_url" in usual and os.environ.get(_ENDPOINT_OF_S3, "") != usual["aws_endpoint_url"]:
        others.append(_ENDPOINT_OF_S3)
    return [name for name in others if name in os.environ]


def _alone(options: dict[str, str]) -> dict[str, str]:
    """Hide another store's environment variables from deltalake."""
    for name in other_variables(options):
        if name == _ENDPOINT_OF_S3:
            options[_ENDPOINT_OF_S3] = _by_usual_name(options)["aws_endpoint_url"]
        elif not _connections:
            # deltalake has no option that says "no token". Airflow's processes need theirs, for example for logs.
            del os.environ[name]
    return options


def further(options: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options that are neither credentials nor the store's location."""
    return {name: value for name, value in options.items() if _usual(name) not in (*_KEYS, *_PLACES)}


def options_in(given: object, place: str) -> dict[str, str]:
    """Return storage options that are given as JSON, as text or parsed.

    Args:
        given: the JSON; None or an empty string for none.
        place: where it comes from, for the message.

    Raises:
        UsageError: it is not a JSON object of strings.
    """
    try:
        options = json.loads(given) if isinstance(given, str) and given else given or {}
    except ValueError:
        options = None
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        # Raised outside the handler: the parser's error contains the text, which has secrets.
        raise UsageError(f'{place} is not a JSON object of strings, such as {{"account_key": "..."}}')
    return dict(options)


def remember(options: Mapping[str, object]) -> None:
    """Mask the secrets in these storage options or Spark settings from now on."""
    for name, value in options.items():
        for secret in _secrets_of(name.lower(), str(value)):
            if len(secret) >= _SHORTEST and secret not in _secrets:
                _secrets.add(secret)
                for mask in _maskers:
                    mask(secret)


def _secrets_of(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in an option or setting, in each form that messages may contain."""
    plain = name.replace(".", "_").replace("-", "_")
    secrets = [value] if _SECRET_NAME.search(plain) and not _FILE_NAME.search(plain) else []
    secrets += [match[1] for pattern in _SECRETS_WITHIN for match in pattern.finditer(value)]
    for secret in secrets:
        yield from (secret, unquote(secret), quote(secret), quote(secret, safe=""), quote_plus(secret))
        yield json.dumps(secret)[1:-1]


def masked(text: str) -> str:
    """Return a text without the secrets of the stores that this process opened."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


def _by_usual_name(options: Mapping[str, str]) -> dict[str, str]:
    return {_usual(name): value for name, value in options.items()}


def _usual(name: str) -> str:
    lower = name.lower()
    return _OTHER_NAMES.get(lower, lower)


def _of_profile(profile: str, given_as: str, *, is_optional: bool) -> dict[str, str]:
    """Return key, region and endpoint of a profile of the AWS command line."""
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
    if _ACCESS not in values and not is_optional:
        raise UsageError(
            f"{given_as} = {profile!r}: {' and '.join(files)} have no aws_access_key_id for this profile. For a "
            "profile that gets its keys from a role or a sign-on, put them into the environment first: "
            f"`eval $(aws configure export-credentials --profile {profile} --format env)`, and leave {given_as} out"
        )
    options = {name: values[name] for name in _KEYS if name in values}
    if "region" in values:
        options["aws_region"] = values["region"]
    if endpoint := values.get("endpoint_url"):
        options["aws_endpoint_url"] = endpoint
        if endpoint.startswith("http://"):
            options["aws_allow_http"] = "true"
    return options
