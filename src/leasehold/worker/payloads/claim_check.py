"""Bodies over the limit of a service: kept elsewhere, with a small reference in the message."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from typing import IO, Any, Final

from leasehold.clock import Clock, SystemClock
from leasehold.disk import sync
from leasehold.worker.errors import Poison
from leasehold.worker.payloads.codecs import BytesCodec, Codec
from leasehold.worker.payloads.reading import CheckedReader
from leasehold.worker.payloads.reference import (
    ClaimCheckProblem,
    KeptBody,
    Reference,
    is_object_name,
    looks_like_reference,
    name_below,
    object_name,
    read_reference,
    without_credentials,
)

THRESHOLD_BYTES: Final = 32 * 1024
"""In base64 this leaves a third of the 64 KiB of Azure and MNS for progress."""
MOST_BYTES: Final = 1024 * 1024 * 1024
_CHUNK: Final = 1024 * 1024
_IN_MEMORY: Final = 8 * 1024 * 1024


class ClaimCheck:
    """Keeps large bodies as objects below one url; needs ``fsspec``.

    ::

        check = ClaimCheck("s3://bucket/bodies", key=..., secret=...)
        queue = ClaimChecked(AzureQueue(...), check)      # to put
        Worker(handle, queues=[queue], codec=ClaimCheckCodec(check, JsonCodec()))

    An object is complete, and on disk if it is a local file, before its message is sent: a crash in
    between leaves an object that no message leads to, which :meth:`sweep` removes.

    References are trusted as far as messages are: whoever may send messages, and knows the url of
    an object, can have it read, and deleted if objects are deleted after completion.

    Args:
        url: The root: a path, or any url that fsspec opens (``file://``, ``s3://``, ``gs://``,
            ``abfs://``, ``memory://``). Only objects below it are ever opened.
        threshold_bytes: Bodies that are longer are kept as objects.
        max_bytes: No object that is larger is written or read.
        clock: For the age of objects.
        storage_options: For fsspec, credentials among them. These never reach a message.

    Raises:
        ImportError: fsspec, or what it needs for the url, is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        threshold_bytes: int = THRESHOLD_BYTES,
        max_bytes: int = MOST_BYTES,
        clock: Clock | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        fsspec: Any = import_module("fsspec.core")  # an extra, and it comes without types

        if threshold_bytes < 0:
            raise ValueError(f"threshold_bytes is {threshold_bytes}; it must be 0 or more")
        if "://" not in url:
            url = os.path.abspath(url)  # noqa: PTH100 - a url stays text
        self.root_url = without_credentials(url)
        """What all references begin with."""
        self.threshold_bytes = threshold_bytes
        self.max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._files, self._root = fsspec.url_to_fs(url, **(storage_options or {}))
        self._is_local = "file" in _protocols(self._files)

    def __repr__(self) -> str:
        return f"ClaimCheck({self.root_url!r})"

    # --- putting -----------------------------------------------------------------------------

    def put(self, body: bytes, content_type: str = "application/octet-stream") -> bytes:
        """Return what to send for *body*: itself, or a reference to where it is kept.

        A small body that looks like a reference is kept as well, or its reader would follow it.
        What this or :meth:`put_stream` has returned is sent as it is.

        Raises:
            ValueError: It is over the limit.
            OSError: It could not be written.
        """
        if isinstance(body, KeptBody):
            return body
        if len(body) <= self.threshold_bytes and not looks_like_reference(body):
            return body
        digest = hashlib.sha256(body).hexdigest()
        return self._store(iter([body]), len(body), digest, content_type)

    def put_stream(
        self, source: IO[bytes], content_type: str = "application/octet-stream"
    ) -> bytes:
        """Return what to send for all that *source* gives, without holding it in memory.

        A source that cannot be read twice (the digest comes first) goes through a temporary file.

        Raises:
            ValueError: It is over the limit.
            OSError: It could not be read or written.
        """
        with _twice(source, self.max_bytes) as readable:
            begin = readable.tell()
            digest, size = hashlib.sha256(), 0
            for chunk in _chunks(readable):
                digest.update(chunk)
                size += len(chunk)
                self._check_size(size)
            readable.seek(begin)
            if size <= self.threshold_bytes:
                return self.put(readable.read(size), content_type)
            same = _same(_chunks(readable), digest.hexdigest())
            return self._store(same, size, digest.hexdigest(), content_type)

    def _store(self, chunks: Iterator[bytes], size: int, digest: str, content_type: str) -> bytes:
        self._check_size(size)
        name = object_name(digest, secrets.token_hex(8))
        path = self._path(name)
        try:
            self._write(path, chunks)
        except BaseException:
            self._remove(path)
            raise
        return Reference(
            url=f"{self.root_url}/{name}", size=size, sha256=digest, content_type=content_type
        ).to_body()

    def _write(self, path: str, chunks: Iterator[bytes]) -> None:
        folder = path.rpartition("/")[0]
        self._files.makedirs(folder, exist_ok=True)
        with self._files.open(path, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        if self._is_local:
            for each in (path, folder, self._root):
                sync(each)

    def _check_size(self, size: int) -> None:
        if size > self.max_bytes:
            raise ValueError(f"the body is over the {self.max_bytes} bytes of the claim check")

    # --- reading -----------------------------------------------------------------------------

    def fetch(self, body: bytes) -> bytes:
        """Return the body that *body* stands for: itself, or what its reference leads to.

        Raises:
            ClaimCheckProblem: There is no such object, it is damaged, or not below the root.
            OSError: It could not be read now.
        """
        reference = read_reference(body)
        if reference is None:
            return body
        with self._open(reference) as file:
            return file.read()

    async def afetch(self, body: bytes) -> bytes:
        """Do what :meth:`fetch` does, for asynchronous handlers."""
        return await asyncio.to_thread(self.fetch, body)

    def open(self, body: bytes) -> CheckedReader:
        """Return a reader of the body that *body* stands for, for bodies too large for memory.

        It is checked while it is read: what was read is right only once the end was reached
        without an error.

        Raises:
            ClaimCheckProblem: As for :meth:`fetch`; also raised by the reader.
            OSError: As for :meth:`fetch`.
        """
        reference = read_reference(body)
        return CheckedReader.of_bytes(body) if reference is None else self._open(reference)

    def _open(self, reference: Reference) -> CheckedReader:
        name = name_below(self.root_url, reference)
        if reference.size > self.max_bytes:
            raise ClaimCheckProblem(
                f"the reference leads to {reference.size} bytes; at most {self.max_bytes} are read"
            )
        try:
            file = self._files.open(self._path(name), "rb")
        except FileNotFoundError as error:
            raise ClaimCheckProblem(f"there is no object {reference.url}") from error
        return CheckedReader(file, size=reference.size, sha256=reference.sha256)

    # --- removing ----------------------------------------------------------------------------

    def delete(self, body: bytes) -> bool:
        """Remove the object that *body* refers to, if it does and if it is there.

        Only for messages that are completed: whoever receives a message that is still there needs
        its body.

        Returns: Whether *body* is a reference.

        Raises:
            ClaimCheckProblem: It leads to something that is not below the root.
            OSError: It could not be removed.
        """
        reference = read_reference(body)
        if reference is None:
            return False
        self._remove(self._path(name_below(self.root_url, reference)))
        return True

    def sweep(self, older_than_s: float) -> int:
        """Remove objects by their age; return how many there were.

        An object can be an orphan, or belong to a message that nobody has completed yet. So the age
        must be above the longest life of a message, in its queue and in the poison queue.

        Args:
            older_than_s: Seconds since an object was written.
        """
        before_ms = self._clock.now_ms() - older_than_s * 1000
        removed = 0
        for path, facts in self._objects():
            if self._written_ms(path, facts) < before_ms:
                self._remove(path)
                removed += 1
        return removed

    def _objects(self) -> list[tuple[str, Mapping[str, Any]]]:
        self._files.invalidate_cache()
        root = self._root.rstrip("/") + "/"
        found: Mapping[str, Mapping[str, Any]] = self._files.find(self._root, detail=True)
        return [
            (path, facts)
            for path, facts in found.items()
            if is_object_name(path.removeprefix(root))
        ]

    def _written_ms(self, path: str, facts: Mapping[str, Any]) -> float:
        # Each file system has a name of its own for it; asking for each object is slow.
        names = ("mtime", "LastModified", "last_modified", "updated", "created")
        when = next((facts[name] for name in names if facts.get(name) is not None), None)
        if not isinstance(when, datetime | int | float):
            when = self._files.modified(path)
        return 1000 * (when.timestamp() if isinstance(when, datetime) else float(when))

    def _remove(self, path: str) -> None:
        try:
            self._files.rm_file(path)
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


class ClaimCheckCodec:
    """A codec around another one: bodies over the threshold are kept elsewhere.

    With a worker it fetches a body when the handler asks for ``message.payload``, and not before.

    Args:
        check: Where.
        codec: Writes and reads the bodies themselves.
    """

    def __init__(self, check: ClaimCheck, codec: Codec | None = None) -> None:
        self._check = check
        self._codec: Codec = codec or BytesCodec()

    @property
    def content_type(self) -> str:
        """That of the bodies themselves."""
        return self._codec.content_type

    def encode(self, value: Any) -> bytes:
        """Return the body to send; its object is written by now."""
        return self._check.put(self._codec.encode(value), self._codec.content_type)

    def decode(self, body: bytes) -> Any:
        """Return the value, fetched if need be.

        Raises:
            Poison: There is no such object, it is damaged, or not below the root.
            CodecProblem: It cannot be read.
            OSError: It could not be fetched now; another try may go better.
        """
        try:
            fetched = self._check.fetch(body)
        except ClaimCheckProblem as error:
            raise Poison(f"claim check: {error}") from error
        except ValueError as error:  # of the library underneath: nothing is known of the body
            raise OSError(f"the body could not be fetched: {error}") from error
        return self._codec.decode(fetched)


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _chunks(source: IO[bytes]) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK):
        yield chunk


def _same(chunks: Iterator[bytes], sha256: str) -> Iterator[bytes]:
    """Pass chunks on; raise at the end if they are not those of the first reading."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256:
        raise ValueError("the source was changed while it was read")


@contextmanager
def _twice(source: IO[bytes], most_bytes: int) -> Iterator[IO[bytes]]:
    """Give a source that can be read twice."""
    if source.seekable():
        yield source
        return
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        for chunk in _chunks(source):
            file.write(chunk)
            if file.tell() > most_bytes:
                break  # whoever reads it says so
        file.seek(0)
        yield file
