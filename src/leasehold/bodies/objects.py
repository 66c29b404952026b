"""Large bodies in an object store: S3 and what speaks like it, Azure Blob, Google Cloud Storage.

The library is obstore, an optional one (the extra ``objects``). Credentials are its
business: it takes them from the variables that the providers' own tools use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from leasehold.bodies.base import MARK_NAME, BodyMissing, KeptBody, is_key
from leasehold.domain.errors import Unavailable

_PAGE: Final = 1_000
_MS: Final = 1000


class ObjectBodies:
    """Keeps each body in an object of its own: ``KE/KEY`` below the address. See BodyStore.

    An object store answers a put when the object is durable, and shows whole objects only.

    Args:
        url: Such as ``s3://bucket/prefix``; ``memory:///`` keeps all in this process.

    Raises:
        ValueError: The address, or what the environment adds to it, cannot be used.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._store = from_url(url)
        except (BaseError, OSError, TypeError) as error:
            # Its other lines are for those who work on the library.
            raise ValueError(str(error).partition("\n")[0]) from error

    @property
    def place(self) -> str:
        """See BodyStore."""
        return self._url

    async def put(self, key: str, data: bytes) -> None:
        """See BodyStore. That there is no room is not told apart from other failures."""
        try:
            await obstore.put_async(self._store, _path(key), data)
        except (BaseError, OSError) as error:
            raise Unavailable from error

    async def get(self, key: str) -> bytes:
        """See BodyStore."""
        try:
            found = await obstore.get_async(self._store, _path(key))
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            raise BodyMissing(key) from None
        except (BaseError, OSError) as error:
            raise Unavailable from error

    async def delete(self, key: str) -> None:
        """See BodyStore."""
        try:
            await obstore.delete_async(self._store, _path(key))
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise Unavailable from error

    async def read_mark(self) -> str | None:
        """See BodyStore. A bucket that is not there has no mark."""
        try:
            found = await obstore.get_async(self._store, MARK_NAME)
            return bytes(await found.bytes_async()).decode("ascii", "replace")
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise Unavailable from error

    async def write_mark(self, mark: str) -> None:
        """See BodyStore."""
        try:
            await obstore.put_async(self._store, MARK_NAME, mark.encode("ascii"))
        except (BaseError, OSError) as error:
            raise Unavailable from error

    async def pages(self) -> AsyncIterator[Sequence[KeptBody]]:
        """See BodyStore. Objects whose names are no keys are others' and left alone."""
        try:
            async for page in obstore.list(self._store, chunk_size=_PAGE):
                found = [
                    KeptBody(key, int(each["last_modified"].timestamp() * _MS))
                    for each in page
                    if is_key(key := each["path"].rpartition("/")[2])
                ]
                if found:
                    yield found
        except (BaseError, OSError) as error:
            raise Unavailable from error

    async def close(self) -> None:
        """See BodyStore: there is nothing to give back."""


def _path(key: str) -> str:
    assert is_key(key), key
    return f"{key[:2]}/{key}"
