"""The pure rules: visibility, ids, receipts, limits, clocks."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.clock import may_retire
from leasehold.domain import errors
from leasehold.domain.errors import (
    BodyTooLarge,
    InvalidQueueName,
    LeaseholdError,
    OutOfRange,
    ReceiptMalformed,
)
from leasehold.domain.limits import (
    AZURE,
    check_azure_queue_name,
    check_body,
    check_queue_name,
    check_range,
)
from leasehold.domain.model import (
    MAX_ROW_KEY,
    NEVER_MS,
    Message,
    MessageState,
    Phase,
    expiry_of,
    issue_receipt,
    make_id_blob,
    make_id_blobs,
    make_message_id,
    read_receipt,
    row_key_in,
    row_key_of,
    row_keys_in,
)
from leasehold.domain.queue_settings import (
    DEFAULT_SETTINGS,
    has_room_for_poison,
    poison_queue_of,
)
from leasehold.domain.visibility import is_receivable, state_of
from leasehold.worker.adapters.fallbacks import poison_name

NOW_MS = 1_000_000


def message(**fields: Any) -> Message:
    times: dict[str, Any] = {
        "inserted_at_ms": 0,
        "expires_at_ms": NOW_MS + 1,
        "visible_at_ms": NOW_MS,
    }
    return Message(message_id="id", body=b"", **(times | fields))


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, MessageState.VISIBLE),
        ({"visible_at_ms": NOW_MS + 1}, MessageState.DELAYED),
        ({"visible_at_ms": NOW_MS + 1, "phase": Phase.LEASED}, MessageState.LEASED),
        ({"visible_at_ms": NOW_MS + 1, "phase": Phase.DEFERRED}, MessageState.DEFERRED),
        ({"phase": Phase.LEASED}, MessageState.VISIBLE),
        ({"dequeue_count": 1}, MessageState.VISIBLE),
        ({"expires_at_ms": NOW_MS}, MessageState.EXPIRED),
        ({"expires_at_ms": NOW_MS, "visible_at_ms": NOW_MS + 1}, MessageState.EXPIRED),
    ],
)
def test_state_says_why(fields: dict[str, int], state: MessageState) -> None:
    """The state of a message is decided by its times and by what last happened to it."""
    assert state_of(message(**fields), NOW_MS) is state


@given(visible=st.integers(-5, 5), expires=st.integers(-5, 5), count=st.integers(0, 2))
def test_receivable_is_visible_and_nothing_else(visible: int, expires: int, count: int) -> None:
    """A message can be received exactly when its state is visible."""
    held = message(
        visible_at_ms=NOW_MS + visible, expires_at_ms=NOW_MS + expires, dequeue_count=count
    )
    assert is_receivable(held, NOW_MS) == (state_of(held, NOW_MS) is MessageState.VISIBLE)


def test_expiry_never_passes_the_end_of_time() -> None:
    """An absurdly long time to live is for ever, and None is too."""
    assert expiry_of(NOW_MS, 10) == NOW_MS + 10_000
    assert expiry_of(NOW_MS, None) == NEVER_MS
    assert expiry_of(NOW_MS, 2**62) == NEVER_MS


@given(key=st.integers(1, MAX_ROW_KEY), entropy=st.binary(min_size=10, max_size=10))
def test_id_is_a_uuid_that_carries_its_row_key(key: int, entropy: bytes) -> None:
    """Ids are canonical UUIDs of version 8 and give their row key back."""
    message_id = make_message_id(key, entropy)
    assert str(uuid.UUID(message_id)) == message_id
    assert uuid.UUID(message_id).version == 8
    assert uuid.UUID(message_id).variant == uuid.RFC_4122
    assert row_key_of(message_id) == key


@given(
    key=st.integers(1, MAX_ROW_KEY - 9),
    entropy=st.binary(max_size=90).map(lambda drawn: drawn[: len(drawn) // 10 * 10]),
)
def test_many_ids_at_once_are_those_of_each(key: int, entropy: bytes) -> None:
    """Ids that are made and read together are as those made and read one by one."""
    keys = range(key, key + len(entropy) // 10)
    each = [make_id_blob(one, entropy[at * 10 : at * 10 + 10]) for at, one in enumerate(keys)]
    joined = make_id_blobs(key, entropy)
    assert joined == b"".join(each)
    assert list(row_keys_in(joined)) == list(keys) == list(map(row_key_in, each))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "00000000-0001-4000-8000-000000000000",
        "00000000-0001-8000-8000-00000000000",
        "00000000-0001-8000-8000-0000000000000",
        "00000000-0001-8000-8000-00000000000A",
        "00000000000180008000000000000000",
        "0000000\u0660-0001-8000-8000-000000000000",
    ],
)
def test_other_ids_have_no_row_key(text: str) -> None:
    """Only the canonical spelling of an id of ours is read."""
    assert row_key_of(text) is None


@given(row_key=st.integers(0, MAX_ROW_KEY), fence=st.integers(0, 2**32 - 1))
def test_receipt_says_what_it_was_issued_for(row_key: int, fence: int) -> None:
    """A receipt is read back by the store that issued it and is not genuine to any other."""
    receipt = issue_receipt(b"k" * 32, row_key, fence)
    assert re.fullmatch(r"[A-Za-z0-9_-]{36}", receipt)
    assert read_receipt(b"k" * 32, receipt) == (row_key, fence, True)
    assert read_receipt(b"j" * 32, receipt) == (row_key, fence, False)


@given(st.text(max_size=60) | st.text("Aa09-_+/= ", min_size=36, max_size=36))
def test_any_text_is_a_receipt_malformed_or_not_genuine(text: str) -> None:
    """Nobody finds a receipt by trying; nothing but ReceiptMalformed is ever raised."""
    try:
        assert not read_receipt(b"k" * 32, text).genuine
    except ReceiptMalformed as error:
        assert error.receipt == text  # noqa: PT017


@pytest.mark.parametrize("name", ["abc", "a-b", "0-9", "a" * 63, "a1-2b"])
def test_good_queue_names(name: str) -> None:
    """Of Azure: letters, digits and single inner dashes, 3 to 63 characters. All have them."""
    check_azure_queue_name(name)
    check_queue_name(name)


@pytest.mark.parametrize("name", ["a", "9", "Orders", "a--b", "ab-", "x" * 64, "X" * 256])
def test_names_that_azure_has_not(name: str) -> None:
    """Capitals, other lengths, and dashes anywhere but at the beginning."""
    check_queue_name(name)
    with pytest.raises(InvalidQueueName):
        check_azure_queue_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "length"),
        ("x" * 257, "length"),
        *((name, "characters") for name in ("-a", "a_b", "a.b", "ab\n", "äb", "a٣b", "a/b")),
    ],
)
def test_names_that_no_queue_has(name: str, reason: str) -> None:
    """The refusal tells a wrong length from wrong characters."""
    with pytest.raises(InvalidQueueName) as caught:
        check_queue_name(name)
    assert (caught.value.name, caught.value.reason) == (name, reason)


@pytest.mark.parametrize(
    ("queue", "poison"),
    [
        ("orders", "orders-poison"),
        ("My-Queue-", "My-Queue--poison"),
        ("x" * 56, "x" * 56 + "-poison"),
        ("x" * 57, "x" * 56 + "-poison"),
        ("x" * 56 + "-poison", "x" * 55 + "-poison"),
        ("x" * 54 + "-y-poison", "x" * 54 + "-poison"),
        ("X" * 64, "X" * 64 + "-poison"),
        ("X" * 250, "X" * 249 + "-poison"),
        ("X" * 248 + "--" + "Y" * 6, "X" * 248 + "-poison"),
    ],
)
def test_names_of_poison_queues(queue: str, poison: str) -> None:
    """Cut where there is no room, for Azure's clients if they can reach the queue itself."""
    assert poison_queue_of(queue, DEFAULT_SETTINGS) == poison
    assert poison_name(queue) == poison
    check_queue_name(poison)
    assert has_room_for_poison(queue) == (poison == f"{queue}-poison")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ab", "length"),
        ("a" * 64, "length"),
        ("", "length"),
        ("-ab", "characters"),
        ("ab-", "characters"),
        ("a--b", "characters"),
        ("Abc", "characters"),
        ("a_b", "characters"),
        ("a.b", "characters"),
        ("abc\n", "characters"),
        ("äbc", "characters"),
        ("a٣b", "characters"),
    ],
)
def test_bad_queue_names(name: str, reason: str) -> None:
    """The refusal tells a wrong length from wrong characters, in Azure's rule too."""
    with pytest.raises(InvalidQueueName) as caught:
        check_azure_queue_name(name)
    assert (caught.value.name, caught.value.reason) == (name, reason)


def test_limits_are_inclusive_and_name_the_field() -> None:
    """Both ends of a range are allowed; a refusal carries field, value and bounds."""
    check_range("delay_s", 0, AZURE.delay_s)
    check_range("delay_s", 604_800, AZURE.delay_s)
    with pytest.raises(OutOfRange) as caught:
        check_range("lease_s", 0, AZURE.lease_s)
    error = caught.value
    assert (error.field, error.value, error.minimum, error.maximum) == ("lease_s", 0, 1, 604_800)
    check_body(65_536, AZURE)
    with pytest.raises(BodyTooLarge) as too_large:
        check_body(65_537, AZURE)
    assert (too_large.value.size_bytes, too_large.value.limit_bytes) == (65_537, 65_536)


@pytest.mark.parametrize(
    ("last_seen_ms", "started_at_ms", "running_s", "drift_s", "allowed"),
    [
        (0, 10**12, 0, 0, True),
        (10**12, 10**12 + 3_600_000, 0, 0, True),
        (10**12, 10**12 + 3_600_001, 0, 0, False),
        (10**12, 10**12 + 3_600_001, 3600, 0, True),
        (10**12, 10**12 + 3_600_001, 3600, 6, False),
        (10**12, 10**12, 0, -6, False),
        (10**12, 10**12 - 86_400_000, 0, 0, True),
    ],
)
def test_a_doubtful_clock_retires_nothing(
    last_seen_ms: int, started_at_ms: int, running_s: float, drift_s: float, allowed: bool
) -> None:
    """A start far ahead of the time last seen, or a moved wall clock, stops the sweep."""
    assert allowed == may_retire(
        last_seen_ms=last_seen_ms,
        started_at_ms=started_at_ms,
        running_s=running_s,
        wall_drift_s=drift_s,
    )


def test_every_error_is_drawn_in_the_tree() -> None:
    """The drawing at the top of errors.py names each error class, and only those."""
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, LeaseholdError)
    }
    drawing = Path(errors.__file__).read_text(encoding="utf-8").split('"""')[1]
    tree = drawing[drawing.index("    LeaseholdError") : drawing.index("The first line")]
    assert set(re.findall(r"\w+", tree)) == classes


def test_messages_of_errors_are_sentences() -> None:
    """An error without arguments says something to a person."""
    assert str(errors.QueueNotFound()) == "The queue does not exist."
