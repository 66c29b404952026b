"""What a message carries in place of a body that lies elsewhere. Pure functions.

The reference is JSON, for any SDK to read::

    {"leasehold.claim_check": 1,
     "url": "s3://bucket/bodies/9f/9f86d0...-5ac0ffee0ddba11a",
     "size": 1234567,
     "sha256": "9f86d0...",
     "content_type": "application/json"}

The url never holds credentials: whoever reads the object has them from elsewhere. Below the root of
all bodies it is two digits of the digest, a slash, the digest, a dash and 16 digits of chance, all
hexadecimal: nothing else is ever opened, so a forged reference leads nowhere.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from leasehold.worker.payloads.marked import marked

MARKER: Final = "leasehold.claim_check"
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
        raise ClaimCheckProblem("the size or the digest of the reference cannot be true")
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
        raise ClaimCheckProblem(f"the reference does not lead to a body below {root_url}")
    if found[2] != reference.sha256:
        raise ClaimCheckProblem("the reference leads to another body than it names")
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
