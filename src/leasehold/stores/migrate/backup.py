"""Copies of whole stores, made while servers use them; and stores made from such copies.

A copy is a folder with one SQLite database, whatever the store was, so that it can be looked at,
checked and served without the database server that it came from.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Final

import apsw

from leasehold.stores.migrate.ends import End, MoveRefused, highest, tables_of
from leasehold.stores.migrate.marks import ARRIVED, refuse_marked
from leasehold.stores.migrate.migrate import KEPT, Teller, compare_rows, copy_rows

_BUSY_MS: Final = 5_000
_PIECE: Final = 1 << 20


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


def large_body_keys(database: Path) -> list[str]:
    """Return the keys of the bodies that a copied database names and does not hold."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        query = "SELECT CAST(body AS TEXT) FROM message WHERE place = 2"
        return [str(key) for (key,) in connection.execute(query)]
    finally:
        connection.close(force=True)


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while piece := content.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
