"""Where the check of an event log gets its events from: files, lines of JSON, and a live queue.

Part of :mod:`leasehold.events.check`. Only what reads Parquet needs pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leasehold.domain.events import EventType
from leasehold.events.check import Checker
from leasehold.events.check_book import (
    FIELDS,
    Place,
    Report,
    Row,
    Rule,
    Violation,
    changes_in,
)
from leasehold.events.names import FIELDS as COLUMNS
from leasehold.events.names import PHASE_NAMES, TYPE_NAMES

if TYPE_CHECKING:
    import pyarrow as pa

UNKNOWN_TYPE: Final = -1
_TYPES: Final = {name: number for number, name in TYPE_NAMES.items()}
_PHASES: Final = {name: number for number, name in PHASE_NAMES.items()}
_COLUMN_OF: Final = {field: column for column, field in COLUMNS.items()}
_TEXTS: Final = ("account", "queue", "session", "reason", "target", "group_id")
"""Columns in which few values stand again and again."""
_SPLIT: Final = 4


def check_all(
    read: Callable[[], Iterable[Sequence[Row]]],
    *,
    at_once: int | None = None,
    read_again: Callable[[int], None] = lambda _: None,
    **how: Any,
) -> Report:
    """Check a log in bounded memory.

    Args:
        read: Reads the log from the beginning, in pieces; called again where it is read again.
        at_once: Messages that are kept in memory at most, some 600 bytes each. With more of them
            the log is judged in parts, and read once for each; those of one group stay together,
            however many there are. None: all, in one go.
        read_again: Told in how many parts the log is read, when that is more than before.
        how: See :class:`~leasehold.events.check.Checker`.
    """
    todo = [(1, 0)]
    result: Report | None = None
    while todo:
        shards, shard = todo.pop()
        checker, most = Checker(shard=(shards, shard), **how), at_once
        for rows in read():
            checker.feed(rows)
            if most is not None and checker.live > most:
                if checker.is_of_one_group:
                    most = 2 * checker.live
                    continue
                read_again(shards * _SPLIT)
                todo += [(shards * _SPLIT, shard + more * shards) for more in range(_SPLIT)]
                break
        else:
            report = checker.end()
            if result is None:
                result = report
            else:
                result.plus(report)
    assert result is not None
    return result


# --- what the native API and the command line give out ------------------------------------------


def rows_of(events: Iterable[Any], account: str) -> Iterator[Row]:
    """Return events of the native API as rows for :class:`~leasehold.events.check.Checker`.

    Args:
        events: Their attributes are the members of the native API.
        account: Of all of them: it is not among these.
    """
    for event in events:
        yield _row({name: getattr(event, name, None) for name in FIELDS} | {"account": account})


def rows_of_lines(lines: Iterable[str | bytes], account: str = "") -> Iterator[Row]:
    """Return events of ``leasehold events tail --json``, one a line, as rows.

    Args:
        lines: Empty ones are passed over.
        account: Of those that do not name theirs.

    Raises:
        ValueError: A line is not an event; the text says which.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            yield _row({"account": account} | event)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"line {number} is not an event: {error}") from None


def row_of(event: Mapping[str, Any]) -> Row:
    """Return an event, by the names of the native API, as a row.

    Raises:
        KeyError: It has no ``seq``, ``place``, ``at_ms`` or ``type``.
    """
    return _row({"account": ""} | dict(event))


def _row(event: Mapping[str, Any]) -> Row:
    kind, phase = event["type"], event.get("phase")
    message = event.get("message_id")
    made = {
        "type": _TYPES.get(kind, UNKNOWN_TYPE) if isinstance(kind, str) else int(kind),
        "phase": _PHASES.get(phase, phase) if isinstance(phase, str) else phase,
    }
    if message is not None:
        made |= {name: event.get(name) or 0 for name in _NUMBERS} | made
        made["phase"] = made["phase"] or 0
    head = {name: event[name] for name in ("seq", "place", "at_ms")}
    whole = {**event, **made, **head}
    return Row._make(whole.get(name) for name in FIELDS)


_NUMBERS: Final = ("dequeue_count", "fence", "renewals", "visible_at_ms", "since_ms")
"""Members that every message has, and that JSON may leave out where they are 0."""


# --- Parquet ------------------------------------------------------------------------------------


def columns_read() -> list[str]:
    """Return the columns of exported files that are looked at."""
    return [_COLUMN_OF[name] for name in FIELDS]


def rows_in(table: pa.Table, *, is_sorted: bool = False) -> list[Row]:
    """Return exported events as rows, in the order of the log.

    Args:
        table: With the columns of ``docs/reference/event-log.md``; those that an old file does not
            have may be missing.
        is_sorted: Whether it is in the order of the log.
    """
    import pyarrow as pa  # noqa: PLC0415 - large, and of an extra
    import pyarrow.compute as pc  # noqa: PLC0415

    if not is_sorted:
        order = pc.sort_indices(table, sort_keys=[("seq", "ascending"), ("place", "ascending")])
        table = table.take(order)
    lists: list[list[Any]] = []
    for name in FIELDS:
        column = _COLUMN_OF[name]
        if column not in table.column_names:
            lists.append([None] * table.num_rows)
            continue
        values = table[column].combine_chunks()
        if name in {"type", "phase"}:
            lists.append(_numbered(values, _TYPES if name == "type" else _PHASES))
        elif name in _TEXTS:
            lists.append(_shared(values))
        elif name == "message_id":
            lists.append(values.to_pylist())
        else:
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            lists.append(_integers(values))
    return list(map(Row._make, zip(*lists, strict=True)))


def _integers(values: Any) -> list[int | None]:
    """Return numbers; without nulls that is ten times as fast."""
    if not values.null_count:
        found: list[int | None] = values.to_numpy().tolist()
        return found
    filled = values.fill_null(0).to_numpy().tolist()
    present = values.is_valid().to_numpy(zero_copy_only=False).tolist()
    return [each if there else None for each, there in zip(filled, present, strict=True)]


def _shared(values: Any) -> list[str | None]:
    """Return texts, each value as one object."""
    if values.null_count == len(values):
        return [None] * len(values)
    coded = values.dictionary_encode()
    texts = [*coded.dictionary.to_pylist(), None]
    return list(map(texts.__getitem__, coded.indices.fill_null(-1).to_numpy().tolist()))


def _numbered(values: Any, numbers: Mapping[str, int]) -> list[int | None]:
    """Return types or phases as numbers."""
    coded = values.dictionary_encode()
    known = [numbers.get(each, UNKNOWN_TYPE) for each in coded.dictionary.to_pylist()]
    table = [*known, None]
    return list(map(table.__getitem__, coded.indices.fill_null(-1).to_numpy().tolist()))


def files_in(folder: Path) -> list[Path]:
    """Return the files of an export, or any Parquet files, in the order of the log.

    Raises:
        FileNotFoundError: There is no such folder, or nothing in it.
        leasehold.events.FormatTooNew: A newer version has written one of them.
    """
    from leasehold.events.parquet import check_formats, files_of  # noqa: PLC0415 - needs pyarrow

    if folder.is_file():
        found = [folder]
    else:
        # By their numbers and not by their hours: a clock may have been set back.
        found = sorted(files_of(folder, None, None), key=lambda path: path.name)
        found = found or sorted(folder.glob("**/*.parquet"))
    if not found:
        raise FileNotFoundError(f"there are no files of events in {folder}")
    check_formats(map(str, found))
    return found


def rows_of_file(path: Path, account: str | None = None) -> list[Row]:
    """Return the events of one file, in the order of the log."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - large, and of an extra

    file = pq.ParquetFile(path)
    table = file.read([name for name in columns_read() if name in file.schema_arrow.names])
    if account is not None:
        import pyarrow.compute as pc  # noqa: PLC0415

        table = table.filter(pc.field("account") == account)
    return rows_in(table)


# --- settings -----------------------------------------------------------------------------------


def settings_at_start(
    now: Mapping[Place, Mapping[str, Any]], updates: Iterable[Row]
) -> dict[Place, dict[str, Any]]:
    """Return the settings that queues had when the log began.

    Args:
        now: Those that they have at its end, as JSON has them, with all sections.
        updates: Events of the log, in their order; only those of queues matter.
    """
    found = {place: dict(settings) for place, settings in now.items()}
    seen: dict[Place, set[str]] = {}
    for row in updates:
        kind, place = row.type, (row.account, row.queue)
        if kind == EventType.QUEUE_DELETED:
            found.pop(place, None)  # what there is now is another queue
        if kind != EventType.QUEUE_UPDATED or place not in found:
            continue
        changes = changes_in(row.reason or "")
        if changes is None:
            del found[place]
            continue
        for path, (before, _) in changes.items():
            section, _, member = path.partition(".")
            known = seen.setdefault(place, set())
            if section in known or path in known:
                continue
            known.add(path)
            value = found[place].get(section)
            if member and isinstance(value, dict):
                found[place][section] = {**value, member: before}
            elif not member:
                found[place][section] = before
    return found


# --- live queues --------------------------------------------------------------------------------


def compare(
    known: Collection[str], live: Collection[str], expired: Collection[str]
) -> Iterator[tuple[Rule, str, str]]:
    """Compare what the log says is in a queue with what the queue says, when both stand still.

    Args:
        known: Ids of the messages that it has by the log.
        live: Ids of those that it says it has.
        expired: Ids of those that it says have expired; the log tells of their end when they are
            swept.

    Yields:
        Rule, message and sentence of what does not fit.
    """
    for message_id in sorted({*known} - {*live} - {*expired}):
        yield Rule.NOTHING_LOST, message_id, "by the log it is there, and the queue has it not"
    for message_id in sorted({*live} - {*known}):
        yield Rule.KNOWN_MESSAGE, message_id, "the queue has it, and by the log it is gone"


def found_in_queue(
    checker: Checker, place: Place, found: Iterable[tuple[Rule, str | None, str]]
) -> None:
    """Add to a report what was found in a live queue; it stands at the end of the log."""
    report = checker.report
    for rule, message_id, sentence in found:
        report.found[rule] += 1
        at_ms = report.last_at_ms or 0
        report.violations.append(
            Violation(rule, report.last_seq, 0, at_ms, *place, message_id, sentence)
        )
