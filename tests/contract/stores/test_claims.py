"""Contract: claims are opened, read, extended and found again."""

from __future__ import annotations

from leasehold.domain import claims as cl
from leasehold.domain.claims import ClaimState
from leasehold.domain.errors import (
    ClaimNotFound,
    ClaimOutOfTurn,
    ClaimSettled,
    LeaseLost,
    QueueNotFound,
    StaleToken,
    StreamNotFound,
)
from leasehold.domain.limits import MAX_CLAIM
from leasehold.domain.model import NEVER_MS, Outcome, Phase

from .conftest import ACCOUNT, POISON, QUEUE, STREAM, Asker

# --- streams -----------------------------------------------------------------------------------


def test_attaching_gives_a_rising_token(asker: Asker) -> None:
    """A stream is created by the first, and taken over by each later one."""
    first = asker.attach()
    assert (first.token, first.last_settled, first.claims) == (1, 0, ())
    assert first.attached_at_ms == asker.clock.now_ms()
    asker.clock.advance(s=5)
    second = asker.attach()
    assert (second.token, second.attached_at_ms) == (2, asker.clock.now_ms())
    assert asker.stream() == second


def test_streams_are_listed_by_name(asker: Asker) -> None:
    """Those of the queue, and no others."""
    asker.create("audio")
    for queue, stream in ((QUEUE, "b"), (QUEUE, "a"), ("audio", "c")):
        asker.attach(stream, queue)
    listed = asker.ask(cl.ListStreams(ACCOUNT, QUEUE))
    assert [stream.stream for stream in listed] == ["a", "b"]
    assert isinstance(asker.ask(cl.ListStreams(ACCOUNT, "no")), QueueNotFound)


def test_what_is_not_there(asker: Asker) -> None:
    """Each command names the first thing that is missing: queue, stream, then claim."""
    for queue, error in (("no", QueueNotFound), (QUEUE, StreamNotFound)):
        named = (ACCOUNT, queue, "no")
        for command in (
            cl.OpenClaim(*named, 1, 1, 10, 30),
            cl.ReadClaim(*named, 1, 0, 1, "", 10),
            cl.ExtendClaim(*named, 1, 1, 30),
            cl.SettleClaims(*named, 1, 1),
            cl.GiveBackClaim(*named, 1, 1),
            cl.GetStream(*named),
            cl.DeleteStream(*named),
        ):
            assert isinstance(asker.ask(command), error), command
    assert isinstance(asker.ask(cl.AttachStream(ACCOUNT, "no", STREAM)), QueueNotFound)
    asker.attach()
    assert isinstance(asker.read_claim(1), ClaimNotFound)
    assert isinstance(asker.extend(1), ClaimNotFound)
    assert isinstance(asker.give_claim_back(1), ClaimNotFound)


def test_an_older_token_is_refused(claimer: Asker) -> None:
    """Whoever attached before can neither open, extend, settle nor give back; all can read."""
    claimer.claim(1, 2)
    claimer.attach()
    for refused in (
        claimer.open(1, token=1),
        claimer.open(2, token=1),
        claimer.extend(1, token=1),
        claimer.settle(1, token=1),
        claimer.give_claim_back(1, token=1),
    ):
        assert isinstance(refused, StaleToken)
        assert refused.token == 2
    assert claimer.claimed(1) == [b"0", b"1"]


# --- opening -----------------------------------------------------------------------------------


def test_a_claim_leases_messages_in_receive_order(asker: Asker) -> None:
    """The most urgent first, then the one that was visible first; nobody else sees them."""
    asker.put("late", delay_s=2)
    asker.put("plain")
    asker.put("urgent", priority=1)
    asker.put("delayed", delay_s=60)
    asker.clock.advance(s=5)
    asker.put("too late")
    asker.attach()
    claim = asker.claim(1, 3, 60, holder="driver")
    now_ms = asker.clock.now_ms()
    assert claim == cl.Claim(
        account=ACCOUNT,
        queue=QUEUE,
        stream=STREAM,
        number=1,
        state=ClaimState.OPEN,
        size=3,
        limit=3,
        opened_at_ms=now_ms,
        until_ms=now_ms + 60_000,
        holder="driver",
    )
    assert asker.claimed() == [b"urgent", b"plain", b"late"]
    assert asker.received() == [b"too late"]
    assert asker.stream().claims == (claim,)


def test_members_are_leased(claimer: Asker) -> None:
    """Each with one more delivery and the next fence; the end of its lease is the claim's."""
    (before,) = claimer.peek(1)
    claimer.clock.advance(s=3)
    claim = claimer.claim(1, 1, 60, holder="driver")
    (member,) = claimer.read_claim()
    assert member == before._replace(
        visible_at_ms=claim.until_ms,
        dequeue_count=1,
        fence=before.fence + 1,
        phase=Phase.LEASED,
        since_ms=claimer.clock.now_ms(),
        visible_since_ms=before.visible_at_ms,
        holder="driver",
    )


def test_old_receipts_are_dead(claimer: Asker) -> None:
    """That of a put and that of a lapsed lease: the member has a new fence."""
    put = claimer.put("own", priority=1)
    lease = claimer.receive_one(lease_s=1)
    claimer.clock.advance(s=2)
    claimer.claim(1, 1)
    for old in (put, lease):
        for refused in (claimer.complete(old), claimer.renew(old, 30), claimer.release(old)):
            assert isinstance(refused, LeaseLost)
            assert refused.reason == "superseded"


def test_an_earlier_lease_that_lapsed_is_an_attempt(claimer: Asker) -> None:
    """As with a receive."""
    claimer.receive_one(lease_s=5, holder="w1")
    claimer.clock.advance(s=10)
    claimer.claim(1, 5)
    member = claimer.read_claim()[-1]
    assert member.dequeue_count == 2
    assert [attempt.outcome for attempt in member.detail.attempts] == [Outcome.LAPSED]
    assert member.detail.lapses == 1
    assert member.detail.first_visible_at_ms == member.inserted_at_ms


def test_with_nothing_to_claim_nothing_is_created(asker: Asker) -> None:
    """The same number can be opened when there is something."""
    asker.attach()
    asker.put("delayed", delay_s=5)
    assert asker.open(1) == cl.Opened(None)
    assert asker.stream().claims == ()
    asker.clock.advance(s=5)
    assert asker.claim(1).size == 1


def test_an_open_claim_is_found_again(claimer: Asker) -> None:
    """The same members, whatever is said of limits and holders; its lease begins anew."""
    first = claimer.claim(1, 2, 60, holder="driver")
    claimer.clock.advance(s=30)
    again = claimer.open(1, 100, 90, holder="other", max_bytes=1)
    assert again.replayed
    now_ms = claimer.clock.now_ms()
    assert again.claim.until_ms == now_ms + 90_000
    assert again.claim.extensions == 1
    assert (again.claim.size, again.claim.limit, again.claim.max_bytes) == (2, 2, None)
    assert (again.claim.holder, again.claim.opened_at_ms) == ("driver", first.opened_at_ms)
    assert claimer.claimed() == [b"0", b"1"]
    claimer.clock.advance(s=80)
    assert claimer.received() == [b"2", b"3", b"4"]


def test_claims_are_opened_one_after_the_other(claimer: Asker) -> None:
    """The next number is one more than the highest that was ever opened or settled."""
    refused = claimer.open(2)
    assert isinstance(refused, ClaimOutOfTurn)
    assert refused.expected == 1
    claimer.claim(1, 1)
    claimer.claim(2, 1)
    refused = claimer.open(4)
    assert isinstance(refused, ClaimOutOfTurn)
    assert refused.expected == 3
    claimer.settle(2)
    for number in (0, 1, 2):
        refused = claimer.open(number)
        assert isinstance(refused, ClaimSettled)
        assert refused.last_settled == 2
    assert claimer.claim(3).size == 3


def test_two_streams_share_the_messages(claimer: Asker) -> None:
    """Each message goes to one of them, and each counts for itself."""
    claimer.attach("other")
    claimer.claim(1, 2)
    claimer.claim(1, 2, stream="other")
    assert claimer.claimed() == [b"0", b"1"]
    assert claimer.claimed(stream="other") == [b"2", b"3"]
    claimer.settle(1)
    assert claimer.claimed(stream="other") == [b"2", b"3"]
    assert claimer.received() == [b"4"]


def test_bytes_limit_a_claim(asker: Asker) -> None:
    """No further message is taken once there are so many bytes; one is taken always."""
    for size in (60, 30, 20, 10):
        asker.put(b"x" * size)
    asker.attach()
    sizes = []
    for number, max_bytes in enumerate((70, 1, 100), start=1):
        asker.claim(number, 10, max_bytes=max_bytes)
        sizes.append([len(body) for body in asker.claimed(number)])
    assert sizes == [[60, 30], [20], [10]]
    assert asker.stream().claims[0].max_bytes == 70


def test_a_paused_queue_has_nothing_to_claim(claimer: Asker) -> None:
    """As for receives; a claim that there is goes on."""
    claimer.claim(1, 1)
    claimer.govern(paused_until_ms=NEVER_MS)
    assert claimer.open(2) == cl.Opened(None)
    assert claimer.claimed(1) == [b"0"]
    assert claimer.open(1).replayed
    assert claimer.settle(1).completed == 1


def test_a_limited_queue_gives_a_claim_what_it_may(claimer: Asker) -> None:
    """What a claim takes is spent for receives as well."""
    claimer.govern(max_receives_per_s=3.0)
    assert claimer.claim(1).size == 3
    assert claimer.receive(5) == ()
    assert claimer.open(2) == cl.Opened(None)
    claimer.clock.advance(s=1)
    assert claimer.claim(2).size == 2
    assert len(claimer.receive(5)) == 0


def test_what_may_not_be_delivered_again_is_not_claimed(claimer: Asker) -> None:
    """It goes to the poison queue, as by a receive."""
    claimer.limit_failures(max_deliveries=1)
    claimer.receive(2, lease_s=1)
    claimer.clock.advance(s=2)
    assert claimer.claim(1, 10).size == 3
    assert claimer.claimed() == [b"2", b"3", b"4"]
    assert sorted(claimer.bodies()) == []
    assert sorted(claimer.received(queue=POISON)) == [b"0", b"1"]


def test_a_large_claim_is_opened_in_steps(asker: Asker) -> None:
    """While it is OPENING it cannot be read, extended or settled; it is seen by none."""
    count = cl.CLAIM_STEP + 5
    asker.batch(*(asker.put_command(f"{number}") for number in range(count)))
    asker.attach()
    opened = asker.open(1, count + 100, 30)
    assert opened.claim.state is ClaimState.OPENING
    assert (opened.claim.size, opened.replayed) == (cl.CLAIM_STEP, False)
    assert isinstance(asker.read_claim(), ClaimNotFound)
    assert isinstance(asker.extend(), ClaimNotFound)
    refused = asker.settle(1)
    assert isinstance(refused, ClaimOutOfTurn)
    assert refused.expected == 1
    asker.clock.advance(s=20)
    opened = asker.open(1, 1, 30)
    assert (opened.claim.state, opened.claim.size) == (ClaimState.OPEN, count)
    assert opened.claim.until_ms == asker.clock.now_ms() + 30_000
    assert not opened.replayed
    members = asker.read_claim(limit=5_000)
    assert [message.body for message in members] == [b"%d" % number for number in range(count)]
    assert {message.visible_at_ms for message in members} == {opened.claim.until_ms}
    assert asker.open(1).replayed
    assert asker.settle(1).completed == count
    assert asker.count() == 0


def test_a_step_that_finds_nothing_more_opens_the_claim(asker: Asker) -> None:
    """Its members are those of the steps before."""
    asker.batch(*(asker.put_command() for _ in range(cl.CLAIM_STEP)))
    asker.attach()
    assert asker.claim(1, MAX_CLAIM, 30).state is ClaimState.OPENING
    asker.clock.advance(s=5)
    claim = asker.claim(1, 1, 30)
    assert (claim.state, claim.size) == (ClaimState.OPEN, cl.CLAIM_STEP)
    assert claim.until_ms == asker.clock.now_ms() + 30_000


def test_an_opening_claim_lapses_too(asker: Asker) -> None:
    """Whoever opens it after that has it as it is, without a further step."""
    asker.batch(*(asker.put_command() for _ in range(cl.CLAIM_STEP + 1)))
    asker.attach()
    asker.claim(1, MAX_CLAIM, 30)
    asker.clock.advance(s=30)
    opened = asker.open(1, 1, 30)
    assert (opened.claim.state, opened.claim.size) == (ClaimState.OPEN, cl.CLAIM_STEP)
    assert opened.replayed


# --- reading -----------------------------------------------------------------------------------


def test_parts_share_the_members(asker: Asker) -> None:
    """Each member is in one part, in the order of the whole; also page by page."""
    for number in range(11):
        asker.put(f"{number}", priority=1 + number % 3)
    asker.attach()
    asker.claim()
    whole = asker.claimed()
    assert len(whole) == 11
    for parts in (1, 2, 3, 11, 20):
        for limit in (1, 2, 100):
            read = [asker.claimed(1, part, parts, limit=limit) for part in range(parts)]
            assert [body for part in read for body in part] == whole
            assert [len(part) for part in read] == [
                11 * (part + 1) // parts - 11 * part // parts for part in range(parts)
            ]


def test_the_order_of_members_is_for_ever(asker: Asker) -> None:
    """By priority and by when they were visible before, however the queue ages its messages."""
    asker.govern(priority_ageing_s=1)
    asker.put("old", priority=16)
    asker.clock.advance(s=60)
    asker.put("urgent", priority=1)
    asker.attach()
    asker.claim()
    assert asker.claimed() == [b"urgent", b"old"]
    asker.clock.advance(s=10)
    asker.extend()
    assert asker.claimed() == [b"urgent", b"old"]
