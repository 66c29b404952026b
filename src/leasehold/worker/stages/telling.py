"""Calls the hooks of a pipeline; what goes wrong in one is logged and does no harm."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from leasehold.worker.message import Message
from leasehold.worker.stages.hooks import StageHooks

_log: Final = logging.getLogger("leasehold.worker.stages")


class Telling:
    """All hooks of a pipeline as one, and its log."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: Sequence[StageHooks]) -> None:
        self._hooks = hooks

    def tell(self, turn: str, *what: Any, **more: Any) -> None:
        """Call the method *turn* of each hook."""
        for hook in self._hooks:
            try:
                getattr(hook, turn)(*what, **more)
            except Exception:  # noqa: BLE001 - whoever watches must not stop the work
                _log.exception("stage_hook_failed", extra={"hook": type(hook).__name__})

    def failed(self, message: Message, stage: str, error: Exception, *, again: bool) -> None:
        """See the hooks; only what is tried again is logged, since the worker logs the rest."""
        if again:
            self._warn("stage_retried", message, stage, f"{type(error).__name__}: {error}")
        self.tell("failed", message, stage, error, again=again)

    def overdue(self, message: Message, stage: str, limit_s: float) -> None:
        """See the hooks."""
        self._warn("stage_overdue", message, stage, f"at work for more than {limit_s:g} s")
        self.tell("overdue", message, stage, limit_s)

    def not_saved(self, message: Message, stage: str, error: Exception) -> None:
        """See the hooks."""
        self._warn("stage_not_saved", message, stage, f"the work goes on: {error}")
        self.tell("not_saved", message, stage, error)

    def restarted(self, message: Message, why: str) -> None:
        """See the hooks."""
        self._warn("stages_restarted", message, "", why)
        self.tell("restarted", message, why)

    @staticmethod
    def _warn(action: str, message: Message, stage: str, text: str) -> None:
        where = f"{stage} of {message.id}" if stage else message.id
        _log.warning(
            "%s: %s",
            where,
            text,
            extra={
                "action": action,
                "queue": message.queue,
                "message_id": message.id,
                "stage": stage,
            },
        )
