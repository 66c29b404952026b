"""Use cases between a dialect and a store: batching, maintenance, counting."""

from leasehold.engine.engine import Engine
from leasehold.engine.maintenance import MaintenancePlan
from leasehold.engine.stats import EngineStats, Histogram, QueueStats

__all__ = ["Engine", "EngineStats", "Histogram", "MaintenancePlan", "QueueStats"]
