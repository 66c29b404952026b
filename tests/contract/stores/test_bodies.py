"""Contract: which large bodies, kept elsewhere, messages refer to, and which are garbage."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.model import NEVER_MS, BodyRef, Detail, Lease

from .conftest import ACCOUNT, QUEUE, Asker


def ref(key: str) -> BodyRef:
    return BodyRef(key=key, size_bytes=100_000, sha256="00" * 32)


def large(key: str, **more: Any) -> dict[str, Any]:
    """Return what a put says of a body that is elsewhere."""
    return {"body": b"", "detail": Detail(body_ref=ref(key))} | more


def garbage(asker: Asker, limit: int = 100) -> list[str]:
    found = asker.ask(c.ReadBodyGarbage(limit))
    assert isinstance(found, c.BodyKeys)
    return sorted(found.keys)


def known(asker: Asker, *keys: str) -> set[str]:
    return set(asker.ask(c.KnownBodies(keys)).keys)


def test_a_message_says_where_its_body_is(asker: Asker) -> None:
    """However it comes by."""
    put = asker.put(**large("k"))
    assert put.message.detail.body_ref == ref("k")
    assert asker.peek()[0] == put.message
    lease = asker.receive_one()
    assert (lease.message.body, lease.message.detail.body_ref) == (b"", ref("k"))
    assert known(asker, "k", "no") == {"k"}
    assert garbage(asker) == []


@pytest.mark.parametrize("how", ["complete", "remove", "clear", "delete", "expire"])
def test_the_body_of_a_message_that_is_gone_is_garbage(asker: Asker, how: str) -> None:
    """Once its row is gone; until then it is known."""
    lease: Lease = asker.put(**large("k", time_to_live_s=10))
    asker.put()
    if how == "complete":
        asker.complete(asker.receive_one())
    elif how == "remove":
        asker.remove(lease)
    elif how == "expire":
        asker.clock.advance(s=10)
        asker.ask(c.RetireExpired(10))
        assert (known(asker, "k"), garbage(asker)) == ({"k"}, [])
        asker.ask(c.RemoveRetired(NEVER_MS, 10))
    else:
        asker.ask(c.Clear(ACCOUNT, QUEUE) if how == "clear" else c.DeleteQueue(ACCOUNT, QUEUE))
        assert (known(asker, "k"), garbage(asker)) == ({"k"}, [])
        asker.ask(c.ReapDropped(10))
    assert (known(asker, "k"), garbage(asker)) == (set(), ["k"])


def test_garbage_is_listed_until_it_is_forgotten(asker: Asker) -> None:
    """What is unknown does not matter."""
    for key in ("a", "b", "c"):
        asker.complete(asker.put(**large(key)))
    assert garbage(asker) == garbage(asker) == ["a", "b", "c"]
    assert len(garbage(asker, 2)) == 2
    assert asker.ask(c.ForgetBodyGarbage(("a", "c", "no"))) == c.DONE
    assert garbage(asker) == ["b"]


def test_a_body_that_is_replaced_is_garbage(asker: Asker) -> None:
    """By a small one, and by another large one."""
    lease = asker.put(**large("k1"))
    renew = c.Renew(ACCOUNT, QUEUE, lease.message.message_id, lease.receipt, 0, ref("k2"))
    lease = asker.ask(renew)
    assert lease.message.detail.body_ref == ref("k2")
    assert (garbage(asker), known(asker, "k1", "k2")) == (["k1"], {"k2"})
    seen = asker.amend(lease, body=b"small")
    assert (seen.message.body, seen.message.detail.body_ref) == (b"small", None)
    assert (garbage(asker), known(asker, "k1", "k2")) == (["k1", "k2"], set())
    asker.amend(lease, body=ref("k3"))
    assert asker.peek()[0].detail.body_ref == ref("k3")
    assert (garbage(asker), known(asker, "k3")) == (["k1", "k2"], {"k3"})


def test_poisoned_staged_and_claimed_bodies_are_known(asker: Asker) -> None:
    """Wherever the message is; it may come back."""
    asker.bury("", detail=Detail(body_ref=ref("poisoned")))
    asker.stage("", detail=Detail(body_ref=ref("staged")))
    asker.put(**large("claimed"))
    asker.attach()
    asker.claim()
    assert asker.read_claim()[0].detail.body_ref == ref("claimed")
    keys = ("poisoned", "staged", "claimed")
    assert (known(asker, *keys), garbage(asker)) == (set(keys), [])
    asker.settle()
    asker.discard()
    asker.ask(c.ReapDropped(10))
    assert (known(asker, *keys), garbage(asker)) == ({"poisoned"}, ["claimed", "staged"])


def test_the_place_of_bodies_is_known_by_a_mark_and_by_some_of_them(asker: Asker) -> None:
    """Also those of poisoned and staged messages; the newest mark counts."""
    assert asker.ask(c.ReadBodyPlace(10)) == c.BodyPlace(None, ())
    for mark in ("one", "two"):
        assert asker.ask(c.MarkBodyPlace(mark)) == c.DONE
    asker.put("small")
    for key in ("a", "b", "c"):
        asker.put(**large(key))
    place = asker.ask(c.ReadBodyPlace(10))
    assert (place.mark, sorted(place.keys)) == ("two", ["a", "b", "c"])
    assert len(asker.ask(c.ReadBodyPlace(2)).keys) == 2


def test_large_bodies_limit_a_claim_by_their_own_size(asker: Asker) -> None:
    """Not by what is in the store."""
    asker.put(**large("a"))
    asker.put(**large("b"))
    asker.attach()
    assert asker.claim(1, max_bytes=100_000).size == 1
