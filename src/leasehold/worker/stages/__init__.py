"""Work in stages, and progress that outlives whoever made it."""

from leasehold.worker.stages.declared import COMPLETED, Done, Goto, StageOverdue
from leasehold.worker.stages.envelope import EnvelopeForm, ProgressForm, UnreadableEnvelope
from leasehold.worker.stages.hooks import StageHooks
from leasehold.worker.stages.keeping import KeepsProgress
from leasehold.worker.stages.pipeline import Stages
from leasehold.worker.stages.progress_store import MemoryProgress, ProgressStore, SqliteProgress
from leasehold.worker.stages.seeds_form import SeedsForm
from leasehold.worker.stages.stage_message import StageMessage

__all__ = [
    "COMPLETED",
    "Done",
    "EnvelopeForm",
    "Goto",
    "KeepsProgress",
    "MemoryProgress",
    "ProgressForm",
    "ProgressStore",
    "SeedsForm",
    "SqliteProgress",
    "StageHooks",
    "StageMessage",
    "StageOverdue",
    "Stages",
    "UnreadableEnvelope",
]
