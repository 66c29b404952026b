"""Write the columns of an event where they have to stand as text.

``python tools/make_events.py`` writes the members of ``Event`` on the wire, so that clients
have types, and the table in ``docs/reference/event-log.md``, both from the declaration in
``leasehold/domain/events.py``; with ``--check`` it writes nothing and fails if it would change
something. What else has these columns takes them from the declaration when it runs.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from leasehold.domain.events import COLUMNS, Event, Kind
from leasehold.events.names import FIELDS

ROOT: Final = Path(__file__).resolve().parent.parent
WIDTH: Final = 100
TYPES: Final = {
    Kind.INT8: ("int", "int8"),
    Kind.INT32: ("int", "int32"),
    Kind.INT64: ("int", "int64"),
    Kind.TEXT: ("str", "string"),
    Kind.MOMENT: ("int", "timestamp"),
    Kind.TYPE: ("str", "string"),
    Kind.PHASE: ("int | str", "string"),
}
"""In the client, and in the exported files."""


def members() -> Iterator[str]:
    """Yield the lines of the client's class; the account is what the client is for."""
    for name, column in COLUMNS.items():
        if name != "account":
            optional = " | None = None" if name in Event._field_defaults else ""
            yield f"    {name}: {TYPES[column.kind][0]}{optional}"
            text = f'"""{column.meaning.replace("`", "``")}.'
            lines = textwrap.wrap(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
            fits = len(lines[-1]) + 3 <= WIDTH
            yield from [*lines[:-1], f'{lines[-1]}"""'] if fits else [*lines, '    """']


def table() -> Iterator[str]:
    """Yield the lines of the page of reference."""
    yield from ("", "| Column | Type | Meaning |", "|---|---|---|")
    for name, field in FIELDS.items():
        column = COLUMNS[field]
        yield f"| `{name}` | {TYPES[column.kind][1]} | {column.meaning} |"
    yield ""


PLACES: Final = (
    ("src/leasehold/wire/events.py", "    # columns of events: {}", members),
    ("docs/reference/event-log.md", "<!-- columns of events: {} -->", table),
)


def main(arguments: list[str]) -> int:
    """Write the files, or compare; exit code 1 if one differs."""
    code = 0
    for name, marker, lines in PLACES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        begin, end = (f"{marker.format(word)}\n" for word in ("begin", "end"))
        before, _, rest = text.partition(begin)
        made = (
            before + begin + "".join(f"{line}\n" for line in lines()) + end + rest.partition(end)[2]
        )
        if "--check" not in arguments:
            path.write_text(made, encoding="utf-8")
        elif made != text:
            print(f"{name} is out of date: run python tools/make_events.py")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
