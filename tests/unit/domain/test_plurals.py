"""Numbers and their nouns agree, in everything that the program says."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
from leasehold.cli.output import counted
from leasehold.domain.wording import count_of, form_of

SOURCE = Path(leasehold.__file__).parent
_FIGURES = ("advisor/",)
"""Advice is given on samples of twenty attempts and more, and its pages round their figures."""
_NOUNS = re.compile(
    r" (messages|queues|deliveries|events|tasks|executors|files|rows|lines|claims|leases|members"
    r"|workers|sessions|servers|attempts|failures|crashes|accounts|jobs|streams|places|parts"
    r"|batches|transactions|keys|requests|times|renewals|receipts|bytes)\b"
)
_LOGGED = re.compile(rf"%d{_NOUNS.pattern}")
_MAY_SPEAK = re.compile(rf"(?:[}}\"']|%d){_NOUNS.pattern}")
"""A number and its noun in one piece of text, or in two that are written side by side."""
SEVERAL = {
    "cli/stats.py: {len(rows)} queues",
    "cli/output.py: {number(many)} times",
    "domain/explain.py: {counts.total} messages",
    "domain/explain.py: {len(claims)} claims",
    "domain/explain.py: {number} messages",
    "domain/wording.py: {number} times",
    "http/native/errors.py: {-(-size_bytes // limit_bytes)} messages",
    "cli/simulate.py: {rate * given['lasts_s']:,.0f} messages",
    "worker/leases/learning.py: {len(self._failed)} renewals",
    "worker/payloads/claim_check.py: {reference.size} bytes",
    "spark/pipeline/task.py: %d messages",
    "spark/sink.py: {len(parts):,} tasks",
    "testing/fencing_proof.py: {scenario.tried} places",
}
"""Where the number is always above one, or has words for less."""
_BOUND = re.compile(r"(?i)^(max|limit|longest|most|least|size|len\(|self\.max|self\._size|error\.)")
"""Bounds of bytes, and sizes over them, which are never one."""


@functools.cache
def spoken() -> frozenset[str]:
    """Return each place where a number of the program's is followed by a plural."""
    return frozenset(_spoken())


def _spoken() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(_FIGURES):
            continue
        text = path.read_text("utf-8")
        if not _MAY_SPEAK.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for noun in _LOGGED.findall(node.value):
                    yield f"{name}: %d {noun}"
            if not isinstance(node, ast.JoinedStr):
                continue
            for value, after in zip(node.values, node.values[1:], strict=False):
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                    found = _NOUNS.match(str(after.value))
                    number = ast.unparse(value.value)
                    if found and not (found[1] == "bytes" and _BOUND.match(number)):
                        shown = ast.unparse(ast.JoinedStr([value]))[2:-1]
                        yield f"{name}: {shown} {found[1]}"


def test_a_number_is_said_with_the_form_that_goes_with_it() -> None:
    """Texts leave the choice to one helper, unless the number is always above one."""
    assert sorted(spoken() - SEVERAL) == []


def test_what_is_excused_is_there() -> None:
    """An excuse goes with its text."""
    assert spoken() >= SEVERAL


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages")]
)
def test_one_of_a_kind_is_singular(number: int, said: str) -> None:
    """None of it is plural."""
    assert count_of(number, "message") == counted(number, "message") == said
    assert form_of(number, "delivery", "deliveries") == (
        "delivery" if number == 1 else "deliveries"
    )
    assert counted(12_345, "delivery", "deliveries") == "12,345 deliveries"
