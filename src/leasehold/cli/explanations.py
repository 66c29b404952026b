"""Why something is as it is: a sentence, and the facts behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.rendering import facts
from leasehold.cli.texts import clean, length, moment, number
from leasehold.client.models import Explanation

_UNITS: Final[Mapping[str, Callable[[float, int], str]]] = {
    "_ms": lambda value, now_ms: moment(int(value), now_ms),
    "_per_s": lambda value, _now_ms: f"{number(value)}/s",
    "_s": lambda value, _now_ms: length(value),
}
"""By the end of a fact's name: what its number means."""


def explanation_text(found: Explanation, now_ms: int) -> RenderableType:
    """Return an explanation as people read it."""
    rows = [_fact(name, each, now_ms) for name, each in found.evidence.items()]
    sentence = Text(clean(found.sentence), style="bold")
    return Group(sentence, Text(), facts(rows, indent=2)) if rows else sentence


def _fact(name: str, value: object, now_ms: int) -> tuple[str, str]:
    unit = next((end for end in _UNITS if name.endswith(end)), "")
    label = clean(name.removesuffix(unit).replace("_", " "))
    if isinstance(value, bool) or value is None:
        return label, {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return label, _UNITS[unit](value, now_ms) if unit else number(value)
    if isinstance(value, Mapping):
        inner = (_fact(str(each), value[each], now_ms) for each in value)
        return label, ", ".join(f"{part} {shown}" for part, shown in inner)
    return label, clean(str(value))
