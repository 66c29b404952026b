"""How long leases are, and when they are renewed; and what cannot be safe."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from leasehold.worker.adapters.protocol import Capabilities

MAX_ALLOWED_LAG_S: Final = 1.0
"""So late a tick may be without harm, where leases are long enough for that."""
_ALLOWED_LAG_SHARE: Final = 0.05
"""Of a lease that is short."""
_TIMER_SHARE: Final = 0.1
_MAX_TIMER_INTERVAL_S: Final = 1.0
_RENEW_AT_SHARE: Final = 0.5
_CALL_TIMEOUT_SHARE: Final = 0.2
_MAX_CALL_TIMEOUT_S: Final = 10.0
_MIN_MESSAGE_TIMEOUT_S: Final = 3600.0
_MESSAGE_TIMEOUT_LEASES: Final = 10
_CALL_TIMEOUT_ROUND_TRIPS: Final = 1.25
_UNDER_THE_BOUND: Final = 0.99


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A setting that cannot be safe."""

    setting: str
    value: object
    bound: str
    """What it has to be, in numbers."""
    why: str

    def __str__(self) -> str:
        return f"{self.setting} is {self.value}; it must be {self.bound}: {self.why}"


class UnsafeSettings(ValueError):
    """Leases could not be kept with these settings.

    Args:
        problems: All that is wrong.
    """

    def __init__(self, problems: list[SettingProblem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """When leases are renewed, and for how long; all lengths in seconds.

    A lease is renewed at the first tick at which no more than ``timer_interval_s +
    message_minimal_life_s`` of it is left. So a lease that is passed over still has more than
    ``message_minimal_life_s`` at the next tick.
    """

    visibility_timeout_s: int
    """Length of each lease, and of each renewal. It bounds how long a crash hides a message."""
    timer_interval_s: float
    """From tick to tick of the one timer."""
    message_minimal_life_s: float
    """What is left of a lease, at least, when its renewal is sent."""
    message_timeout_s: float
    """So long after the receive nothing is renewed any more, so that a worker that hangs does not
    keep its message for ever. Infinity: never."""
    call_timeout_s: float
    """How long a request that renews may take."""

    @classmethod
    def of(cls, visibility_timeout_s: int, message_timeout_s: float | None = None) -> LeaseSettings:
        """Return safe settings for a length of leases: they are renewed when half of it is left.

        Args:
            visibility_timeout_s: Whole seconds, 1 or more.
            message_timeout_s: None: an hour, or ten leases if that is more.
        """
        timer_s = min(_MAX_TIMER_INTERVAL_S, visibility_timeout_s * _TIMER_SHARE)
        if message_timeout_s is None:
            leases_s = visibility_timeout_s * _MESSAGE_TIMEOUT_LEASES
            message_timeout_s = max(_MIN_MESSAGE_TIMEOUT_S, leases_s)
        return cls(
            visibility_timeout_s=visibility_timeout_s,
            timer_interval_s=timer_s,
            message_minimal_life_s=visibility_timeout_s * _RENEW_AT_SHARE - timer_s,
            message_timeout_s=message_timeout_s,
            call_timeout_s=min(_MAX_CALL_TIMEOUT_S, visibility_timeout_s * _CALL_TIMEOUT_SHARE),
        )

    @property
    def renew_at_s(self) -> float:
        """A lease of which no more than this is left is renewed."""
        return self.timer_interval_s + self.message_minimal_life_s

    @property
    def spread_s(self) -> float:
        """By up to this much earlier, so that what was received together is not renewed at once.

        A quarter of what there is: a renewal always makes a lease longer.
        """
        return (self.visibility_timeout_s - self.renew_at_s) / 4

    @property
    def allowed_lag_s(self) -> float:
        """How late a tick may be without harm."""
        return min(MAX_ALLOWED_LAG_S, self.visibility_timeout_s * _ALLOWED_LAG_SHARE)

    def problems(self, capabilities: Capabilities | None = None) -> list[SettingProblem]:
        """Return what cannot be safe.

        Args:
            capabilities: Of a service that the leases come from; adds its bounds.
        """
        lease_s: object = self.visibility_timeout_s
        if type(lease_s) is not int or lease_s < 1:
            why = "services count leases in whole seconds"
            return [SettingProblem("visibility_timeout_s", lease_s, "a whole number from 1", why)]
        return [*self._not_positive(), *self._too_tight(), *self._not_served(capabilities)]

    def check(self, capabilities: Capabilities | None = None) -> None:
        """Refuse what cannot be safe.

        Raises:
            UnsafeSettings: It names each setting, and its bound.
        """
        problems = self.problems(capabilities)
        if problems:
            raise UnsafeSettings(problems)

    def with_lease(self, visibility_timeout_s: int, renewal_s: float = 0) -> LeaseSettings:
        """Return these settings with another length of leases; the rest grows or shrinks with it.

        The timer keeps its interval, and the settings stay as they are if the outcome would not be
        safe.

        Args:
            visibility_timeout_s: Whole seconds.
            renewal_s: How long renewals take: they are given the time for that.
        """
        if visibility_timeout_s == self.visibility_timeout_s and renewal_s <= self.call_timeout_s:
            return self
        factor = visibility_timeout_s / self.visibility_timeout_s
        other = replace(
            self,
            visibility_timeout_s=visibility_timeout_s,
            message_minimal_life_s=self.message_minimal_life_s * factor,
            message_timeout_s=max(self.message_timeout_s, 2.0 * visibility_timeout_s),
        )
        longest_s = (other.message_minimal_life_s - other.allowed_lag_s) * _UNDER_THE_BOUND
        wanted_s = max(self.call_timeout_s, renewal_s * _CALL_TIMEOUT_ROUND_TRIPS)
        other = replace(other, call_timeout_s=min(wanted_s, longest_s))
        return self if other.problems() else other

    def _not_positive(self) -> list[SettingProblem]:
        names = ("timer_interval_s", "message_minimal_life_s", "call_timeout_s")
        return [
            SettingProblem(name, value, "above 0", "the interval must be positive")
            for name in names
            if not 0 < (value := getattr(self, name)) < math.inf
        ]

    def _too_tight(self) -> list[SettingProblem]:
        problems = []
        if not self.visibility_timeout_s > self.renew_at_s:
            problems.append(
                SettingProblem(
                    "visibility_timeout_s",
                    self.visibility_timeout_s,
                    f"above timer_interval_s + message_minimal_life_s, {self.renew_at_s:g}",
                    "a new lease would be too short at its first tick",
                )
            )
        least_s = self.call_timeout_s + self.allowed_lag_s
        if not self.message_minimal_life_s > least_s:
            problems.append(
                SettingProblem(
                    "message_minimal_life_s",
                    self.message_minimal_life_s,
                    f"above call_timeout_s + {self.allowed_lag_s:g} for a late tick, {least_s:g}",
                    "a lease could end before its renewal is answered",
                )
            )
        if not self.message_timeout_s > self.visibility_timeout_s:
            problems.append(
                SettingProblem(
                    "message_timeout_s",
                    self.message_timeout_s,
                    f"above visibility_timeout_s, {self.visibility_timeout_s}",
                    "leases would never be renewed",
                )
            )
        return problems

    def _not_served(self, capabilities: Capabilities | None) -> list[SettingProblem]:
        if capabilities is None:
            return []
        least_s, most_s = capabilities.min_lease_s, capabilities.max_lease_s
        if least_s <= self.visibility_timeout_s <= most_s:
            return []
        return [
            SettingProblem(
                "visibility_timeout_s",
                self.visibility_timeout_s,
                f"{least_s} to {most_s}",
                f"the service {capabilities.service} supports no other lease lengths",
            )
        ]
