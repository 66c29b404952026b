"""Many items in one request: which are refused, which are carried out, and what is said of each.

All or nothing is one command of the engine. Otherwise the items go in parts, so that no single
command holds the engine for long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import msgspec

from leasehold.domain.commands import Batch, Complete, Put, Release, Renew
from leasehold.domain.errors import LeaseholdError, NotDone, QueueNotFound, Unavailable
from leasehold.http.messages import Response
from leasehold.http.native.call import Call
from leasehold.http.native.problems import Refused, item_problem, out_of_range
from leasehold.http.native.reading import MAX_SINGLE_BYTES, decode_body
from leasehold.http.native.shapes import ItemProblem, ItemResult, Results

MAX_ITEMS: Final = 10_000
PART: Final = 1_000
"""Items that go to the engine as one command."""

_MAX_PROPERTIES_JSON_BYTES: Final = 131_072
"""More than MAX_PROPERTIES_BYTES of names and values take, with each character escaped."""
_PROPERTIES: Final[msgspec.json.Decoder[dict[str, str] | None]] = msgspec.json.Decoder(
    dict[str, str] | None
)

ItemCommand: TypeAlias = Put | Renew | Complete | Release


_T = TypeVar("_T")


class BatchReader(Generic[_T]):
    """Reads requests with many items, and stops when there are too many.

    Args:
        kind: Shape of the request.
        items: The shape of an item, by the name of the member that lists such items.
    """

    def __init__(self, kind: type[_T], **items: type[msgspec.Struct]) -> None:
        self._plain: msgspec.json.Decoder[_T] = msgspec.json.Decoder(kind)
        self._left = 0
        self._path = f"$.{next(iter(items))}" if len(items) == 1 else "$"
        self._counting = self._make_counting(kind, items)

    def read(self, call: Call) -> _T:
        """Read the body of a request.

        Raises:
            Refused: It is not JSON, not what the call takes, or has more than MAX_ITEMS items, in
                all its lists together.
        """
        body = call.request.body
        if len(body) <= MAX_SINGLE_BYTES:  # there is not much to be made of it
            return decode_body(self._plain, body)
        self._left = MAX_ITEMS
        return decode_body(self._counting, body)

    def _make_counting(
        self, kind: type[_T], items: Mapping[str, type[msgspec.Struct]]
    ) -> msgspec.json.Decoder[_T]:
        fields: list[str | tuple[str, Any] | tuple[str, Any, Any]] = []
        for field in msgspec.structs.fields(kind):  # type: ignore[arg-type]  # it is a Struct
            told: Any = field.type
            if field.name in items:
                told = list[self._counted(items[field.name])]  # type: ignore[misc]  # made here
                told = told if field.required else told | None
            known = (field.name, told)
            fields.append(known if field.required else (*known, field.default))
        request = msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, kw_only=True)
        # It has the members of *kind*, and readers look at nothing else.
        return cast("msgspec.json.Decoder[_T]", msgspec.json.Decoder(request))

    def _counted(self, item: type[msgspec.Struct]) -> type[msgspec.Struct]:
        """Return a kind of item that is counted as it is made."""
        fields: list[tuple[str, Any, Any]] = []
        if "properties" in item.__struct_fields__:
            fields.append(("properties", msgspec.Raw, msgspec.Raw()))
        return msgspec.defstruct(
            item.__name__,
            fields,
            bases=(item,),
            namespace={"__post_init__": self._count_with_properties if fields else self._count},
            forbid_unknown_fields=True,
            gc=False,
        )

    def _count_with_properties(self, item: Any) -> None:
        self._count(item)
        raw, place = item.properties, self._path
        if place != "$":
            place += f"[{MAX_ITEMS - self._left - 1}].properties"
        # To make a table of a million properties takes seconds, and to step over them next to none.
        if len(raw) > _MAX_PROPERTIES_JSON_BYTES:
            raise out_of_range(
                place,
                len(raw),
                (0, _MAX_PROPERTIES_JSON_BYTES),
                "The figures are bytes of JSON in the `properties` of a message: send fewer.",
            )
        item.properties = decode_body(_PROPERTIES, raw, place) if raw else None

    def _count(self, _: object) -> None:
        self._left -= 1
        if self._left < 0:
            raise too_many(self._path, MAX_ITEMS + 1)


def too_many(path: str, number: int) -> Refused:
    """Return the refusal of a request with no items, or more than MAX_ITEMS."""
    return out_of_range(
        path,
        number,
        (1, MAX_ITEMS),
        f"The figures are items: send between one and {MAX_ITEMS:,} in a request.",
    )


class Items:
    """The items of one request as they are read.

    Args:
        path: Place of the list in the request, such as ``$.messages``.
        given: The list.
        least: Items that it must have.

    Raises:
        Refused: There are too few, or more than MAX_ITEMS.
    """

    def __init__(self, path: str, given: Sequence[object], least: int = 1) -> None:
        self.path = path
        self.commands: list[ItemCommand] = []
        self.refused: dict[int, ItemProblem] = {}
        """The items that are no commands, by their number."""
        if not least <= len(given) <= MAX_ITEMS:
            raise too_many(path, len(given))

    def refuse(self, number: int, refused: Refused) -> None:
        """Note that an item is not carried out; fields are named as within the item."""
        field = refused.problem.field
        refused.problem.field = f"{self.path}[{number}]{'.' + field if field else ''}"
        self.refused[number] = ItemProblem(refused.problem)

    async def answer(
        self, call: Call, render: Callable[[Any, Any], ItemResult], *, atomic: bool | None
    ) -> Response:
        """Carry the items out and say what became of each.

        Args:
            call: The request.
            render: Makes an item's answer of its command and result.
            atomic: Whether one refused item keeps all others from being carried out.

        Raises:
            LeaseholdError: What is wrong with all of them, and not their own fault.
        """
        commands = self.commands
        if atomic and self.refused:
            results: Sequence[object] = [NotDone()] * len(commands)
        elif commands:
            results = await _perform(call, commands, atomic=bool(atomic))
            _raise_shared(results)
        else:
            results = ()
        return call.reply(Results(*self.shown(results, render)))

    def shown(
        self, results: Sequence[object], render: Callable[[Any, Any], ItemResult]
    ) -> tuple[list[ItemResult], int]:
        """Return what became of each item, and how many were refused.

        Args:
            results: Those of the commands.
            render: As for :meth:`answer`.
        """
        answers: list[ItemResult] = []
        for command, result in zip(self.commands, results, strict=True):
            if isinstance(result, LeaseholdError):
                # Its place is set below, when what was refused before has been put in between.
                answers.append(ItemProblem(item_problem(result)))
            else:
                answers.append(render(command, result))
        for number in sorted(self.refused):
            answers.insert(number, self.refused[number])
        failed = 0
        for number, answer in enumerate(answers):
            if type(answer) is ItemProblem:
                failed += 1
                if number not in self.refused:
                    answer.error.field = f"{self.path}[{number}]{answer.error.field}"
        return answers, failed


async def _perform(call: Call, commands: list[ItemCommand], *, atomic: bool) -> Sequence[object]:
    perform = call.services.perform
    if len(commands) == 1:
        # As a command of its own it shares its statement with those of other requests.
        try:
            return [await perform(commands[0])]
        except LeaseholdError as error:
            return [error]
    results: list[object] = []
    step = len(commands) if atomic else PART
    for start in range(0, len(commands), step):
        part = tuple(commands[start : start + step])
        try:
            done = await perform(Batch(part, atomic))
        except LeaseholdError as error:
            if not results:
                raise
            # What went before is done, and must be told.
            results += [error] * len(part)
        else:
            assert isinstance(done, tuple)
            results += done
    return results


def _raise_shared(results: Sequence[object]) -> None:
    """Raise what has nothing to do with the single items, if all of them met it."""
    first = results[0]
    if isinstance(first, QueueNotFound | Unavailable) and all(
        type(result) is type(first) for result in results
    ):
        raise first
