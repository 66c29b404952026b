"""The scenarios: what happens to a worker, and what it should make of it.

Each is a function of a trial whose docstring says what happens. It raises ``Missed`` where the
worker fails to do something; what holds always is looked at afterwards, in
:mod:`leasehold.testing.certify.judge`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from leasehold.domain.wording import count_of, times_of
from leasehold.testing.certify.judge import MOST_POLLS_PER_S
from leasehold.testing.certify.proxy import Exchange, Fault, Kind, Outcome
from leasehold.testing.certify.trial import MAX_ATTEMPTS, Missed, Trial

Play = Callable[[Trial], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something that happens to a worker."""

    name: str
    play: Play
    told: str
    """What happens, in a sentence."""
    loses_leases: bool
    """Whether leases end in it by no fault of the worker's."""
    option: str
    """The option with which it is played; empty: always."""


SCENARIOS: Final[dict[str, Scenario]] = {}


PROGRESS: Final = "--progress"
BASE64: Final = "--base64"


def _scenario(*, loses_leases: bool = False, option: str = "") -> Callable[[Play], Play]:
    def note(play: Play) -> Play:
        name = play.__name__.replace("_", "-")
        told = (play.__doc__ or "").strip()
        SCENARIOS[name] = Scenario(name, play, told, loses_leases, option)
        return play

    return note


def _failing(kind: Kind, outcome: Outcome, count: int = 1) -> Fault:
    """Return a fault for the first requests of a kind."""
    left = count

    async def fault(exchange: Exchange) -> Outcome:
        nonlocal left
        if exchange.kind is not kind or not left:
            return Outcome.FORWARD
        left -= 1
        return outcome

    return fault


# --- plain work --------------------------------------------------------------------------------


async def _does(trial: Trial, *texts: str) -> None:
    for text in texts:
        await trial.put(text)
    await trial.start()
    for text in texts:
        await trial.finished(text)


@_scenario()
async def one_message(trial: Trial) -> None:
    """One message is put, worked on and deleted."""
    await _does(trial, "one")


@_scenario()
async def many_messages(trial: Trial) -> None:
    """Forty messages, more than a receive returns."""
    await _does(trial, *(f"many-{number}" for number in range(40)))


@_scenario()
async def put_while_idle(trial: Trial) -> None:
    """The queue is empty at first; a message comes later."""
    await trial.start()
    await trial.pass_s(3)
    await trial.put("later")
    await trial.finished("later")


@_scenario()
async def empty_queue(trial: Trial) -> None:
    """The queue stays empty for five seconds."""
    await trial.start()
    await trial.pass_s(2)
    count = await trial.quiet(Kind.RECEIVE, 5)
    if count > 5 * MOST_POLLS_PER_S:
        raise Missed("busy-poll", f"it made {count / 5:.0f} receives a second of an empty queue")


@_scenario()
async def delayed_message(trial: Trial) -> None:
    """A message is visible after two seconds only."""
    await trial.put("delayed", delay_s=2)
    await _does(trial, "now")
    await trial.finished("delayed")


@_scenario()
async def long_text(trial: Trial) -> None:
    """A message has 30,000 characters."""
    await _does(trial, "long " + "x" * 30_000)


@_scenario()
async def unusual_text(trial: Trial) -> None:
    """A message has characters that XML and JSON write in another way."""
    await _does(trial, '<a href="x">&amp; é 中 🙂 \\ \' end')


@_scenario(loses_leases=True)
async def received_before(trial: Trial) -> None:
    """Another worker had the message, and died: its dequeue count is 2 when it comes."""
    await trial.put("second-hand")
    await trial.queue.receive(1, visibility_timeout_s=1)
    await trial.start()
    await trial.finished("second-hand")


@_scenario(option=BASE64)
async def text_that_is_not_base64(trial: Trial) -> None:
    """One of five messages is not Base64: the other four are done all the same."""
    texts = [f"good-{number}" for number in range(4)]
    await trial.put(texts[0])
    await trial.put_unreadable("plain text, of 28 characters")
    await _does(trial, *texts[1:])
    await trial.finished(texts[0])


# --- slow work ---------------------------------------------------------------------------------


async def _beside_a_rival(trial: Trial, leases: float) -> None:
    """Let so many visibility timeouts pass, while another worker looks for messages."""
    until_s = trial.passed_s + leases * trial.options.lease_s
    while trial.passed_s < until_s:
        await trial.pass_s(min(trial.options.lease_s / 8, until_s - trial.passed_s))
        await trial.rival()


async def _works_for(trial: Trial, text: str, leases: float) -> None:
    await trial.put(text, hold=True)
    if trial.worker is None:
        await trial.start()
    work = await trial.begun(text)
    await _beside_a_rival(trial, leases)
    work.finish()
    await trial.gone(text)


@_scenario()
async def work_of_half_a_lease(trial: Trial) -> None:
    """Work takes half of the visibility timeout."""
    await _works_for(trial, "half", 0.5)


@_scenario()
async def work_of_a_lease(trial: Trial) -> None:
    """Work takes a little longer than the visibility timeout."""
    await _works_for(trial, "whole", 1.2)


@_scenario()
async def work_of_three_leases(trial: Trial) -> None:
    """Work takes three times the visibility timeout."""
    await _works_for(trial, "thrice", 3)


@_scenario()
async def slow_then_quick(trial: Trial) -> None:
    """Slow work, and after it the receipt of a renewed lease must be the newest one."""
    await _works_for(trial, "slow", 1.5)
    await trial.put("quick")
    await trial.finished("quick")


@_scenario()
async def slow_work_that_fails(trial: Trial) -> None:
    """Work of two visibility timeouts fails, and is tried again."""
    await trial.put("slow-fail", hold=True)
    await trial.start()
    await trial.begun("slow-fail")
    await _beside_a_rival(trial, 2)
    trial.let("slow-fail", well=False)
    trial.repeats["slow-fail"] = 1
    await trial.finished("slow-fail")


@_scenario()
async def slow_work_before_others(trial: Trial) -> None:
    """Ten messages wait behind one whose work takes two visibility timeouts."""
    await trial.put("first", hold=True)
    others = [f"behind-{number}" for number in range(10)]
    for text in others:
        await trial.put(text)
    await trial.start()
    work = await trial.begun("first")
    await _beside_a_rival(trial, 2)
    work.finish()
    for text in ("first", *others):
        await trial.gone(text)


@_scenario()
async def all_are_slow(trial: Trial) -> None:
    """Four messages of 1.5 visibility timeouts each."""
    texts = [f"slow-{number}" for number in range(4)]
    for text in texts:
        await trial.put(text, hold=True)
    await trial.start()
    # One after another in some workers, and slower on a loaded machine.
    behind_s = 2 * len(texts) * 1.5 * trial.options.lease_s

    async def one(text: str) -> None:
        work = await trial.begun(text, behind_s=behind_s)
        await _beside_a_rival(trial, 1.5)
        work.finish()
        await trial.gone(text)

    await asyncio.gather(*(one(text) for text in texts))


# --- work that fails ---------------------------------------------------------------------------


async def _fails(trial: Trial, text: str, times: int) -> None:
    await trial.put(text, fails=times)
    trial.repeats[text] = times
    await trial.start()
    for _ in range(times + 1):
        await trial.finished(text)


@_scenario()
async def fails_once(trial: Trial) -> None:
    """Work fails once, and goes well the next time."""
    await _fails(trial, "once", 1)


@_scenario()
async def fails_twice(trial: Trial) -> None:
    """Work fails twice, and goes well the third time."""
    await _fails(trial, "twice", 2)


@_scenario()
async def fails_always(trial: Trial) -> None:
    """Work fails each time: the message is poison, and leaves the queue in the end."""
    await trial.put("poison", fails=math.inf)
    trial.repeats["poison"] = MAX_ATTEMPTS * 2
    await trial.start()
    most = MAX_ATTEMPTS * 2
    for _ in range(most + 1):
        begun = asyncio.ensure_future(trial.begun("poison"))
        left = asyncio.ensure_future(trial.left("poison"))
        done, _ = await asyncio.wait({begun, left}, return_when=asyncio.FIRST_COMPLETED)
        for task in (begun, left):
            if task not in done:
                task.cancel()
        await asyncio.gather(begun, left, return_exceptions=True)
        if left in done and left.exception() is None:
            break
        failure = begun.exception() if begun in done else None
        if isinstance(failure, Missed) and failure.rule == "lost":
            raise Missed("poison-endless", "it stays in the queue, and is not worked on")
        if failure is not None:
            raise failure
    else:
        raise Missed("poison-endless", f"it was tried more than {times_of(most)}")
    try:
        # A worker may try it again as a copy, which is another message.
        while len(trial.works_of("poison")) == 1:
            await trial.begun("poison")
    except Missed:
        raise Missed("poison-lost", "it left the queue after one failure") from None


@_scenario()
async def poison_among_others(trial: Trial) -> None:
    """A message that always fails must not keep others from their turn."""
    await trial.put("bad", fails=math.inf)
    trial.repeats["bad"] = MAX_ATTEMPTS * 2
    await _does(trial, *(f"good-{number}" for number in range(8)))


@_scenario()
async def poison_is_kept(trial: Trial) -> None:
    """A poison message is not thrown away: it is in the poison queue, or still in this one."""
    await trial.put("kept", fails=math.inf)
    trial.repeats["kept"] = MAX_ATTEMPTS * 2
    await trial.start()
    await trial.begun("kept")
    await trial.left("kept")
    await trial.set_aside()


# --- the connection ----------------------------------------------------------------------------


async def _with_fault(trial: Trial, fault: Fault, *texts: str) -> None:
    trial.proxy.fault = fault
    await _does(trial, *texts)


@_scenario()
async def receive_is_refused(trial: Trial) -> None:
    """Three receives in a row are answered by 503."""
    await _with_fault(trial, _failing(Kind.RECEIVE, Outcome.REFUSE, 3), "busy")


@_scenario()
async def receive_is_cut(trial: Trial) -> None:
    """The connection of a receive is closed before the server sees it."""
    await _with_fault(trial, _failing(Kind.RECEIVE, Outcome.CUT_BEFORE), "cut")


@_scenario(loses_leases=True)
async def answer_of_receive_is_lost(trial: Trial) -> None:
    """The server has leased the message, and the answer does not arrive."""
    await _with_fault(trial, _failing(Kind.RECEIVE, Outcome.CUT_AFTER), "unseen")


@_scenario()
async def delete_is_refused(trial: Trial) -> None:
    """A delete is answered by 503: it is to be tried again, and the work is not."""
    await _with_fault(trial, _failing(Kind.DELETE, Outcome.REFUSE, 2), "refused", "after")


@_scenario()
async def delete_is_cut(trial: Trial) -> None:
    """The connection of a delete is closed before the server sees it."""
    await _with_fault(trial, _failing(Kind.DELETE, Outcome.CUT_BEFORE), "cut", "after")


@_scenario(loses_leases=True)
async def answer_of_delete_is_lost(trial: Trial) -> None:
    """The server has deleted the message, and the answer does not arrive."""
    await _with_fault(trial, _failing(Kind.DELETE, Outcome.CUT_AFTER), "gone", "after")


async def _renewal(trial: Trial, fault: Fault) -> None:
    trial.proxy.fault = fault
    await _works_for(trial, "renewed", 2)
    await trial.put("after")
    await trial.finished("after")


@_scenario()
async def renewal_is_refused_once(trial: Trial) -> None:
    """The first renewal is answered by 503: there is time to try again."""
    await _renewal(trial, _failing(Kind.UPDATE, Outcome.REFUSE))


@_scenario()
async def renewal_is_cut(trial: Trial) -> None:
    """The connection of a renewal is closed before the server sees it."""
    await _renewal(trial, _failing(Kind.UPDATE, Outcome.CUT_BEFORE))


@_scenario(loses_leases=True)
async def answer_of_renewal_is_lost(trial: Trial) -> None:
    """The server has renewed the lease, and the answer with the new receipt does not arrive."""
    trial.repeats["renewed"] = 1
    await trial.put("renewed", hold=True)
    trial.proxy.fault = _failing(Kind.UPDATE, Outcome.CUT_AFTER)
    await trial.start()
    await trial.begun("renewed")
    await trial.pass_s(2 * trial.options.lease_s)
    trial.let("renewed")
    await trial.gone("renewed")


@_scenario()
async def server_is_away_while_idle(trial: Trial) -> None:
    """The server cannot be reached for three seconds, and then is there again."""
    await trial.start()
    await trial.pass_s(1)
    trial.proxy.go_down()
    await trial.pass_s(3)
    trial.proxy.is_down = False
    await trial.put("back")
    try:
        await trial.begun("back")
    except Missed as missed:
        if missed.rule == "lost":
            raise Missed("gave-up", "it did not come back to a server that was away") from None
        raise
    await trial.gone("back")


@_scenario()
async def server_is_away_during_work(trial: Trial) -> None:
    """The server cannot be reached for a quarter of the visibility timeout, in the work."""
    await trial.put("away", hold=True)
    await trial.start()
    work = await trial.begun("away")
    trial.proxy.go_down()
    await trial.pass_s(trial.options.lease_s / 4)
    trial.proxy.is_down = False
    await trial.pass_s(trial.options.lease_s / 8)
    work.finish()
    await trial.gone("away")


@_scenario()
async def server_is_away_at_the_start(trial: Trial) -> None:
    """The server cannot be reached when the worker starts, and is there two seconds later."""
    await trial.put("early")
    trial.proxy.go_down()
    await trial.start()
    await trial.pass_s(2)
    trial.proxy.is_down = False
    await trial.finished("early")


# --- leases that are lost ----------------------------------------------------------------------


@_scenario(loses_leases=True)
async def lease_is_taken_away(trial: Trial) -> None:
    """An operator ends the lease in the middle of the work; the worker goes on with others."""
    trial.repeats["taken"] = 1
    await trial.put("taken", hold=True)
    await trial.start()
    await trial.begun("taken")
    await trial.end_lease("taken", delay_s=3 * trial.options.lease_s)
    await trial.pass_s(1.5 * trial.options.lease_s)
    trial.let("taken")
    await trial.put("other")
    await trial.finished("other")


@_scenario(loses_leases=True)
async def message_is_removed(trial: Trial) -> None:
    """An operator removes the message in the middle of its work; the worker goes on."""
    await trial.put("removed", hold=True)
    await trial.start()
    work = await trial.begun("removed")
    await trial.remove("removed")
    await trial.pass_s(0.75 * trial.options.lease_s)
    work.finish()
    await trial.put("other")
    await trial.finished("other")


@_scenario(loses_leases=True)
async def time_jumps(trial: Trial) -> None:
    """The worker's machine sleeps for two visibility timeouts in the middle of the work."""
    trial.repeats["slept"] = 1
    await trial.put("slept", hold=True)
    await trial.start()
    await trial.begun("slept")
    await trial.jump(2 * trial.options.lease_s)
    trial.let("slept")
    await trial.put("other")
    await trial.finished("other")
    await trial.gone("slept")


# --- death and stopping ------------------------------------------------------------------------


@_scenario(loses_leases=True)
async def killed_in_work(trial: Trial) -> None:
    """The worker is killed in the middle of the work; another one does it again."""
    trial.repeats["killed"] = 1
    await trial.put("killed", hold=True)
    await trial.start()
    await trial.begun("killed")
    await trial.kill()
    trial.let("killed")
    await trial.start()
    await trial.finished("killed")


@_scenario(loses_leases=True)
async def killed_after_work(trial: Trial) -> None:
    """The worker is killed when the work is done and its delete is on the way."""
    trial.repeats["killed"] = 1
    reached = asyncio.Event()

    async def fault(exchange: Exchange) -> Outcome:
        if exchange.kind is Kind.DELETE and not reached.is_set():
            reached.set()
            return Outcome.CUT_BEFORE
        return Outcome.FORWARD

    trial.proxy.fault = fault
    await trial.put("killed")
    await trial.start()
    await trial.begun("killed")

    async def was_cut() -> bool:
        return reached.is_set()

    await trial.until(was_cut, "lost", "'killed' was not deleted after its work")
    await trial.kill()
    await trial.start()
    await trial.gone("killed")


def _stopping(trial: Trial) -> asyncio.Task[None]:
    """Ask the worker to end, beside what else the scenario does."""
    task = asyncio.create_task(trial.stop())
    # The scenario may have found something by then, and not wait for it any more.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


@_scenario()
async def stopped_while_idle(trial: Trial) -> None:
    """SIGTERM while the queue is empty."""
    await trial.start()
    await trial.pass_s(2)
    await trial.stop()


@_scenario(loses_leases=True)
async def stopped_in_work(trial: Trial) -> None:
    """SIGTERM in the middle of work that takes two seconds more."""
    trial.repeats["stopped"] = 1
    await trial.put("stopped", hold=True)
    await trial.start()
    work = await trial.begun("stopped")
    stopping = _stopping(trial)
    await trial.pass_s(2)
    work.finish()
    await stopping
    await trial.let_return()
    if await trial.is_leased("stopped"):
        raise Missed("left-leased", "'stopped' was neither deleted nor given back")


@_scenario(loses_leases=True)
async def stopped_with_others_waiting(trial: Trial) -> None:
    """SIGTERM in the middle of work, with 40 messages behind it."""
    trial.repeats["stopped"] = 1
    await trial.put("stopped", hold=True)
    await trial.start()
    await trial.begun("stopped")
    for number in range(40):
        await trial.put(f"waits-{number}", hold=True)
        trial.repeats[f"waits-{number}"] = 1
    await trial.pass_s(1)
    stopping = _stopping(trial)
    await trial.pass_s(1)
    begun_before = len(trial.works)
    trial.held.clear()
    for each in trial.works:
        each.finish()
    await trial.pass_s(2)
    if len(trial.works) > begun_before + 1:
        raise Missed("took-more", f"it began {len(trial.works) - begun_before} works afterwards")
    await stopping
    await trial.let_return()
    left = [f"waits-{n}" for n in range(40) if await trial.is_leased(f"waits-{n}")]
    if left:
        raise Missed("left-leased", f"{count_of(len(left), 'message')} not given back")


@_scenario(loses_leases=True)
async def stopped_and_started(trial: Trial) -> None:
    """SIGTERM among 30 messages, and a new worker: all of them are done."""
    texts = [f"rest-{number}" for number in range(30)]
    for text in texts:
        await trial.put(text)
        trial.repeats[text] = 1
    await trial.start()
    await trial.begun("rest-0")
    await trial.stop()
    await trial.start()
    for text in texts:
        await trial.gone(text)


@_scenario(loses_leases=True)
async def stopped_before_a_failure(trial: Trial) -> None:
    """SIGTERM in the middle of work that then fails: the message comes back."""
    trial.repeats["failed"] = 2
    await trial.put("failed", hold=True)
    await trial.start()
    await trial.begun("failed")
    stopping = _stopping(trial)
    await trial.pass_s(0.5)
    trial.let("failed", well=False)
    await stopping
    await trial.start()
    await trial.gone("failed")


# --- progress ----------------------------------------------------------------------------------


@_scenario(option=PROGRESS)
async def steps_in_order(trial: Trial) -> None:
    """The work has three steps, each of which is done once."""
    await trial.put("steps:3")
    await trial.start()
    for step in (1, 2, 3):
        await trial.begun("steps:3", step=step)
    await trial.gone("steps:3")


@_scenario(option=PROGRESS, loses_leases=True)
async def killed_in_a_step(trial: Trial) -> None:
    """The worker is killed in the third step; the next one does not begin with the first."""
    await trial.put("steps:3", hold=True)
    await trial.start()
    for step in (1, 2):
        (await trial.begun("steps:3", step=step)).finish()
    await trial.begun("steps:3", step=3)
    await trial.kill()
    trial.let("steps:3")
    await trial.start()
    again = await trial.begun("steps:3", step=3)
    again.finish()
    await trial.gone("steps:3")
    done = [len(trial.works_of("steps:3", step=step)) for step in (1, 2)]
    if done != [1, 1]:
        raise Missed("progress-lost", f"steps 1 and 2 were begun {done}, not [1, 1]")
    trial.works = [work for work in trial.works if work.step != 3]  # noqa: PLR2004


@_scenario(option=PROGRESS)
async def slow_steps(trial: Trial) -> None:
    """Three steps of 0.8 visibility timeouts each: to save is to renew."""
    await trial.put("steps:3", hold=True)
    await trial.start()
    for step in (1, 2, 3):
        work = await trial.begun("steps:3", step=step)
        await _beside_a_rival(trial, 0.8)
        work.finish()
    await trial.gone("steps:3")
