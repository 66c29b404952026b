"""From what the setting says to a place for bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from leasehold.bodies.base import BodyStore
from leasehold.bodies.directory import DirectoryBodies
from leasehold.extras import install

SCHEMES: Final = ("s3", "az", "gs", "memory")
"""What an address of an object store begins with; ``file`` is a folder."""


def open_bodies(where: str) -> BodyStore:
    """Open the place that *where* names: a folder, ``file://``, or one of SCHEMES.

    Raises:
        OSError: The folder cannot be used.
        ValueError: The address means nothing, or a library that it needs is not there.
    """
    scheme, separator, _ = where.partition("://")
    if not separator:
        return DirectoryBodies(Path(where))
    if scheme == "file":
        return DirectoryBodies(Path(unquote(urlsplit(where).path)))
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in ("file", *SCHEMES))
        raise ValueError(f"{where!r} is no folder, and begins with none of {known}")
    try:
        # Late, because only those need the library who keep bodies in an object store.
        from leasehold.bodies.objects import ObjectBodies  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"{where!r} needs the library {error.name}: {install('objects')}"
        ) from error
    return ObjectBodies(where)
