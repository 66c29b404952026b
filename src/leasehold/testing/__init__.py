"""Doubles for tests: ours and our users'."""

from leasehold.testing.clock import ManualClock

__all__ = ["ManualClock"]
