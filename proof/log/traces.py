"""Traces of the model, put to the checker of logs: it accepts and rejects what the model does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from leasehold.events.check import Checker, Report
from leasehold.events.check_input import row_of

_AT_ONCE_MS = -1
"""In the model the leases of a session end with it, in the same step."""


class Trace(NamedTuple):
    """What the model has done, and what the checker says of it."""

    name: str
    model: str
    bug: str
    visible_in_log: bool
    report: Report

    @property
    def is_right(self) -> bool:
        """Whether the checker agrees with the model, as far as a log can show it."""
        if self.report.consumed != self.report.events:
            return False
        if self.bug == "none":
            return not self.report.total
        return bool(self.report.total) or not self.visible_in_log


def judge(path: Path) -> Iterator[Trace]:
    """Check the traces in a file; its form is described in ``proof/model/TRACES.md``."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield _judge(json.loads(line))


def _judge(trace: dict[str, Any]) -> Trace:
    account = trace["events"][0]["account"]
    plain = {"lapsed_receipts": "until-retaken", "failure_policy": None, "groups": None}
    settings = {(account, name): plain | told for name, told in trace["settings"].items()}
    checker = Checker(settings=settings, session_grace_ms=_AT_ONCE_MS)
    checker.feed(row_of(event) for event in trace["events"])
    told = trace["name"], trace["model"], trace["bug"], trace["visible_in_log"]
    return Trace(*told, checker.end())
