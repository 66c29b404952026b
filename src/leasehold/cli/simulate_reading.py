"""Values and files that ``leasehold simulate`` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from leasehold.cli.values import FRACTIONAL
from leasehold.extras import install
from leasehold.tuning.attempts import Attempt
from leasehold.tuning.simulate import Outage, Shape

_WORK: Final = re.compile(r"(?:([\d.]+)\*)?([a-z]+):([^,]+)(?:,([^,]+))?")
_COLUMNS: Final = ("seconds", "finished", "weight")


class Work(click.ParamType[Shape]):
    """A distribution: ``lognormal:20,0.8``, perhaps with a share before it: ``0.9*constant:1``."""

    name = "work"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See :class:`click.ParamType`."""
        del param, ctx
        return "[SHARE*]NAME:NUMBER[,NUMBER]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Shape:
        """See :class:`click.ParamType`."""
        if isinstance(value, Shape):
            return value
        found = _WORK.fullmatch(value.strip().lower())
        if found is None:
            self.fail(f"{value!r}: write it like lognormal:20,0.8 or 0.9*constant:1.", param, ctx)
        try:
            return Shape(
                name=found[2],
                first=FRACTIONAL.convert(found[3], param, ctx),
                second=FRACTIONAL.convert(found[4], param, ctx) if found[4] else 0.0,
                share=float(found[1] or 1.0),
            )
        except ValueError as error:
            self.fail(f"{value!r}: {error}.", param, ctx)


class Away(click.ParamType[Outage]):
    """A time in which nobody works: ``10m-12m``."""

    name = "outage"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See :class:`click.ParamType`."""
        del param, ctx
        return "FROM-TO"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Outage:
        """See :class:`click.ParamType`."""
        if isinstance(value, Outage):
            return value
        start, _, end = value.partition("-")
        away = Outage(
            FRACTIONAL.convert(start, param, ctx), FRACTIONAL.convert(end or "?", param, ctx)
        )
        if away.end_s <= away.start_s:
            self.fail(f"{value!r} ends before it begins.", param, ctx)
        return away


def read_attempts(path: Path) -> list[Attempt]:
    """Read attempts from a file: Parquet by its ending, else JSON: a list, or one object a line.

    Each has ``seconds`` and ``finished``, and may have ``weight``.

    Raises:
        ValueError: The file has something else in it, or nothing.
        OSError: It cannot be read.
    """
    rows = _parquet(path) if path.suffix == ".parquet" else _json(path)
    attempts = [_attempt(place, row) for place, row in enumerate(rows, start=1)]
    if not attempts:
        raise ValueError("there are no attempts in it")
    return attempts


def _attempt(place: int, row: object) -> Attempt:
    if not isinstance(row, Mapping):
        raise _wrong(place, "it is no object")
    seconds, finished, weight = (row.get(name) for name in _COLUMNS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise _wrong(place, "seconds must be a number, 0 or more")
    if not isinstance(finished, bool):
        raise _wrong(place, "finished must be true or false")
    weight = 1.0 if weight is None else weight
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
        raise _wrong(place, "weight must be a number above 0")
    return Attempt(float(seconds), finished, float(weight))


def _wrong(place: int, text: str) -> ValueError:
    return ValueError(f"attempt {place}: {text}")


def _json(path: Path) -> Iterator[object]:
    text = path.read_text("utf-8").strip()
    if text.startswith("["):
        yield from json.loads(text)
        return
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def _parquet(path: Path) -> Iterator[object]:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - only for such files
    except ModuleNotFoundError:
        raise ValueError(f"reading Parquet needs pyarrow: {install('arrow')}") from None
    names = set(parquet.read_schema(path).names) & set(_COLUMNS)
    yield from parquet.read_table(path, columns=sorted(names)).to_pylist()
