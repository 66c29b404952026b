"""The memory of what was verified lately."""

from __future__ import annotations

from leasehold.auth.roles import Recent


def test_it_is_bounded() -> None:
    """However much is kept, at most twice the capacity stays."""
    recent: Recent[int, str] = Recent(10)
    for number in range(1_000):
        recent.keep(number, str(number))
        assert len(recent) <= 20
    assert recent.get(999) == "999"
    assert recent.get(1) is None


def test_what_is_used_stays() -> None:
    """An entry that is asked for again and again survives any number of others."""
    recent: Recent[str, int] = Recent(5)
    recent.keep("used", 1)
    for number in range(100):
        recent.keep(str(number), number)
        assert recent.get("used") == 1
