"""What the parts of the proof say, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked."""

    name: str
    passed: bool
    said: str
    """What was seen, in a few words and figures."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked of a part."""

    long: bool
    """Whether it may take hours; else its share of ten minutes."""
    folder: Path
    """For its files; there when the part begins."""
