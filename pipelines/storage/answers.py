"""Failed requests to an object store, as errors of this package with a remedy."""

from __future__ import annotations

import re

from tidegate.pipelines.errors import BucketMissing, StoreFailed
from tidegate.pipelines.failures import in_words, remedy_for
from tidegate.pipelines.storage.credentials import masked

_MISSING_BUCKET = re.compile(r"(?s)NoSuchBucket|performing list request.*404 Not Found")


def store_failed(doing: str, place: str, error: BaseException) -> StoreFailed:
    """Return the error for a request that a store failed to carry out.

    Args:
        doing: the request, such as `list`.
        place: URI in the request.
        error: the failure as the store's library raised it.
    """
    if is_without_bucket(error):
        return no_bucket(place)
    return StoreFailed(masked(f"can't {doing} {place}: {with_remedy(error)}"))


def with_remedy(error: BaseException) -> str:
    """Return an object store's error as a message, with the remedy if there is one."""
    return ". ".join(filter(None, (in_words(error), remedy_for(error))))


def is_without_bucket(error: BaseException) -> bool:
    """Return True if the bucket does not exist: a list request fails this way only for a missing bucket."""
    return _MISSING_BUCKET.search(str(error)) is not None


def no_bucket(place: str) -> BucketMissing:
    """Return the error for a request to a bucket that does not exist; `place` is a URI in it."""
    bucket = place.partition("://")[2].partition("/")[0]
    return BucketMissing(
        f"there is no bucket {bucket!r}, which {place} names: create it in the store, or correct the name "
        "(`warehouse`, `artifacts` or `backups` in tidegate.toml, or the table of a source) or the address of the store"
    )
