"""Advice as a change of settings, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leasehold.advisor.advice import Basis
from leasehold.advisor.apply import Change, Current, change_for, current_of, stepped, undo_for
from leasehold.advisor.recommendation import Asked, Recommendation, Today, recommend
from leasehold.advisor.summaries import QueueSummary
from leasehold.domain.queue_settings import Adaptive, Advised, QueueSettings, TypeTimeout
from leasehold.http.native import queues as native
from tests.unit.advisor.support import log_normal, work

NOW_MS = 1_767_225_600_000


@pytest.fixture(scope="module")
def advice() -> Recommendation:
    """Return advice to go from 30 s to 60 s."""
    return recommend(QueueSummary(queue="orders", works=(work(log_normal(60, 0.4, 800)),)), Asked())


def applied(
    current: Current, advice: Recommendation, *, at_once: bool = False, **limits: int
) -> Current:
    """Return the settings after the change, as a server would have them."""
    change = change_for(advice, current, now_ms=NOW_MS, at_once=at_once, **limits)
    return patched(current, change.patch or {})


def patched(current: Current, patch: object) -> Current:
    """Do what a server does with the patch."""
    assert isinstance(patch, dict)
    advised = patch.get("advised", current.advised)
    adaptive = patch.get("adaptive", current.adaptive)
    return Current(
        visibility_timeout_s=patch.get("visibility_timeout_s", current.visibility_timeout_s),
        adaptive=Adaptive(**adaptive) if isinstance(adaptive, dict) else adaptive,
        advised=Advised(**advised) if isinstance(advised, dict) else advised,
    )


def test_advice_and_back(advice: Recommendation) -> None:
    """The timeout is set, workers that renew are told a plan, and undoing sets all back."""
    begun = Current(visibility_timeout_s=30)
    after = applied(begun, advice)
    assert after.visibility_timeout_s == 60
    assert after.adaptive is None
    assert after.advised is not None
    assert after.advised.first_lease_s is not None
    assert (after.advised.before_s, after.advised.at_ms) == (30, NOW_MS)
    assert "30 s to 60 s" in change_for(advice, begun, now_ms=NOW_MS).sentence
    assert patched(after, undo_for("orders", after).patch) == begun


def test_advice_upon_advice_leads_back_to_a_person(advice: Recommendation) -> None:
    """However often it was applied, unless somebody has set something in between."""
    once = applied(Current(visibility_timeout_s=30), advice)
    twice = applied(once, replace(advice, timeout_s=120))
    assert twice.visibility_timeout_s == 120
    assert patched(twice, undo_for("orders", twice).patch).visibility_timeout_s == 30
    by_hand = applied(replace(once, visibility_timeout_s=45), replace(advice, timeout_s=90))
    assert patched(by_hand, undo_for("orders", by_hand).patch).visibility_timeout_s == 45


def test_a_queue_that_adapts_gets_bounds(advice: Recommendation) -> None:
    """Around the advice: the timeouts that are as good; and they go back as well."""
    begun = Current(visibility_timeout_s=30, adaptive=Adaptive(floor_s=5, cap_s=3_600))
    whole = replace(advice, timeout_s=200, as_good_s=(150.4, 320.2))
    after = applied(begun, whole, at_once=True)
    assert after.adaptive == Adaptive(floor_s=150, cap_s=321)
    assert patched(after, undo_for("orders", after).patch) == begun
    limited = applied(begun, whole, floor_s=160, cap_s=240, at_once=True)
    assert limited.adaptive == Adaptive(floor_s=160, cap_s=240)


def test_bounds_go_in_small_steps(advice: Recommendation) -> None:
    """The server may not go at once where the timeout may not, and can go back from where it is."""
    begun = Current(visibility_timeout_s=60, adaptive=Adaptive(floor_s=10, cap_s=100))
    whole = replace(advice, today_s=60.0, timeout_s=120, as_good_s=(150.0, 2_228.0))
    after = applied(begun, whole)
    assert (after.visibility_timeout_s, after.adaptive) == (120, Adaptive(floor_s=60, cap_s=120))
    assert "(the best are 120 s and 2228 s)" in change_for(whole, begun, now_ms=NOW_MS).sentence
    wide = replace(begun, adaptive=Adaptive(floor_s=10, cap_s=3_600))
    # As far as a person has let it go it may go on to go.
    assert applied(wide, whole).adaptive == Adaptive(floor_s=60, cap_s=2_228)
    at_once = applied(begun, whole, at_once=True)
    assert at_once.adaptive == Adaptive(floor_s=120, cap_s=2_228)


def test_bounds_arrive_in_the_end() -> None:
    """Run after run, wherever the server is within them: as low as it can, or as high."""
    wanted = Adaptive(floor_s=150, cap_s=2_228)
    for leaning in (min, max):
        bounds, today_s = Adaptive(floor_s=10, cap_s=100), 60
        for _ in range(9):
            nearer = stepped(bounds, wanted, today_s, timeout_s=min(300, 2 * today_s))
            assert nearer.floor_s <= max(2 * today_s, bounds.floor_s)
            assert nearer.cap_s <= max(2 * today_s, bounds.cap_s)
            bounds = nearer
            today_s = leaning(bounds.floor_s, bounds.cap_s)
        assert bounds.floor_s == 150
        assert bounds.cap_s >= 300
        assert leaning is min or bounds == wanted
    down, wanted = Adaptive(floor_s=600, cap_s=3_600), Adaptive(floor_s=5, cap_s=40)
    today_s = 1_000
    for _ in range(12):
        down = stepped(down, wanted, today_s, timeout_s=max(20, today_s // 2))
        assert down.floor_s >= min(600, today_s // 2)
        today_s = down.cap_s
    # Half of where it stays, which is at the cap.
    assert down == Adaptive(floor_s=20, cap_s=40)


def test_limits_of_the_caller_hold(advice: Recommendation) -> None:
    """A floor above and a cap below the advice win."""
    begun = Current(visibility_timeout_s=30)
    assert applied(begun, advice, floor_s=90).visibility_timeout_s == 90
    assert applied(begun, advice, cap_s=45).visibility_timeout_s == 45


def test_nothing_is_changed_for_nothing(advice: Recommendation) -> None:
    """Not without data, not if it is set already; and what is not there cannot be undone."""
    few = recommend(QueueSummary(queue="orders", works=(work(log_normal(3, 1, 5)),)), Asked())
    assert change_for(few, Current(visibility_timeout_s=30), now_ms=NOW_MS).patch is None
    there = Current(visibility_timeout_s=advice.timeout_s)
    assert change_for(advice, there, now_ms=NOW_MS).patch is None
    assert undo_for("orders", there).patch is None


def test_what_a_person_has_set_since_stays(advice: Recommendation) -> None:
    """Undoing removes the advice, and says what it leaves."""
    begun = Current(visibility_timeout_s=30, adaptive=Adaptive())
    after = applied(begun, advice)
    since = replace(after, visibility_timeout_s=77, adaptive=Adaptive(floor_s=7, cap_s=99))
    change = undo_for("orders", since)
    assert change.patch == {"advised": None}
    assert "stays at 77 s" in change.sentence
    assert "bounds" in change.sentence
    off = replace(after, adaptive=None)
    change = undo_for("orders", off)
    assert "it no longer adapts, as set after the advice" in change.sentence
    assert "adaptive" not in (change.patch or {})


def test_timeout_and_bounds_go_back_each_for_itself(advice: Recommendation) -> None:
    """A person who turns the adaptive mode on has not set the timeout that was advice."""
    begun = applied(Current(visibility_timeout_s=30), advice)
    by_hand = Adaptive(floor_s=10, cap_s=3_600)
    again = applied(replace(begun, adaptive=by_hand), replace(advice, today_s=60.0, timeout_s=120))
    assert again.visibility_timeout_s == 120
    undone = patched(again, undo_for("orders", again).patch)
    assert undone == Current(visibility_timeout_s=30, adaptive=by_hand)
    # And the other way round: bounds that were advice, and a timeout that a person has set.
    other = replace(again, visibility_timeout_s=50)
    last = applied(other, replace(advice, today_s=50.0, timeout_s=100, as_good_s=(90.0, 700.0)))
    undone = patched(last, undo_for("orders", last).patch)
    assert undone == Current(visibility_timeout_s=50, adaptive=by_hand)


def test_undoing_stays_within_bounds_that_were_set_since(advice: Recommendation) -> None:
    """What a person allows holds for the way back as well."""
    begun = Current(visibility_timeout_s=5, adaptive=Adaptive(floor_s=5, cap_s=100))
    after = applied(begun, replace(advice, today_s=5.0, timeout_s=10))
    since = replace(after, adaptive=Adaptive(floor_s=7, cap_s=3_600))
    change = undo_for("orders", since)
    assert patched(since, change.patch).visibility_timeout_s == 7
    assert "5 s, as before, is outside the bounds" in change.sentence
    assert patched(after, undo_for("orders", after).patch) == begun


def test_workers_that_renew_keep_their_timeout(advice: Recommendation) -> None:
    """A timeout for those that do not would hide messages of the dead for long: they get a plan."""
    renewing = replace(advice, renews=True)
    begun = Current(visibility_timeout_s=30)
    after = applied(begun, renewing)
    assert after.visibility_timeout_s == 30
    assert after.advised is not None
    assert after.advised.first_lease_s is not None
    assert after.advised.renew_every_s is not None
    assert "stays at 30 s" in change_for(renewing, begun, now_ms=NOW_MS).sentence
    assert change_for(renewing, after, now_ms=NOW_MS + 1).patch is None
    assert patched(after, undo_for("orders", after).patch) == begun
    adaptive = replace(begun, adaptive=Adaptive(floor_s=10, cap_s=99))
    assert applied(adaptive, renewing).adaptive == adaptive.adaptive
    assert change_for(replace(renewing, renewal=None), begun, now_ms=NOW_MS).patch is None


def test_bounds_that_have_hardly_moved_are_left(advice: Recommendation) -> None:
    """Else each run would change the settings by noise, and the server with them."""
    begun = Current(visibility_timeout_s=30, adaptive=Adaptive(floor_s=5, cap_s=3_600))
    whole = replace(advice, timeout_s=200, as_good_s=(150.0, 320.0))
    after = applied(begun, whole, at_once=True)
    near = replace(whole, timeout_s=220, as_good_s=(157.0, 336.0))
    assert change_for(near, after, now_ms=NOW_MS).patch is None
    far = replace(whole, timeout_s=220, as_good_s=(180.0, 336.0))
    assert change_for(far, after, now_ms=NOW_MS).patch is not None


def test_no_timeout_is_longer_than_a_lease_can_be(advice: Recommendation) -> None:
    """Whatever cap the caller gives."""
    endless = replace(advice, timeout_s=2_000_000)
    after = applied(Current(visibility_timeout_s=30), endless, cap_s=3_000_000)
    assert after.visibility_timeout_s == 604_800


# --- by type -------------------------------------------------------------------------------------


def for_type(advice: Recommendation, timeout_s: int = 60, **more: Any) -> Recommendation:
    """Return the advice as if it were for the type encode.hd."""
    return replace(advice, message_type="encode.hd", of_queue=False, timeout_s=timeout_s, **more)


def change_of(settings: QueueSettings, advice: Recommendation, **options: Any) -> Change:
    """Return the change that advice for the type asks for."""
    current = current_of(settings, "encode.hd")
    return change_for(advice, current, now_ms=NOW_MS, **options)


def sent(settings: QueueSettings, change: Change) -> QueueSettings:
    """Return the settings after a change, as the server itself merges it."""
    assert change.patch is not None, change.sentence
    return native.patched("orders", settings, change.patch)


def undone(settings: QueueSettings) -> QueueSettings:
    """Return the settings after the advice for the type was taken back."""
    return sent(settings, undo_for("orders", current_of(settings, "encode.hd")))


PREFIX = {"encode.*": TypeTimeout(visibility_timeout_s=45)}
EXACT = {"encode.hd": TypeTimeout(visibility_timeout_s=40)}
ADAPTS = {"encode.hd": TypeTimeout(adaptive=Adaptive(floor_s=5, cap_s=3_600))}
BOTH = {"encode.hd": TypeTimeout(visibility_timeout_s=40, adaptive=Adaptive())}


@pytest.mark.parametrize("rules", [{}, PREFIX, EXACT, ADAPTS, BOTH, PREFIX | ADAPTS])
@pytest.mark.parametrize("adaptive", [None, Adaptive(floor_s=5, cap_s=3_600)])
def test_advice_for_a_type_and_back(
    advice: Recommendation, rules: dict[str, TypeTimeout], adaptive: Adaptive | None
) -> None:
    """Only the rule by its name is set; undone, the settings are those of before, however often."""
    begun = QueueSettings(visibility_timeout_s=30, adaptive=adaptive, timeouts_by_type=rules)
    good = for_type(advice, as_good_s=(50.0, 80.0))
    once = sent(begun, change_of(begun, good))
    assert once.lease_of("encode.hd", None) == 60
    assert once.lease_of("encode.sd", None) == begun.lease_of("encode.sd", None)
    assert (once.visibility_timeout_s, once.adaptive) == (30, adaptive)
    assert once.advised is None
    assert undone(once) == begun
    twice = sent(once, change_of(once, for_type(advice, 120, as_good_s=(100.0, 160.0))))
    assert twice.lease_of("encode.hd", None) == 120
    assert undone(twice) == begun


def test_a_type_that_adapts_gets_bounds(advice: Recommendation) -> None:
    """Within the caller's own; also where it is the queue that adapts, and from then on alone."""
    good = for_type(advice, as_good_s=(50.0, 80.0))
    for settings in (
        QueueSettings(timeouts_by_type=ADAPTS),
        QueueSettings(adaptive=Adaptive(floor_s=5, cap_s=3_600)),
    ):
        change = change_of(settings, good, at_once=True, cap_s=70)
        assert change.sentence.startswith("Type encode.hd: visibility timeout 30 s to 60 s")
        rule = sent(settings, change).timeouts_by_type["encode.hd"]
        assert rule.adaptive == Adaptive(floor_s=50, cap_s=70)


def test_the_guard_rails_of_a_type_begin_at_its_own_timeout() -> None:
    """No step goes further than twice or half of what is in force for it, not for the queue.

    The queue's own advice leaves out the types that have a timeout of their own.
    """
    works = (
        work(log_normal(300, 0.4, 800), message_type="slow"),
        work(log_normal(10, 0.4, 800), message_type="quick"),
    )
    queue = QueueSummary(queue="orders", works=works)
    today = Today(visibility_timeout_s=30, lease_s=30, by_type={"slow": 100})
    asked = Asked(today={"orders": today})
    slow, quick = (recommend(queue, asked, each) for each in works)
    assert (slow.today_s, slow.timeout_s) == (100, 200)
    assert quick.today_s == 30
    whole = recommend(queue, asked)
    assert whole.today_s == 30
    assert whole.wanted_s == pytest.approx(quick.wanted_s)
    assert whole.seen.messages == slow.seen.messages + quick.seen.messages


def test_what_a_person_has_set_for_a_type_since_stays(advice: Recommendation) -> None:
    """The rule that was set by hand, and one that was removed, are left by undoing."""
    once = sent(QueueSettings(), change_of(QueueSettings(), for_type(advice)))
    by_hand = native.patched("orders", once, {"timeouts_by_type": EXACT_PATCH})
    back = undone(by_hand)
    assert back == QueueSettings(timeouts_by_type=EXACT)
    removed = native.patched("orders", once, {"timeouts_by_type": {"encode.hd": None}})
    assert undone(removed) == QueueSettings()
    assert undo_for("orders", current_of(QueueSettings(), "encode.hd")).patch is None


EXACT_PATCH = {"encode.hd": {"visibility_timeout_s": 40}}


def test_nothing_is_changed_for_a_type_for_nothing(advice: Recommendation) -> None:
    """Too few data, the same timeout from a prefix already, and workers that renew."""
    few = replace(for_type(advice), basis=Basis.START)
    assert change_of(QueueSettings(), few).patch is None
    same = QueueSettings(timeouts_by_type={"encode.*": TypeTimeout(visibility_timeout_s=60)})
    change = change_of(same, for_type(advice))
    assert (change.patch, change.sentence) == (None, "Type encode.hd: already at 60 s.")
    plan = change_of(QueueSettings(), for_type(advice, renews=True))
    assert plan.patch is not None
    assert plan.patch.keys() == {"advised_by_type"}
    told = sent(QueueSettings(), plan)
    assert told.advised_by_type["encode.hd"].first_lease_s is not None
    assert undone(told) == QueueSettings()
