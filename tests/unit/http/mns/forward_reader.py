"""Reads a message forward only, as clients do that use a cursor over the document.

One of the official SDKs reads so, and its reader of user properties goes on to the end of the
document: whatever comes behind them is lost for it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from xml.etree import ElementTree as ET

_GROUPS = {
    "SystemProperties": ("SystemPropertyValue", True),
    "UserProperties": ("PropertyValue", False),
}
"""The element of an entry by that of its group, and whether the reader stops behind the group."""

Found = dict[str, "str | dict[str, str]"]


def read_forward(document: bytes) -> Found:
    """Return the texts of the elements by name, and properties by name for each of the groups."""
    # A parser that is fed whole would be fine with any order; only the events are used here.
    steps = iter(ET.iterparse(io.BytesIO(document), events=("start", "end")))
    found: Found = {}
    for event, element in steps:
        name = _local(element.tag)
        if event == "start" and name in _GROUPS:
            entry, stops = _GROUPS[name]
            found[name] = _entries(steps, name, entry, stops=stops)
        elif event == "end" and not len(element):
            found[name] = element.text or ""
    return found


def _entries(
    steps: Iterator[tuple[str, ET.Element]], group: str, entry: str, *, stops: bool
) -> dict[str, str]:
    entries: dict[str, str] = {}
    for event, element in steps:
        name = _local(element.tag)
        if event == "end" and name == entry:
            fields = {_local(child.tag): child.text or "" for child in element}
            entries[fields["Name"]] = fields["Value"]
        elif stops and event == "end" and name == group:
            break
    return entries


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
