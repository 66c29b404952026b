"""Texts that PostgreSQL cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import transactions as sg
from leasehold.domain.model import BodyRef, Detail, ErrorReport, Outcome
from leasehold.stores.sql.texts import from_kept, to_kept
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.postgres import find_programs, open_empty

NUL = 'a\0b"\\u0000'
"""With what stands for NUL in JSON besides."""

_TEXTS = some.text(some.sampled_from("\0\uffff\ud800\udfff0d8a\u00e9\U0001f3a5"), max_size=12)
needs_postgres = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")


@given(_TEXTS | some.text())
def test_every_text_comes_back(text: str) -> None:
    """Whatever is in it; what is kept can be encoded, and has no NUL."""
    kept = to_kept(text)
    assert "\0" not in kept.encode().decode()
    assert from_kept(kept) == text


@given(_TEXTS, _TEXTS)
def test_different_texts_are_kept_apart(one: str, other: str) -> None:
    """Keys stay different."""
    assert (to_kept(one) == to_kept(other)) == (one == other)


def test_every_character_comes_back() -> None:
    """Of all that there are, halves of pairs too; none is kept as another is."""
    kept = {to_kept(chr(code)) for code in range(0x110000)}
    assert len(kept) == 0x110000
    assert {from_kept(text) for text in kept} == {chr(code) for code in range(0x110000)}


def test_ordinary_texts_are_kept_as_they_are() -> None:
    """So that they can be compared, sorted and searched."""
    assert to_kept("é\U0001f3a5 \ufffd") == "é\U0001f3a5 \ufffd"


@pytest.fixture
def asker() -> Iterator[Asker]:
    """A PostgreSQL store with one queue."""
    store = open_empty()
    asker = Asker(store, ManualClock())
    asker.create()
    yield asker
    store.close()


@needs_postgres
def test_workers_may_send_nul(asker: Asker) -> None:
    """In the name of a holder, of a session, in reports and in what they save."""
    asker.put()
    lease = asker.receive_one(holder=NUL)
    renewed = asker.ask(asker.renew_command(lease, 30)._replace(saved=f"[{NUL}]"))
    assert renewed.message.holder == NUL
    asker.release(renewed, Outcome.FAILED, error=ErrorReport(text=NUL, type=NUL))
    again = asker.receive_one()
    assert again.message.detail.saved == f"[{NUL}]"
    assert again.message.detail.attempts[0].holder == NUL
    session = asker.open_session(NUL)
    assert asker.session(session).holder == NUL


@needs_postgres
def test_producers_may_send_nul(asker: Asker) -> None:
    """In properties, types and deduplication keys, beside bodies that are elsewhere."""
    ref = BodyRef(key="k", size_bytes=100_000, sha256="00" * 32)
    detail = Detail(message_type=NUL, properties={NUL: NUL}, dedup_key=NUL, body_ref=ref)
    first = asker.put(b"", detail=detail)
    assert asker.put(b"", detail=detail).__class__ is c.Duplicate
    assert asker.peek()[0].detail == detail
    asker.attach()
    opened: Any = asker.open(limit=10, max_bytes=200_000)
    assert isinstance(opened, cl.Opened)
    assert opened.claim is not None
    assert opened.claim.size == 1
    assert isinstance(asker.stage("x", detail=detail), sg.Staged)
    assert asker.publish().duplicates == 1
    assert first.message.detail.dedup_key == NUL


@needs_postgres
def test_operators_may_send_nul(asker: Asker) -> None:
    """In documents, metadata, notes, and names that only stores look at."""
    asker.ask(c.SetAccountDocument(ACCOUNT, "kind", NUL))
    assert asker.ask(c.GetAccountDocument(ACCOUNT, "kind")).content == NUL
    asker.ask(c.SetQueueMetadata(ACCOUNT, QUEUE, {"a": NUL}))
    assert asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.metadata == {"a": NUL}
    asker.ask(e.KeepNote(NUL, NUL))
    assert asker.ask(e.ReadNote(NUL)).content == NUL
    assert asker.attach(NUL).stream == NUL
    assert isinstance(asker.stage("x", name=NUL), sg.Staged)
    assert asker.ask(sg.ListTransactions(ACCOUNT))[0].name == NUL


@needs_postgres
def test_half_a_pair_undoes_nothing_but_its_batch(asker: Asker) -> None:
    """The log cannot say it, as with the other stores; what follows is served as ever."""
    asker.put()
    with pytest.raises(UnicodeEncodeError):
        asker.receive(holder="\ud800")
    assert asker.receive_one(holder="w1").message.dequeue_count == 1
    assert asker.count() == 1
