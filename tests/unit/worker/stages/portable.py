"""A pipeline that other processes import by the names of its stages."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from leasehold.worker.stages import StageMessage, Stages

pipeline = Stages()


@pipeline.stage("scan")
async def scan(message: StageMessage, state: Any) -> str:
    """Find out in which process this is."""
    await asyncio.sleep(0)
    return str(os.getpid())


@pipeline.stage("note")
def note(message: StageMessage, state: str) -> None:
    """Write it down."""
    Path(message.text).write_text(state)
