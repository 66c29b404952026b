"""Proof that a late worker does no harm: deliveries are played against the user's own handler."""

from leasehold.worker.once.proving.proof import CannotProve, prove
from leasehold.worker.once.proving.report import ProofReport, Scenario, Verdict

__all__ = ["CannotProve", "ProofReport", "Scenario", "Verdict", "prove"]
