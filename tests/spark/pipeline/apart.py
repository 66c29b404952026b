"""A pipeline whose stages two applications share; the command finds it in its directory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from leasehold.spark.pipeline import Pipeline

FOLDER = Path(os.environ.get("APART_FOLDER", "."))
AT_ONCE = 20
"""Films of the first application that are scanned at once; all others wait for the test."""


def scan(message: Any, state: Any) -> list[str]:
    """Stand still with what comes later, as long as there is a file that says so."""
    _note("scan", message)
    if int(message.text) >= AT_ONCE:
        _hold("hold-scan", message)
    return [message.queue]


def encode(message: Any, state: list[str]) -> list[str]:
    """Stand still as long as there is another file."""
    _note("encode", message)
    _hold("hold-encode", message)
    return [*state, message.queue]


def ship(message: Any, state: list[str]) -> list[str]:
    """Stay with the application of the stage before."""
    _note("ship", message)
    return [*state, "shipped"]


def _hold(name: str, message: Any) -> None:
    while (FOLDER / name).exists():
        message.check()
        time.sleep(0.02)


def _note(stage: str, message: Any) -> None:
    line = f"{stage} {message.text} {os.getpid()} {message.fence}\n"
    file = os.open(FOLDER / "log", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


pipeline = (
    Pipeline("films")
    .stage("scan", scan, must_save=True)
    .stage("encode", encode, queue="films-gpu")
    .stage("ship", ship)
)
