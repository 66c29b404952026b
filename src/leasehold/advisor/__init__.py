"""From how long work takes to a visibility timeout: statistics without a clock or a server.

:func:`advise` takes attempts and gives a timeout with its reasons; :func:`observe` makes attempts
of a log of leases. The parts are in the modules beside, each function with its formula and source.
What settings would do to a queue is played by ``leasehold.advisor.simulate``.

Lengths of time are in seconds throughout, and chances are 0 to 1.
"""

from __future__ import annotations

from leasehold.advisor.advice import Advice, Basis, Bounds, Choice, Lengths, Question, advise
from leasehold.advisor.attempts import Attempt, Lease, observe
from leasehold.advisor.costs import Growth, Prices

__all__ = [
    "Advice",
    "Attempt",
    "Basis",
    "Bounds",
    "Choice",
    "Growth",
    "Lease",
    "Lengths",
    "Prices",
    "Question",
    "advise",
    "observe",
]
