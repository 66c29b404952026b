"""Which settings are safe."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from leasehold.testing.memory_queue import MEMORY
from leasehold.worker.leases import LeaseManager, LeaseSettings, UnsafeSettings
from tests.unit.worker.leases.support import THIRTY

MNS_LIKE = replace(MEMORY, service="mns", max_lease_s=43_200)


def named(settings: LeaseSettings) -> list[str]:
    """Return which settings are found wrong."""
    return [problem.setting for problem in settings.problems()]


def test_the_start_values_of_the_seeds_are_safe() -> None:
    """30 s of lease, 5 s of timer, 10 s of minimal life."""
    assert THIRTY.problems() == []
    THIRTY.check()


@pytest.mark.parametrize("lease_s", [1, 2, 3, 5, 6, 10, 30, 94, 300, 43_200, 604_800])
def test_safe_settings_for_any_length(lease_s: int) -> None:
    """Also the shortest leases get settings that are safe, and are renewed at half."""
    settings = LeaseSettings.of(lease_s)
    assert settings.problems() == []
    assert settings.renew_at_s == pytest.approx(lease_s / 2)
    assert settings.renew_at_s + settings.spread_s < lease_s


def test_message_timeout_is_an_hour_or_ten_leases() -> None:
    """By itself it is long enough for long work, and it can be set."""
    assert LeaseSettings.of(5).message_timeout_s == 3600
    assert LeaseSettings.of(600).message_timeout_s == 6000
    assert LeaseSettings.of(5, message_timeout_s=60).message_timeout_s == 60
    assert LeaseSettings.of(5, message_timeout_s=inf).problems() == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"message_minimal_life_s": 25.0}, ["visibility_timeout_s"]),
        ({"timer_interval_s": 20.0}, ["visibility_timeout_s"]),
        ({"call_timeout_s": 9.0}, ["message_minimal_life_s"]),
        ({"message_timeout_s": 30.0}, ["message_timeout_s"]),
        ({"message_timeout_s": nan}, ["message_timeout_s"]),
        ({"timer_interval_s": 0.0}, ["timer_interval_s"]),
        ({"call_timeout_s": -1.0}, ["call_timeout_s"]),
        ({"message_minimal_life_s": nan}, ["message_minimal_life_s"]),
        ({"visibility_timeout_s": 0}, ["visibility_timeout_s"]),
        ({"visibility_timeout_s": 30.0}, ["visibility_timeout_s"]),
        ({"visibility_timeout_s": 29.5}, ["visibility_timeout_s"]),
        ({"visibility_timeout_s": True}, ["visibility_timeout_s"]),
        (
            {"message_minimal_life_s": 26.0, "call_timeout_s": 26.0, "message_timeout_s": 1.0},
            ["visibility_timeout_s", "message_minimal_life_s", "message_timeout_s"],
        ),
    ],
)
def test_what_cannot_be_safe_is_named(change: dict[str, Any], expected: list[str]) -> None:
    """Each setting that is out of its bound is named, and only those."""
    found = named(replace(THIRTY, **change))
    assert found[: len(expected)] == expected
    assert set(found) <= {*expected, "visibility_timeout_s", "message_minimal_life_s"}


def test_a_refusal_says_all() -> None:
    """The error names setting, value, bound and reason."""
    with pytest.raises(UnsafeSettings) as caught:
        replace(THIRTY, call_timeout_s=10).check()
    assert str(caught.value) == (
        "message_minimal_life_s is 10; it must be above call_timeout_s + 1 for a late tick, 11: "
        "a lease could end before its renewal is answered"
    )
    assert [problem.value for problem in caught.value.problems] == [10]


def test_a_manager_refuses_unsafe_settings() -> None:
    """No manager is made that could not keep leases."""
    with pytest.raises(UnsafeSettings):
        LeaseManager(replace(THIRTY, message_minimal_life_s=1))
    with pytest.raises(ValueError, match="parallel is 0"):
        LeaseManager(THIRTY, parallel=0)


def test_the_bounds_of_a_service() -> None:
    """A lease must not be longer, or shorter, than the service has them."""
    LeaseSettings.of(43_200).check(MNS_LIKE)
    (problem,) = LeaseSettings.of(43_201).problems(MNS_LIKE)
    assert str(problem).startswith("visibility_timeout_s is 43201; it must be 1 to 43200")
    assert LeaseSettings.of(5).problems(replace(MEMORY, min_lease_s=6))


@pytest.mark.parametrize("lease_s", [10, 12, 31, 94, 180, 600])
@pytest.mark.parametrize("renewal_s", [0, 3, 20, 60])
def test_other_lengths_of_lease(lease_s: int, renewal_s: float) -> None:
    """Settings for a learned length are safe, and give slow renewals their time if they can."""
    settings = THIRTY.with_lease(lease_s, renewal_s)
    assert settings.problems() == []
    if lease_s >= 30 and lease_s > 3 * renewal_s:
        assert settings.visibility_timeout_s == lease_s
    if lease_s == 600:
        assert settings.call_timeout_s >= renewal_s


def test_settings_stay_where_others_would_be_unsafe() -> None:
    """A timer of 5 s cannot keep leases of 6 s, so their length stays."""
    assert THIRTY.with_lease(6) is THIRTY
    assert THIRTY.with_lease(30) is THIRTY
