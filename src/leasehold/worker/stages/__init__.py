"""Work in stages, and progress that outlives whoever made it."""

from leasehold.worker.adapters.envelope import (
    EnvelopeForm,
    ProgressForm,
    StagePrefixForm,
    UnreadableEnvelope,
)
from leasehold.worker.stages.declared import (
    COMPLETED,
    Done,
    Goto,
    StageHooks,
    StageMessage,
    StageOverdue,
)
from leasehold.worker.stages.isolated import StageDied
from leasehold.worker.stages.pipeline import Stages
from leasehold.worker.stages.progress_store import (
    KeepsProgress,
    MemoryProgress,
    ProgressStore,
    SqliteProgress,
)

__all__ = [
    "COMPLETED",
    "Done",
    "EnvelopeForm",
    "Goto",
    "KeepsProgress",
    "MemoryProgress",
    "ProgressForm",
    "ProgressStore",
    "SqliteProgress",
    "StageDied",
    "StageHooks",
    "StageMessage",
    "StageOverdue",
    "StagePrefixForm",
    "Stages",
    "UnreadableEnvelope",
]
