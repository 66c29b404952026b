"""The pipeline of the test with a killed executor; the command finds it in its directory."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from leasehold.spark.pipeline import Pipeline
from leasehold.worker.idempotency import Once

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("FILMS_FOLDER", str(HERE)))
once = Once()


def scan(message: Any, state: Any) -> dict[str, Any]:
    """Say who has scanned."""
    _note("scan", message)
    return {"scanned_by": os.getpid()}


def encode(message: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Stand still as long as there is a file that says so."""
    _note("encode", message)
    while (FOLDER / "hold").exists():
        message.check()
        time.sleep(0.02)
    return {**state, "encoded_by": os.getpid()}


def ship(message: Any, state: dict[str, Any]) -> None:
    """Count the film as shipped, in one transaction with the history."""
    _note("ship", message)
    database = sqlite3.connect(FOLDER / "films.db", timeout=30)
    with closing(database), once.in_transaction(database, message) as run:
        if run.first:
            database.execute(
                "INSERT INTO shipped VALUES (?, 1, ?, ?)"
                " ON CONFLICT (film) DO UPDATE SET effects = effects + 1",
                (message.text, state["scanned_by"], state["encoded_by"]),
            )


def _note(stage: str, message: Any) -> None:
    line = f"{stage} {message.text} {os.getpid()} {message.fence}\n"
    file = os.open(FOLDER / "log", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


pipeline = Pipeline("films").stage("scan", scan).stage("encode", encode).stage("ship", ship)
