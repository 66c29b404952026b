"""The place for large bodies that the database knows, and no other.

A folder can be away: not mounted, empty, or another one by a mistake in the settings. Then nothing
is found under any key, and each receive would count a failure of a message that is well. So the
place has a mark, which the database knows, too. Where the mark is not the same, the place counts as
one that cannot be reached.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Final, NoReturn

import structlog

from leasehold.bodies.base import BodyMissing, BodyStore, DirectoryBodies, KeptBody
from leasehold.domain.command import Perform
from leasehold.domain.commands import BodyPlace, MarkBodyPlace, ReadBodyPlace
from leasehold.domain.errors import LeaseholdError, Unavailable

_MARK_BYTES: Final = 16
_EXAMPLES: Final = 16
"""Bodies of which one must be there, in a place whose mark is missing or unknown."""
_OF_THIS_PROCESS: Final = "memory:"
"""How the address of a place begins that no other process has, nor this one after a restart."""

_log = structlog.get_logger(__name__)


class NotLookedAt(Exception):
    """Whether the place is the one that the database knows is not known yet."""


class OtherPlace(Exception):
    """The place is not the one that the database knows."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} is not where this store keeps its large bodies: it is not mounted, empty, or "
            "another place; if they are lost for good, put an empty file named `mark` there"
        )


class MarkedBodies:
    """Bodies in a place that is looked at for its mark; see :class:`BodyStore` for the verbs.

    Args:
        store: The place.
    """

    def __init__(self, store: BodyStore) -> None:
        self.is_watched = isinstance(store, DirectoryBodies)
        """Whether the mark is looked at before each write: a folder goes away without an error, and
        a look at a file costs little."""
        self.is_recognized = store.place.startswith(_OF_THIS_PROCESS)
        """Whether nothing is left to find out about the place; see :meth:`recognize`."""
        self._store = store
        self._mark: str | None = None
        self._problem: BaseException | None = None
        """Why nothing is read or written now."""
        self._is_right = False
        """Whether the place was found to be the right one."""

    def begin(self) -> None:
        """Read and write nothing until the place was recognized."""
        if not self.is_recognized:
            self._problem = NotLookedAt("the place was not looked at yet")

    @property
    def place(self) -> str:
        """Where the bodies are, for people."""
        return self._store.place

    @property
    def is_known(self) -> bool:
        """False while the place is another one."""
        return not isinstance(self._problem, OtherPlace)

    @property
    def is_usable(self) -> bool:
        """Whether bodies are read and written."""
        return self._problem is None

    async def recognize(self, perform: Perform) -> None:
        """Compare the marks of place and database; give both one if they have none.

        A place whose mark is missing or unknown is right if it has a body that the database names:
        it is of an older version, or was copied or restored. So is one without a mark if no body
        is named, and one with an empty mark, by which an operator says that the bodies are lost.
        A place without a mark gets a new one: what had the old one before is then another place.

        Args:
            perform: Carries out commands on the database.

        Raises:
            Unavailable: It is another one (:class:`OtherPlace` is the cause), or the place or the
                database cannot be reached. Nothing is read or written until this has succeeded.
        """
        self.is_recognized = False
        try:
            known = await perform(ReadBodyPlace(_EXAMPLES))
            mark = await self._store.read_mark()
            if not mark or mark != known.mark:
                await self._check(mark, known)
                # Right from here on, also if there is no room for a mark: bodies can be read.
                self._accept()
                mark = mark or secrets.token_hex(_MARK_BYTES)
                await self._store.write_mark(mark)
                await perform(MarkBodyPlace(mark))
        except LeaseholdError as error:
            if self._mark is None and not self._is_right:
                self._problem = self._problem or error.__cause__ or error
            raise
        self._mark = mark
        self.is_recognized = True
        self._accept()

    async def look(self) -> None:
        """Look whether the place is still the right one.

        Raises:
            Unavailable: It is not (:class:`OtherPlace` is the cause), or cannot be reached.
        """
        mark = self._mark
        if mark is None:
            if self._problem is not None:
                raise Unavailable from self._problem
        elif await self._store.read_mark() == mark:
            self._accept()
        else:
            self._refuse()

    async def _check(self, mark: str | None, known: BodyPlace) -> None:
        """Check a place whose mark is not that of the database."""
        if mark == "":
            return
        for key in known.keys:
            try:
                await self._store.get(key)
            except BodyMissing:
                continue
            return
        if known.keys or (mark is not None and known.mark is not None):
            self._refuse()

    def _refuse(self) -> NoReturn:
        problem = OtherPlace(self.place)
        if self.is_known:
            _log.error("body.place_unknown", place=self.place, reason=str(problem))
        self._problem, self._is_right = problem, False
        raise Unavailable from problem

    def _accept(self) -> None:
        if not self.is_known:
            _log.info("body.place_known", place=self.place)
        self._problem, self._is_right = None, True

    # --- bodies ------------------------------------------------------------------------------

    async def put(self, key: str, data: bytes) -> None:
        """See BodyStore."""
        if self.is_watched or self._problem is not None:
            await self.look()
        await self._store.put(key, data)

    async def get(self, key: str) -> bytes:
        """See BodyStore."""
        if self._problem is not None:
            await self.look()
        try:
            return await self._store.get(key)
        except BodyMissing:
            await self.look()
            raise

    async def delete(self, key: str) -> None:
        """See BodyStore."""
        if self.is_watched or self._problem is not None:
            await self.look()
        await self._store.delete(key)

    async def pages(self) -> AsyncIterator[Sequence[KeptBody]]:
        """See BodyStore."""
        await self.look()
        async for page in self._store.pages():
            yield page

    async def close(self) -> None:
        """See BodyStore."""
        await self._store.close()
