"""Bodies over the limit of a service: kept elsewhere, with a small reference in the message."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import os
import re
import secrets
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import import_module
from typing import IO, Any, Final, Self
from urllib.parse import urlsplit

from leasehold.clock import Clock, SystemClock
from leasehold.disk import sync
from leasehold.worker.adapters.protocol import (
    Around,
    BodyTooLarge,
    Capabilities,
    Delivery,
    Outgoing,
    QueueClient,
    QueueError,
)
from leasehold.worker.errors import Poison
from leasehold.worker.payloads.codecs import BytesCodec, Codec, marked

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
                f"the reference is to {reference.size} bytes; at most {self.max_bytes} are read"
            )
        try:
            file = self._files.open(self._path(name), "rb")
        except FileNotFoundError as error:
            raise ClaimCheckProblem(f"no object {reference.url}") from error
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

        An object can be an orphan, or belong to a message that was not completed yet. So the age
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


# --- claim checked -----------------------------------------------------------------------------
#
# A queue whose large bodies are kept elsewhere.


_log: Final = logging.getLogger("leasehold.worker.payloads")
_REMEMBERED: Final = 10_000


class ClaimChecked(Around):
    """A queue client that puts large bodies elsewhere, and removes them after completion.

    What is received still has its reference as its body: :class:`ClaimCheckCodec` follows it when
    the handler asks for the payload. A message in the poison queue keeps its object.

    Args:
        client: The queue.
        check: Where bodies are kept.
        delete_after: Remove the object of a message once that is completed. Leave it out if the
            same reference may be in several messages.
    """

    def __init__(
        self, client: QueueClient, check: ClaimCheck, *, delete_after: bool = False
    ) -> None:
        super().__init__(client)
        self._check = check
        self._delete_after = delete_after
        self._lock = threading.Lock()
        self._held: OrderedDict[str, bytes] = OrderedDict()
        """References of messages that were received, by their ids."""

    @property
    def capabilities(self) -> Capabilities:
        """Those of the service, with the limit of what can be kept elsewhere."""
        return replace(self.client.capabilities, max_body_bytes=self._check.max_bytes)

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """Put messages; the objects of large ones are written first.

        Raises:
            QueueError: Nothing was put.
            OSError: An object could not be written; nothing was put.
        """
        outcomes: list[QueueError | None] = [None] * len(messages)
        sent: dict[int, Outgoing] = {}
        written: dict[int, bytes] = {}
        try:
            for place, each in enumerate(messages):
                body = each.body.encode() if isinstance(each.body, str) else each.body
                try:
                    kept = self._check.put(body)
                except ValueError as error:
                    outcomes[place] = BodyTooLarge(str(error))
                    continue
                if kept is not body:
                    written[place] = kept
                sent[place] = replace(each, body=kept) if place in written else each
            answers = super().put(list(sent.values())) if sent else []
        except BaseException as error:
            if not _may_have_arrived(error):
                self._delete_all(written.values())
            raise
        for place, answer in zip(sent, answers, strict=True):
            outcomes[place] = answer
            if answer is not None and place in written and not _may_have_arrived(answer):
                self._delete(written[place])
        return outcomes

    def _received(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Bodies that are kept elsewhere are not fetched."""
        if self._delete_after:
            with self._lock:
                for each in deliveries:
                    if looks_like_reference(each.body):
                        self._held[each.message_id] = each.body
                # A message that was lost is never completed here. What is forgotten is swept.
                while len(self._held) > _REMEMBERED:
                    self._held.popitem(last=False)
        return deliveries

    def _completed(self, message_ids: Sequence[str]) -> None:
        """Remove the objects of messages whose work is done."""
        for message_id in message_ids if self._held else ():
            with self._lock:
                body = self._held.pop(message_id, None)
            if body is not None:
                self._delete(body)

    def _buried(self, message_id: str) -> None:
        """Keep the object of a message in the poison queue."""
        with self._lock:
            self._held.pop(message_id, None)

    def _delete_all(self, bodies: Iterable[bytes]) -> None:
        for each in bodies:
            self._delete(each)

    def _delete(self, body: bytes) -> None:
        try:
            self._check.delete(body)
        except ClaimCheckProblem:
            return  # a forged reference: it is nothing of ours
        except Exception:  # noqa: BLE001 - the message is settled; the object is swept some day
            _log.warning("object_not_removed", exc_info=True, extra={"queue": self.name})


def _may_have_arrived(error: BaseException) -> bool:
    """Return whether a message may have been put although there is an error."""
    if isinstance(error, QueueError):
        return error.outcome_unknown
    return not isinstance(error, OSError)


# --- reference ---------------------------------------------------------------------------------


MARKER: Final = "leasehold.claim_check"
"""What a message carries in place of a body that lies elsewhere. Pure functions.

The reference is JSON, for any SDK to read::

    {"leasehold.claim_check": 1,
     "url": "s3://bucket/bodies/9f/9f86d0...-5ac0ffee0ddba11a",
     "size": 1234567,
     "sha256": "9f86d0...",
     "content_type": "application/json"}

The url never holds credentials: whoever reads the object has them from elsewhere. Below the root
of all bodies it is two digits of the digest, a slash, the digest, a dash and 16 digits of
chance, all hexadecimal: nothing else is ever opened, so a forged reference leads nowhere.
"""
VERSION: Final = 1
_MEMBERS: Final = {"url": str, "size": int, "sha256": str, "content_type": str}
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"([0-9a-f]{2})/(\1[0-9a-f]{62})-[0-9a-f]{16}")
# Here the part before the @ is a container, and no secret.
_CONTAINER_SCHEMES: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})


class ClaimCheckProblem(ValueError):
    """The body that a reference leads to cannot be had: missing, damaged, or not ours to read."""


class KeptBody(bytes):
    """The body of a message that is a reference on purpose, and does not only look like one."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where a body lies, and how to tell that it is the right one."""

    url: str
    """Without credentials."""
    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""
    content_type: str

    def to_body(self) -> KeptBody:
        """Return the body of the message that carries it."""
        form = {
            MARKER: VERSION,
            "url": self.url,
            "size": self.size,
            "sha256": self.sha256,
            "content_type": self.content_type,
        }
        return KeptBody(json.dumps(form, separators=(",", ":")).encode())


def read_reference(body: bytes) -> Reference | None:
    """Return the reference that *body* is; None if it is a body like any other.

    Raises:
        ClaimCheckProblem: It is of a later version, or cannot be true.
    """
    try:
        found = marked(body, MARKER, VERSION, _MEMBERS)
    except ValueError as error:
        raise ClaimCheckProblem(str(error)) from error
    if found is None:
        return None
    reference = Reference(**{name: found[name] for name in _MEMBERS})
    if reference.size < 0 or not _SHA256.fullmatch(reference.sha256):
        raise ClaimCheckProblem("the size or the digest of the reference is invalid")
    return reference


def looks_like_reference(body: bytes) -> bool:
    """Return whether :func:`read_reference` would not take *body* for a body."""
    try:
        return read_reference(body) is not None
    except ClaimCheckProblem:
        return True


def object_name(sha256: str, chance: str) -> str:
    """Return the name of an object below the root.

    Args:
        sha256: Digest of the body, hexadecimal.
        chance: 16 hexadecimal digits, so that two messages with the same body have an object each,
            and one of them can go.
    """
    return f"{sha256[:2]}/{sha256}-{chance}"


def is_object_name(name: str) -> bool:
    """Return whether *name*, below the root, is one of ours."""
    return _NAME.fullmatch(name) is not None


def name_below(root_url: str, reference: Reference) -> str:
    """Return the name of the object of a reference, below *root_url*.

    Raises:
        ClaimCheckProblem: It leads anywhere else.
    """
    prefix = root_url.rstrip("/") + "/"
    name = reference.url.removeprefix(prefix)
    found = _NAME.fullmatch(name) if name != reference.url else None
    if found is None:
        raise ClaimCheckProblem(f"the reference is not to a body below {root_url}")
    if found[2] != reference.sha256:
        raise ClaimCheckProblem("the reference is inconsistent: it names another body")
    return name


def without_credentials(url: str) -> str:
    """Return the url of a root as references may show it.

    A chain (``simplecache::s3://bucket``) is named by its last link. User, password, query and
    fragment are left out, since each can hold a secret; a path without a scheme is one of files.
    """
    url = url.rpartition("::")[2]
    if "://" not in url:
        return "file://" + url.rstrip("/")
    parts = urlsplit(url)
    where = parts.netloc
    if parts.scheme not in _CONTAINER_SCHEMES:
        where = where.rpartition("@")[2]
    elif ":" in where.partition("@")[0]:
        raise ValueError("a container's name has no colon; leave credentials out of the url")
    return f"{parts.scheme}://{where}{parts.path}".rstrip("/")


# --- reading -----------------------------------------------------------------------------------
#
# A reader that checks what it reads against what was promised.


class CheckedReader(io.RawIOBase):
    """Reads a file of a known size and digest, once and in order.

    What was read is right only once all of it was: the last read raises if it is not.

    Args:
        file: Is closed with this.
        size: Bytes that there must be.
        sha256: Digest that they must have, hexadecimal.
    """

    def __init__(self, file: IO[bytes], *, size: int, sha256: str) -> None:
        super().__init__()
        self._file = file
        self._size = size
        self._sha256 = sha256
        self._digest = hashlib.sha256()
        self._seen = 0

    @classmethod
    def of_bytes(cls, body: bytes) -> Self:
        """Return a reader of what is in memory already."""
        return cls(io.BytesIO(body), size=len(body), sha256=hashlib.sha256(body).hexdigest())

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some of it into *buffer*.

        Raises:
            ClaimCheckProblem: It is not what was promised.
            OSError: It could not be read now.
        """
        with memoryview(buffer).cast("B") as room:
            if not len(room):
                return 0
            chunk = self._file.read(min(len(room), self._size - self._seen + 1))
            self._take(chunk)
            room[: len(chunk)] = chunk
        return len(chunk)

    def readall(self) -> bytes:
        """Read all that is left; see :meth:`readinto`."""
        chunks = []
        # One byte more than promised is enough to see that the promise is broken.
        while chunk := self._file.read(self._size - self._seen + 1):
            self._take(chunk)
            chunks.append(chunk)
        self._take(b"")
        return b"".join(chunks)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()

    def _take(self, chunk: bytes) -> None:
        self._seen += len(chunk)
        self._digest.update(chunk)
        if chunk and self._seen < self._size:
            return
        # Who knows the size may never ask for what follows the last byte.
        if self._seen != self._size or (chunk and self._file.read(1)):
            raise ClaimCheckProblem(
                f"the object does not have the {self._size} bytes that its reference declares"
            )
        if self._digest.hexdigest() != self._sha256:
            raise ClaimCheckProblem(
                "the object is not the one that was written: its digest differs"
            )
