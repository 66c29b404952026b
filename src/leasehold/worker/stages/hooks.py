"""What a pipeline tells those who watch it."""

from __future__ import annotations

from typing import Any


class StageHooks:
    """Does nothing at each step of a pipeline; override what is of interest.

    The methods are called in the thread that works, *overdue* in one of its own. An exception is
    logged and otherwise ignored.
    """

    def begun(self, message: Any, stage: str) -> None:
        """Run before each attempt at a stage."""

    def finished(self, message: Any, stage: str, took_s: float) -> None:
        """Run when a stage has succeeded, before its state is saved.

        Args:
            message: The message.
            stage: Name of the stage.
            took_s: Seconds that the attempt took.
        """

    def skipped(self, message: Any, stage: str) -> None:
        """Run when a stage is left out because of its *when*."""

    def failed(self, message: Any, stage: str, error: BaseException, *, again: bool) -> None:
        """Run when an attempt at a stage has failed.

        Args:
            message: The message.
            stage: Name of the stage.
            error: What it raised.
            again: Whether it is tried again at once.
        """

    def overdue(self, message: Any, stage: str, limit_s: float) -> None:
        """Run while a stage is still at work, once it has taken longer than *limit_s* seconds."""

    def not_saved(self, message: Any, stage: str, error: Exception) -> None:
        """Run when the work goes on although it could not be saved that *stage* comes next."""

    def restarted(self, message: Any, why: str) -> None:
        """Run when saved progress is not used and the work begins anew."""
