"""Copies of whole stores, made while servers use them; and stores made from such copies.

A copy is a folder with one SQLite database, whatever the store was, so that it can be looked at,
checked and served without the database server that it came from.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import apsw

from leasehold.stores.migrate.ends import (
    LARGE_BODIES,
    End,
    LargeBody,
    MoveRefused,
    highest,
    large_bodies_in,
    tables_of,
)
from leasehold.stores.migrate.marks import ARRIVED, refuse_marked
from leasehold.stores.migrate.migrate import KEPT, Teller, compare_rows, copy_rows

_BUSY_MS: Final = 5_000
_PIECE: Final = 1 << 20
_FIRST_FACTS: Final = frozenset(
    {
        *("leasehold", "store", "begun_at_ms", "ended_at_ms", "messages", "large_bodies"),
        *("database_bytes", "database_sha256"),
    }
)
"""What backups of 0.1.0 say, which have no digest of that."""


def copy_database(source: Path, target: Path) -> None:
    """Write the database of a store in a folder to a new file, as it is at one instant.

    Servers go on meanwhile: it is read in one transaction, and the copy is compact.

    Raises:
        apsw.Error: It cannot be read, or the disk of the copy is full.
    """
    connection = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.pragma("busy_timeout", _BUSY_MS)
        connection.execute("VACUUM INTO ?", (str(target),))
    finally:
        connection.close(force=True)


def copy_store(source: End, target: End, now_ms: int, tell: Teller) -> int:
    """Copy all rows of a store into an empty one, and compare them; return how many.

    The source is left as it is, and is not marked as moved. Its caller has begun the transaction
    in which it is read.

    Args:
        source: In a transaction that sees one instant.
        target: Empty. It is locked here, and goes on where the source was.
        now_ms: When, Unix milliseconds; the target keeps it with where it is from.
        tell: Hears how far it is.

    Raises:
        MoveRefused: The target is not empty, the source was moved away, or what has arrived is not
            what was read.
    """
    there = source.meta()
    refuse_marked(there)
    target.lock()
    try:
        source.select(None)
        target.select(None)
        tables = tables_of(None)
        if any(target.count(table) for table in tables):
            raise MoveRefused(f"{target.shown} is not empty")
        total = sum(source.count(table) for table in tables)
        target.prepare_bulk()
        read = dict(copy_rows(source, target, tables, tell, total))
        target.finish_bulk()
        compare_rows(target, tables, read, tell)
        target.raise_to(highest(source.high_water(), target.high_water()))
        for name in KEPT:
            if name in there:
                target.set_meta(name, there[name])
        # As after a move: it is why numbers of the event log may be missing.
        arrived = {"from": source.shown, "account": None, "at_ms": now_ms}
        target.set_meta(ARRIVED + secrets.token_hex(16), json.dumps(arrived))
        target.commit()
    finally:
        target.roll_back()
    return total


def large_bodies(database: Path) -> list[LargeBody]:
    """Return the bodies that a copied database names and does not hold."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return large_bodies_in(connection.execute(f"{LARGE_BODIES} ORDER BY row_key"))
    finally:
        connection.close(force=True)


def sealed_manifest(facts: Mapping[str, object]) -> str:
    """Return the text that says what a backup is, with a digest of itself at its end."""
    return _manifest_text({**facts, "manifest_sha256": _digest_of_facts(facts)})


def read_manifest(content: bytes) -> dict[str, Any]:
    """Return what a backup says of itself; ``bad_bodies`` is None where none was looked at.

    Raises:
        ValueError: It was changed, or is no manifest.
    """
    facts = json.loads(content)
    if not isinstance(facts, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of JSON, as any other
    if facts.keys() == _FIRST_FACTS:
        return {**facts, "bad_bodies": None}  # of 0.1.0, which looked into no body
    digest = facts.pop("manifest_sha256", None)
    if digest != _digest_of_facts(facts):
        raise ValueError("it is not as it was written")
    # Its digest is of what it says; a change that says the same is one all the same.
    if content.decode() != sealed_manifest(facts):
        raise ValueError("it is not as it was written")
    return facts


def _digest_of_facts(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(_manifest_text(facts).encode()).hexdigest()


def _manifest_text(facts: Mapping[str, object]) -> str:
    return json.dumps(facts, indent=2) + "\n"


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while piece := content.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
