"""Rows that say what becomes of the message of a claim that they come from.

A query that works on claimed messages sends a row for each of them, with the column ``claimed``. If
its member ``outcome`` is null the message is completed with its claim; otherwise it is exempted
from that. Exemptions are noted by the driver, of the attempts that won, right before these are
published: so a message is never tried again although its result is sent, nor the other way round.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.client.errors import ClaimLapsed, ClaimSettled
from leasehold.client.models import ErrorReport, Exemption
from leasehold.spark.options import log

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from leasehold.client import Client

CLAIMED: Final = "claimed"
"""Name of the column."""
MEMBER: Final[Mapping[str, str]] = {
    "queue": "string",
    "stream": "string",
    "claim": "bigint",
    "claim_token": "bigint",
    "message_id": "string",
    "outcome": "string",
    "delay_s": "int",
    "error": "string",
    "error_type": "string",
    "error_fingerprint": "string",
}
"""What it consists of. ``outcome`` is null, "failed", "buried", "returned" or "interrupted"; the
rest is as for a release. ``stream`` is the option streamId of the read."""
_LOOK_S: Final = 0.5
_LOOKS: Final = 120
"""So often a claim is looked at that has lapsed while the server was away: it is the source that
brings it back."""


class BadColumns(ValueError):
    """The table cannot be sent: it has columns that are no part of a message, or lacks some."""


class ClaimId(NamedTuple):
    """Which claim, and the proof that it is still that of the query."""

    queue: str
    stream: str
    number: int
    token: int


Members: TypeAlias = Mapping[ClaimId, Sequence[Exemption]]
"""Of each claim that rows came from: the messages that are not to be completed with it."""


def check_claimed(kind: StructType) -> None:
    """Refuse a column of another shape.

    Raises:
        BadColumns: It is not of these members.
    """
    given = {field.name: field.dataType.simpleString() for field in kind.fields}
    if given != MEMBER:
        wanted = ", ".join(f"{name}: {each}" for name, each in MEMBER.items())
        raise BadColumns(f"the column {CLAIMED} has to be struct<{wanted}>")


class ClaimedRows:
    """Takes what rows say of claims out of the batches of one task.

    Args:
        names: Of the columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._place = names.index(CLAIMED) if CLAIMED in names else None
        self._body = names.index("body")
        self.claims: dict[ClaimId, list[Exemption]] = {}
        """What was found so far."""

    def taken_from(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are to be sent: all that have a body, or come from no claim."""
        if self._place is None:
            return batch
        claimed = batch.column(self._place)
        self._note(claimed)
        sent = pc.or_(pc.is_valid(batch.column(self._body)), pc.is_null(claimed))
        rest = batch.select([place for place in range(batch.num_columns) if place != self._place])
        return rest.filter(sent)

    def _note(self, claimed: pa.StructArray) -> None:
        if pa.types.is_null(claimed.type):
            return
        names = [each.name for each in claimed.type]
        columns = dict(zip(names, claimed.flatten(), strict=True))
        ids = ("queue", "stream", "claim", "claim_token")
        known = pa.table([columns[name] for name in ids], names=ids)
        known = known.filter(pc.is_valid(claimed)).group_by([*ids]).aggregate([])
        for row in known.to_pylist():
            self.claims.setdefault(ClaimId(*(row[name] for name in ids)), [])
        table = pa.table(list(columns.values()), names=list(columns))
        for row in table.filter(pc.is_valid(columns["outcome"])).to_pylist():
            self.claims[ClaimId(*(row[name] for name in ids))].append(_exemption(row))


def _exemption(row: Mapping[str, Any]) -> Exemption:
    error = None
    if row["error"] is not None:
        error = ErrorReport(
            text=row["error"], type=row["error_type"], fingerprint=row["error_fingerprint"]
        )
    return Exemption(
        number=row["claim"],
        id=row["message_id"],
        outcome=row["outcome"],
        delay_s=row["delay_s"],
        error=error,
    )


def joined(found: Iterable[Members]) -> dict[ClaimId, list[Exemption]]:
    """Return what all tasks together have found."""
    whole: dict[ClaimId, list[Exemption]] = {}
    for each in found:
        for claim, members in each.items():
            whole.setdefault(claim, []).extend(members)
    return whole


def note_members(
    client: Client, claim: ClaimId, members: Sequence[Exemption], transaction: str
) -> None:
    """Note which members of a claim are not to be completed, in place of what was noted before.

    Args:
        client: Of the server.
        claim: Which.
        members: They may be none.
        transaction: With which the claim may have been settled before, by an earlier run.

    Raises:
        LeaseholdClientError: Another query has attached, the claim has lost members, or the server
            cannot be reached; nothing may be published then.
    """
    stream = client.queue(claim.queue).stream(claim.stream, token=claim.token)

    def note() -> None:
        try:
            stream.exempt(claim.number, members, replace=True)
        except ClaimSettled as error:
            if members and error.settled_with != transaction:
                log.warning(
                    "claim %d is settled already: nothing can be exempted from it", claim.number
                )

    for _ in range(_LOOKS):
        with suppress(ClaimLapsed):
            note()
            return
        threading.Event().wait(_LOOK_S)
    note()
