"""The reference of Spark says of options and columns what the code says.

``python -m tests.unit.spark.stream.test_reference`` writes the tables anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from leasehold.spark.options import OPTIONS, Option
from leasehold.spark.schemas import MESSAGE

PAGE: Final = Path(__file__).parents[4] / "docs" / "reference" / "spark.md"
_TABLE: Final = "<!-- {}: begin -->\n\n{}\n<!-- {}: end -->"


def _shown_default(option: Option) -> str:
    """Return a default as a user writes it."""
    value = option.default
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    return f"`{_length(value)}`" if _is_time(option) else f"`{value}`"


def _length(length_s: float) -> str:
    """Return a length of time in the largest unit of which it is a whole number."""
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if length_s and length_s % unit_s == 0:
            return f"{length_s / unit_s:g}{unit}"
    return f"{length_s:g}s"


def _is_time(option: Option) -> bool:
    """Tell whether an option is a length of time, by what it makes of one."""
    for text, seconds in (("60s", 60), ("5s", 5)):
        try:
            if option.read(text) == seconds:
                return True
        except ValueError:
            continue
    return False


def options_table(kind: str) -> str:
    """Return the table of the options of reads or of writes."""
    lines = ["| Option | Default | |", "|---|---|---|"]
    for option in OPTIONS:
        if kind in option.kinds:
            names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
            secret = " Secret." if option.is_secret else ""
            lines.append(f"| {names} | {_shown_default(option)} | {option.text}{secret} |")
    return "\n".join(lines) + "\n"


def columns_table() -> str:
    """Return the table of the columns of messages."""
    lines = ["| Column | Type | Null |", "|---|---|---|"]
    for field in MESSAGE.fields:
        null = "yes" if field.nullable else "no"
        lines.append(f"| `{field.name}` | `{field.dataType.simpleString()}` | {null} |")
    return "\n".join(lines) + "\n"


TABLES: Final = {
    "options of reads": lambda: options_table("read"),
    "options of writes": lambda: options_table("write"),
    "columns of messages": columns_table,
}


@pytest.mark.parametrize("name", TABLES)
def test_the_reference_has_every_row(name: str) -> None:
    """A new option or column is in the page before it is released."""
    begin, end = (re.escape(f"<!-- {name}: {part} -->") for part in ("begin", "end"))
    found = re.search(f"{begin}\n\n(.*?)\n{end}", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, f"{PAGE} has no table of the {name}"
    assert found[1] == TABLES[name](), "run python -m tests.unit.spark.stream.test_reference"


def write() -> None:
    """Write the tables anew."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in TABLES.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        start, stop = text.index(begin), text.index(end)
        text = f"{text[:start]}{begin}\n\n{made()}\n{text[stop:]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
