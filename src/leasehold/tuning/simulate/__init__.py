"""Try settings of a queue before they are made: event simulation of messages, leases, workers."""

from leasehold.tuning.simulate.outcome import Outcome
from leasehold.tuning.simulate.queue import simulate
from leasehold.tuning.simulate.settings import Crew, Handling, Outage, PopOrder, Renewal
from leasehold.tuning.simulate.work import (
    Load,
    Shape,
    arrivals,
    draw_from_model,
    draw_lengths,
    lives,
    replayed,
)

__all__ = [
    "Crew",
    "Handling",
    "Load",
    "Outage",
    "Outcome",
    "PopOrder",
    "Renewal",
    "Shape",
    "arrivals",
    "draw_from_model",
    "draw_lengths",
    "lives",
    "replayed",
    "simulate",
]
