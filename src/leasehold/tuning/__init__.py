"""From how long work takes to a visibility timeout: statistics without a clock or a server.

:func:`advise` takes attempts and gives a timeout with its reasons; :func:`observe` makes attempts
of a log of leases. The parts are in the modules beside, each function with its formula and source.
What settings would do to a queue is played by ``leasehold.tuning.simulate``.

Lengths of time are in seconds throughout, and chances are 0 to 1.
"""

from leasehold.tuning.advice import Advice, Basis, Choice, Lengths, Question, advise
from leasehold.tuning.attempts import Attempt
from leasehold.tuning.bounds import Bounds
from leasehold.tuning.costs import Growth, Prices
from leasehold.tuning.observing import Lease, observe

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
