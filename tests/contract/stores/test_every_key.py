"""Contract: keys are the same if, and only if, they have the same characters, whatever these are.

A key that is put and one that is staged go different ways into a database, and must meet there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from leasehold.domain import commands as c
from leasehold.domain import transactions as sg
from leasehold.domain.model import Detail, Lease
from leasehold.stores.base import RemoteStore

from .conftest import ACCOUNT, Asker

_KEY_LENGTH = 600
"""Characters; PostgreSQL's index takes no key above 2,704 bytes."""
_AT_ONCE = 512

# Characters that some database, JSON or an escape of our own gives a meaning to, and texts that
# look like escapes of them.
_PIECES = (
    "\0", "\uffff", "\ufdd0", "\ufffe", "\ufffd", "\ufeff", "\U0010ffff", "\\", "\\u0000",
    "\\\\u0000", "\\ufdd0", "\\uffff", "\uffff0000", "\uffffffff", "0000", "ffff", '"', "u0000",
    "\U00099999", "\\x00", "%00", "&#0;", "a", "A", " ", "\u00e9", "e\u0301", "\U0001f3a5",
    '","dedup_key":"',
)  # fmt: skip
_KEYS = some.text(
    some.sampled_from("\0\uffff\ufdd0\\\"u0fd{}':,") | some.characters(exclude_categories=["Cs"]),
    min_size=1,
    max_size=12,
)


def in_parts(values: Sequence[str], length: int) -> Iterator[Sequence[str]]:
    """Return parts of this length, the last one of what is left."""
    return (values[at : at + length] for at in range(0, len(values), length))


def every_key() -> list[str]:
    """Return keys that have all characters between them, in order, but halves of pairs."""
    scalars = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    return ["".join(part) for part in in_parts(scalars, _KEY_LENGTH)]


def put_all(asker: Asker, keys: Sequence[str], queue: str) -> list[object]:
    """Put one message for each key, and return what each put is answered."""
    answers: list[object] = []
    for part in in_parts(keys, _AT_ONCE):
        puts = [asker.put_command(queue=queue, detail=Detail(dedup_key=key)) for key in part]
        answers += asker.batch(*puts)
    return answers


def publish_all(asker: Asker, keys: Sequence[str], queue: str, name: str) -> sg.Published:
    """Stage one message for each key and publish them all."""
    for chunk, part in enumerate(in_parts(keys, _AT_ONCE)):
        puts = tuple(
            asker.put_command(queue=queue, detail=Detail(dedup_key=key, properties={key: key}))
            for key in part
        )
        staged = asker.ask(sg.Stage(ACCOUNT, name, "", chunk, puts, 3_600))
        assert isinstance(staged, sg.Staged)
    published = asker.publish(name)
    assert isinstance(published, sg.Published)
    return published


def check(asker: Asker, keys: Sequence[str], queue: str) -> None:
    """Send different keys, then the same again in the other way."""
    asker.create(queue)
    assert all(isinstance(answer, Lease) for answer in put_all(asker, keys, queue))
    assert publish_all(asker, keys, queue, queue).duplicates == len(keys)
    other = f"{queue}-other"
    asker.create(other)
    assert publish_all(asker, keys, other, other) == sg.Published(
        len(keys), by_queue=((other, len(keys)),)
    )
    assert all(isinstance(answer, c.Duplicate) for answer in put_all(asker, keys, other))


def test_keys_with_pieces_of_escapes_are_kept_apart(asker: Asker) -> None:
    """None is taken for another, put or staged, and each is found again."""
    pairs = ["".join(pair) for pair in product(_PIECES, repeat=2)]
    check(asker, list(dict.fromkeys((*_PIECES, *pairs))), "pieces")


def test_keys_of_all_characters_are_found_again(asker: Asker) -> None:
    """All 1,112,064 that a text can have, but halves of surrogate pairs, which no text has."""
    keys = every_key()
    if isinstance(
        asker.store, RemoteStore
    ):  # a round trip for each: all of plane 0, and every 16th key of others
        plane_0 = 0x10000 // _KEY_LENGTH
        keys = keys[:plane_0] + keys[plane_0::16]
    check(asker, keys, "characters")


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(keys=some.lists(_KEYS, min_size=1, max_size=20, unique=True))
def test_any_keys_are_kept_apart(asker: Asker, keys: list[str]) -> None:
    """Whatever they are made of."""
    queue = f"q{asker.last_seq()}"
    check(asker, keys, queue)
