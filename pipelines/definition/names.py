"""Checks of folder addresses, and of the names of pipelines, savepoints and tables, which become folder names."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import islice

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
NAME_RULE = "use a letter from a to z or A to Z, then up to 99 such letters, digits, _ or -"

STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure")
"""Object store schemes that both deltalake and obstore support."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/*)")
_OTHER_MEANING = "%#?[]^|\\"
"""Characters that have a special meaning in a URL, which is how deltalake parses addresses, or that crash the process.
"""


def count_of(number: int, noun: str) -> str:
    """Return a number with a noun.

    >>> count_of(1, "row"), count_of(2, "row")
    ('1 row', '2 rows')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Collection[str], most: int = 12) -> str:
    """Return names for a message, separated by commas; if there are many, the first ones and how many more."""
    first = ", ".join(islice(names, most))
    return first if len(names) <= most else f"{first} and {len(names) - most} more"


def check_name(name: str) -> str:
    """Return a name unchanged if it can name a pipeline or savepoint.

    Raises:
        ValueError: it is empty, too long, or contains anything but letters, digits, `_` and `-`.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r}: {NAME_RULE}")
    return name


def check_address(address: str) -> str:
    """Return a path, or the URI of a folder in an object store, unchanged.

    The key in a URI is written as the store displays it, with spaces and letters of any language.

    Raises:
        ValueError: it is neither; the message shows no part that may be a password.
    """
    match = _SCHEME.match(address)
    if match is None or match[1] == "file":
        return address
    scheme, rest = match[1], address[match.end() :]
    if scheme not in STORES:
        raise ValueError(f"{scheme[:20]!r} is not an object store: give a folder, or a URI with s3://, gs:// or az://")
    bucket, _, key = rest.partition("/")
    if match[2] != "//" or not bucket:
        raise ValueError(f"write it as {scheme}://bucket/folder")
    if ":" in bucket:
        raise ValueError(
            "a URI can't have a key or a password: put them into [storage_options], or into the environment as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if bad := [letter for letter in rest if letter in _OTHER_MEANING or not letter.isprintable()]:
        raise ValueError(
            f"a URI can't have {bad[0]!r}, nor any of {' '.join(_OTHER_MEANING)}: write the folder's name as the store "
            "shows it, with spaces as spaces, or give another folder"
        )
    if key.strip("/") and {"", ".", ".."} & set(key.rstrip("/").split("/")):
        raise ValueError("a URI can't have the folders '.' or '..', or an empty one, as in 'a//b'")
    return address
