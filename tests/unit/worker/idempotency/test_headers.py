"""The two headers: what is sent, what is read, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.testing import ManualClock
from leasehold.worker.idempotency import (
    Fenced,
    FenceLedger,
    FenceStore,
    HeaderProblem,
    MemoryFences,
    MemoryProcessed,
    Once,
    SqliteFences,
    check_fence,
    fence_headers,
    read_headers,
)
from tests.unit.worker.idempotency.support import Told


@pytest.fixture(params=["memory", "sqlite"])
def fences(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FenceStore]:
    if request.param == "memory":
        yield MemoryFences()
        return
    store = SqliteFences(tmp_path / "fences.db")
    yield store
    store.close()


def test_what_is_sent() -> None:
    """The key is a quoted string of queue, id and step; the fence says which message it is of."""
    assert fence_headers(Told("8d0c", fence=7, queue="videos"), "charge") == {
        "Idempotency-Key": '"videos/8d0c/charge"',
        "Leasehold-Fence": '7;of="videos/8d0c"',
    }


def test_key_is_the_same_at_each_delivery() -> None:
    """Only the fence changes when a message is delivered again."""
    first, second = (fence_headers(Told(fence=fence), "charge") for fence in (1, 2))
    assert first["Idempotency-Key"] == second["Idempotency-Key"]
    assert first["Leasehold-Fence"] != second["Leasehold-Fence"]


def test_keys_of_steps_and_messages_differ() -> None:
    """Each step of each message has a key of its own, none at all included."""
    keys = {
        fence_headers(Told(name, queue=queue), step)["Idempotency-Key"]
        for queue in ("a", "b")
        for name in ("1", "2")
        for step in ("", "x", "y")
    }
    assert len(keys) == 12


def test_own_key() -> None:
    """A key of the user is sent as it is, quoted where the grammar wants it."""
    message = Told(fence=3)
    sent = fence_headers(message, key='order "17" \\ a')
    assert sent["Idempotency-Key"] == '"order \\"17\\" \\\\ a"'
    read = read_headers(sent)
    assert read is not None
    assert read.key == 'order "17" \\ a'


@pytest.mark.parametrize("key", ["", "é", "a\nb", "x" * 256])
def test_bad_own_key(key: str) -> None:
    """A key that no header can carry is refused, line breaks above all."""
    with pytest.raises(ValueError, match="printable ASCII"):
        fence_headers(Told(), key=key)


def test_bad_fence_is_not_sent() -> None:
    """A number that no receiver would take is the sender's to know."""
    with pytest.raises(ValueError, match="fence"):
        fence_headers(Told(fence=-1))


def test_any_queue_and_id_can_be_sent() -> None:
    """Odd and long names come out as printable ASCII within the limit."""
    message = Told('x"\n' * 200, queue="ü;of=")
    sent = fence_headers(message, "ß")
    assert all(value.isascii() and value.isprintable() for value in sent.values())
    assert all(len(value) < 300 for value in sent.values())
    assert read_headers(sent) is not None


def test_what_is_read() -> None:
    """Names of headers have no case, and come as a mapping or as the pairs of ASGI."""
    sent = fence_headers(Told("m", fence=9), "s")
    pairs = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    for headers in (sent, {name.upper(): value for name, value in sent.items()}, pairs):
        read = read_headers(headers)
        assert read is not None
        assert (read.key, read.of, read.fence) == ("orders/m/s", "orders/m", 9)
    assert read_headers({"content-type": "text/plain"}) is None


KEY = '"k"'
FENCE = '7;of="q/m"'


@pytest.mark.parametrize(
    ("key", "fence", "text"),
    [
        (None, FENCE, "Idempotency-Key is missing"),
        (KEY, None, "Leasehold-Fence is missing"),
        ("k", FENCE, "not a quoted string"),
        ('""', FENCE, "not a quoted string"),
        ('"a"b"', FENCE, "not a quoted string"),
        ('"a\\b"', FENCE, "not a quoted string"),
        ('"é"', FENCE, "not a quoted string"),
        ('"' + "x" * 256 + '"', FENCE, "not a quoted string"),
        (KEY, "7", "of the form"),
        (KEY, '-7;of="q/m"', "of the form"),
        (KEY, '7.0;of="q/m"', "of the form"),
        (KEY, '\u0667;of="q/m"', "of the form"),
        (KEY, '7;of=""', "of the form"),
        (KEY, "7;of=q", "of the form"),
        (KEY, '1234567890123456;of="q/m"', "of the form"),
        (KEY, '7;of="q/m", 8;of="q/m"', "of the form"),
    ],
)
def test_bad_headers(key: str | None, fence: str | None, text: str) -> None:
    """A header that is missing or cannot be read is an error of the sender: 400."""
    pairs = [("Idempotency-Key", key), ("Leasehold-Fence", fence)]
    headers = {name: value for name, value in pairs if value is not None}
    with pytest.raises(HeaderProblem, match=text) as caught:
        read_headers(headers)
    assert caught.value.status == 400


def test_header_that_is_there_twice() -> None:
    """Nobody guesses which of two is meant."""
    pairs = [("idempotency-key", KEY), ("Idempotency-Key", KEY), ("leasehold-fence", FENCE)]
    with pytest.raises(HeaderProblem, match="is repeated"):
        read_headers(pairs)


def test_receiver_refuses_the_older(fences: FenceStore) -> None:
    """A request of a late worker is refused whatever its step; the same lease may go on."""
    check_fence(fence_headers(Told(fence=2), "a"), fences)
    check_fence(fence_headers(Told(fence=2), "b"), fences)
    check_fence(fence_headers(Told("other", fence=1), "a"), fences)
    with pytest.raises(Fenced) as caught:
        check_fence(fence_headers(Told(fence=1), "c"), fences)
    assert (caught.value.what, caught.value.newest) == ("orders/m1", 2)
    check_fence(fence_headers(Told(fence=10), "a"), fences)
    with pytest.raises(Fenced):
        check_fence(fence_headers(Told(fence=9), "a"), fences)


def test_headers_can_be_required(fences: FenceStore) -> None:
    """A request without headers is refused, unless the receiver also serves others."""
    with pytest.raises(HeaderProblem, match="are missing"):
        check_fence({}, fences)
    assert check_fence({}, fences, required=False) is None


def test_receiver_does_the_work_of_a_key_once(fences: FenceStore) -> None:
    """What was read is a message to once: a repeated request gets the first answer."""
    once = Once(MemoryProcessed())
    answers = []
    for fence in (1, 1, 2):
        request = check_fence(fence_headers(Told(fence=fence), "charge"), fences)
        assert request is not None
        answers.append(once.call(request, lambda fence=fence: fence, request.key))  # type: ignore[misc]
    assert answers == [1, 1, 1]


def test_receiver_with_a_database_of_its_own(tmp_path: Path) -> None:
    """A ledger in the receiver's transaction serves as the store."""
    import sqlite3  # noqa: PLC0415 - here only

    link = sqlite3.connect(tmp_path / "r.db")
    ledger = FenceLedger()
    ledger.create(link)
    with link:
        check_fence(fence_headers(Told(fence=2)), ledger.on(link))
    with pytest.raises(Fenced), link:
        check_fence(fence_headers(Told(fence=1)), ledger.on(link))
    link.isolation_level = None
    with pytest.raises(RuntimeError, match="open a transaction"):
        check_fence(fence_headers(Told(fence=3)), ledger.on(link))
    link.close()


def test_fences_are_forgotten_after_the_window(tmp_path: Path) -> None:
    """Each request begins the window anew, and the store does not grow."""
    clock = ManualClock()
    memory = MemoryFences(60, clock=clock)
    file = SqliteFences(tmp_path / "fences.db", 60, clock=clock)
    for store in (memory, file):
        for number in range(70):
            store.admit(f"old{number}", 5)
        store.admit("m", 5)
    clock.advance(s=40)
    for store in (memory, file):
        store.admit("m", 5)
    clock.advance(s=40)
    for store in (memory, file):
        with pytest.raises(Fenced):
            store.admit("m", 4)
    assert len(memory) == 1
    clock.advance(s=21)
    for store in (memory, file):
        store.admit("m", 4)
    for number in range(70):
        file.admit(f"new{number}", 1)
    with file._file.writing() as link:
        assert link.execute("SELECT count(*) FROM leasehold_fence").fetchone() == (71,)
    file.close()


def test_bad_fence_is_refused(fences: FenceStore) -> None:
    """What is no fence is not remembered."""
    with pytest.raises(ValueError, match="fence"):
        fences.admit("m", -1)
    fences.admit("m", 0)


def test_newest_of_many_is_remembered(fences: FenceStore) -> None:
    """Whatever the order in which threads come, all that is older is refused in the end."""
    start = threading.Barrier(6)
    refused = []

    def come(fence: int) -> None:
        start.wait()
        try:
            fences.admit("m", fence)
        except Fenced:
            refused.append(fence)

    threads = [threading.Thread(target=come, args=(fence,)) for fence in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 6 not in refused
    with pytest.raises(Fenced):
        fences.admit("m", 5)
