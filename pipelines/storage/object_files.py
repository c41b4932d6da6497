"""The files of an object store as an Arrow file system, with as few requests as possible.

Reading a small file and writing a file take one request each, and requests never block other Python threads: the lease
has to be renewed even while a store is slow. docs/decisions/stores.md says why deltalake's own file system is not used.
"""

from __future__ import annotations

import io
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from tidegate.extras import require
from tidegate.pipelines.errors import BucketMissing, StoreFailed
from tidegate.pipelines.failures import with_remedy
from tidegate.pipelines.storage.ahead import AT_ONCE, ahead
from tidegate.pipelines.storage.credentials import masked, other_variables
from tidegate.pipelines.storage.options import settings_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TAIL = 1 << 19
"""Number of bytes at the end of a file that the first request reads. They hold most files whole, and the footers of the
others.
"""

_CHUNK = 32 << 20
"""Files of at least this many bytes are uploaded in parts, with one request per part."""

_LIST_ATTEMPTS = 3
"""Attempts to list a folder."""

_CUT = "response body"
"""Text in the error message for a truncated response."""

_WRITE = "write"
_LONG_SECONDS = 5.0
"""Time from which a request is logged as slow. A large file may take as long to write."""

_log = logging.getLogger(__name__)

_MISSING_BUCKET = re.compile(r"(?s)NoSuchBucket|performing list request.*404 Not Found")

Answer = TypeVar("Answer")

_opening = threading.Lock()
"""Lock that is held while a store is opened, because the library then reads the environment."""


@dataclass(frozen=True, slots=True)
class Version:
    """The content of an object at one point in time.

    Args:
        content: its bytes.
        mark: identifies this version to the store.
    """

    content: bytes
    mark: dict[str, str]


class ObjectFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """The files of one bucket, by their keys. It only writes whole files, with `put`.

    Args:
        store: the bucket.
        address: the bucket's URI, for messages.
        timer: returns seconds from a monotonic clock.
    """

    def __init__(self, store: ObjectStore, address: str, timer: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.address = address
        self._timer = timer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFiles) and self.store == other.store

    def __hash__(self) -> int:
        return hash(self.address)

    def put(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a file; an existing one is replaced atomically, so readers see the old content or the new."""
        with self._as_store_error(_WRITE, path):
            self.store.put(path, bytes(content), chunk_size=_CHUNK)

    def create(self, path: str, content: bytes) -> bool:
        """Write a file unless it exists; return False if the store refused it. deltalake commits in this way."""
        from obstore.exceptions import AlreadyExistsError

        with self._as_store_error(_WRITE, path):
            try:
                self.store.put(path, content, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def version(self, path: str) -> Version | None:
        """Return the content of a file with the mark that `replace` needs, or None if there is no file."""
        with self._as_store_error("read", path):
            try:
                answer = self.store.get(path)
                content = bytes(answer.bytes())
            except FileNotFoundError:
                return None
        meta = answer.meta
        mark = {name: str(meta[name]) for name in ("e_tag", "version") if meta.get(name) is not None}
        return Version(content, mark)

    def replace(self, path: str, content: bytes, version: Version) -> bool:
        """Replace a version of a file. Return False if the file's version has changed."""
        from obstore.exceptions import PreconditionError

        with self._as_store_error(_WRITE, path):
            try:
                self.store.put(path, content, mode=version.mark)  # type: ignore[arg-type]
            except (PreconditionError, FileNotFoundError):
                return False
        return True

    def below(self, folder: str) -> dict[str, float]:
        """Return the paths of all files below a folder, with the times of their last write."""

        def listed() -> dict[str, float]:
            pages = self.store.list(folder)
            return {meta["path"]: meta["last_modified"].timestamp() for page in pages for meta in page}

        with self._as_store_error("list", folder):
            return _repeated(listed)

    def listed_after(self, folder: str, name: str) -> dict[str, tuple[object, ...]]:
        """Return the files of a folder whose names sort after a name, each with an identity of its content.

        Names in subfolders are left out. The store returns a thousand names per request.
        """

        def listed() -> dict[str, tuple[object, ...]]:
            below = f"{folder}/"
            pages = self.store.list(folder, offset=f"{below}{name}")
            metas = ((meta["path"].removeprefix(below), meta) for page in pages for meta in page)
            return {
                inner: (meta["e_tag"], meta["size"], meta["last_modified"]) for inner, meta in metas if "/" not in inner
            }

        with self._as_store_error("list", folder):
            return _repeated(listed)

    def remove(self, path: str) -> None:
        """Remove a file; a missing file is not an error."""
        try:
            self.delete_file(path)
        except FileNotFoundError:
            # Some stores report a missing file, others don't.
            return

    def has(self, folder: str, is_wanted: Callable[[str], bool]) -> bool:
        """Return True if a folder has a file with a wanted name. The search stops at the first one."""

        def searched() -> bool:
            pages = self.store.list(folder, chunk_size=100)
            return any(is_wanted(meta["path"].rpartition("/")[2]) for page in pages for meta in page)

        with self._as_store_error("list", folder):
            return _repeated(searched)

    def get_type_name(self) -> str:
        return "object store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        # The store describes one file per request.
        return [described() for described in ahead((partial(self._info, path) for path in paths), at_first=AT_ONCE)]

    def _info(self, path: str) -> fs.FileInfo:
        """Describe a file. A folder counts as missing, because no object represents it."""
        try:
            with self._as_store_error("look for", path):
                return _described(self.store.head(path))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        def listed() -> list[fs.FileInfo]:
            if selector.recursive:
                return [_described(meta) for page in self.store.list(selector.base_dir) for meta in page]
            here = self.store.list_with_delimiter(selector.base_dir)
            folders = [fs.FileInfo(prefix, fs.FileType.Directory) for prefix in here["common_prefixes"]]
            return [*folders, *map(_described, here["objects"])]

        with self._as_store_error("list", selector.base_dir):
            return _repeated(listed)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        with self._as_store_error("read", path):
            return pa.BufferReader(pa.py_buffer(self.store.get(path).bytes()))

    def open_input_file(self, path: str) -> pa.NativeFile:
        with self._as_store_error("read", path):
            try:
                answer = self.store.get(path, options={"range": {"suffix": _TAIL}})
                size, tail = answer.meta["size"], answer.bytes()
            except FileNotFoundError:
                raise
            except Exception:
                # Azure does not support ranges counted from the end, and S3 no ranges of an empty file.
                size, tail = self.store.head(path)["size"], None
        if tail is not None and len(tail) == size:
            return pa.BufferReader(pa.py_buffer(tail))
        return pa.PythonFile(_Ranges(self, path, size, bytes(tail or b"")), mode="r")

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from `start` up to `end`."""
        with self._as_store_error("read", path):
            return bytes(self.store.get_range(path, start=start, end=end))

    def delete_file(self, path: str) -> None:
        with self._as_store_error("delete", path):
            self.store.delete(path)

    def copy_file(self, src: str, dest: str) -> None:
        with self._as_store_error("copy", src):
            self.store.copy(src, dest)

    def create_dir(self, path: str, recursive: bool) -> None:
        """Do nothing: the first file in a folder creates it."""

    def delete_dir(self, path: str) -> None:
        self.delete_dir_contents(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        with self._as_store_error("delete", path):
            for page in self.store.list(path):
                self.store.delete([meta["path"] for meta in page])

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("a whole bucket is never deleted")

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError("an object store can't rename: put the content at the new name")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("a partly written file must not become visible: use put")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("an object can't be appended to")

    @contextmanager
    def _as_store_error(self, doing: str, path: str) -> Iterator[None]:
        """Convert a failure of the store to an error that callers retry; a missing file stays FileNotFoundError.

        The library repeats a failed request silently, so a request that took long is logged.
        """
        from obstore.exceptions import BaseError

        place, began = f"{self.address}/{path}", self._timer()
        try:
            yield
            if (seconds := self._timer() - began) > _LONG_SECONDS:
                _log.warning(
                    "%s did not answer, or was slow: the request to %s %s took %.0f s and was repeated if it "
                    "failed. It is done now, and the run continues",
                    self.address,
                    doing,
                    place,
                    seconds,
                )
        except FileNotFoundError as error:
            if doing == _WRITE or is_without_bucket(error):
                # Another command's cleanup may have ended the upload of a large file.
                raise store_failed(doing, place, error) from None
            raise FileNotFoundError(f"there is no {place}") from None
        except (BaseError, OSError) as error:
            raise store_failed(doing, place, error) from None


class _Ranges(io.RawIOBase):
    """A file that is read in ranges, each with one request; its end has already been read."""

    def __init__(self, files: ObjectFiles, path: str, size: int, tail: bytes) -> None:
        self._files, self._path, self._size, self._tail = files, path, size, tail
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        start = self._at
        end = self._size if size is None or size < 0 else min(start + size, self._size)
        if start >= end:
            return b""
        self._at, tail = end, self._size - len(self._tail)
        if start >= tail:
            return self._tail[start - tail : end - tail]
        return self._files.read_range(self._path, start, min(end, tail)) + self._tail[: max(0, end - tail)]


def _repeated(look: Callable[[], Answer]) -> Answer:
    """Retry a read from a store a few times: the library retries failed requests, but not truncated responses."""
    from obstore.exceptions import BaseError

    for _ in range(_LIST_ATTEMPTS - 1):
        try:
            return look()
        except BaseError as error:
            if _CUT not in str(error):
                raise
    return look()


def _described(meta: Any) -> fs.FileInfo:
    return fs.FileInfo(meta["path"], fs.FileType.File, size=meta["size"], mtime=meta["last_modified"])


def object_files(uri: str, options: dict[str, str]) -> tuple[ObjectFiles, str]:
    """Return the files of an object store, and the key that a URI has in it.

    Args:
        uri: such as `s3://bucket/folder`.
        options: storage options as in deltalake.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return _opened(f"{scheme}://{bucket}", tuple(sorted(options.items()))), "/".join(filter(None, key.split("/")))


@lru_cache(maxsize=16)
def _opened(address: str, options: tuple[tuple[str, str], ...]) -> ObjectFiles:
    require(f"the object store {address}", "obstore")
    from obstore import store as stores

    settings = settings_of(address, dict(options))
    # obstore has a type for each kind of store; the address shows which one applies.
    from_url: Any = stores.from_url
    with _opening:
        hidden = {name: os.environ.pop(name) for name in other_variables(dict(options))}
        try:
            store = from_url(
                address, config=settings.config, client_options=settings.client, retry_config=settings.retry
            )
        finally:
            os.environ.update(hidden)
    return ObjectFiles(store, address)


def store_failed(doing: str, place: str, error: BaseException) -> StoreFailed:
    """Return the error, with its remedy, for a request that a store failed to carry out.

    Args:
        doing: the request, such as `list`.
        place: URI in the request.
        error: the failure as the store's library raised it.
    """
    if is_without_bucket(error):
        bucket = place.partition("://")[2].partition("/")[0]
        return BucketMissing(
            f"there is no bucket {bucket!r}, which {place} names: create it in the store, or correct the name "
            "(`warehouse` or `artifacts` in tidegate.toml, a place of savepoints, or the table of a source) or the "
            "address of the store"
        )
    return StoreFailed(masked(f"can't {doing} {place}: {with_remedy(error)}"))


def is_without_bucket(error: BaseException) -> bool:
    """Return True if the bucket does not exist: a list request fails this way only for a missing bucket."""
    return _MISSING_BUCKET.search(str(error)) is not None
