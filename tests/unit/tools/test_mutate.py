"""Which mutants are made of a module, and that each has its change and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import mutate

CODE = '''"""A module."""

LIMIT = 3


class Box:
    """A box."""

    def is_full(self, limit=LIMIT) -> bool:
        """Say so."""
        return self.size >= limit and not self.open


def add(one: int, other: int, seen: list[int]) -> int:
    """Add."""
    if other == 0:
        return one
    seen.append(other)
    return one + other
'''


@pytest.fixture
def mutants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[mutate.Mutant]:
    """Return all mutants of a module."""
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    path = tmp_path / "sums.py"
    path.write_text(CODE)
    return mutate.mutants_of(path)


def test_each_mutant_changes_one_node_of_a_function(mutants: list[mutate.Mutant]) -> None:
    """Operators, conditions, bounds, statements and results; no defaults, and no docstrings."""
    assert [(each.function, each.change) for each in mutants] == [
        ("Box.is_full", "return self.size >= limit and (not self.open) -> return None"),
        (
            "Box.is_full",
            "self.size >= limit and (not self.open) -> self.size >= limit or not self.open",
        ),
        ("Box.is_full", "self.size >= limit -> self.size > limit"),
        ("Box.is_full", "not self.open -> self.open"),
        ("add", "if other == 0: return one -> if not other == 0: return one"),
        ("add", "other == 0 -> other != 0"),
        ("add", "0 -> 1"),
        ("add", "0 -> -1"),
        ("add", "return one -> return None"),
        ("add", "seen.append(other) -> pass"),
        ("add", "return one + other -> return None"),
        ("add", "one + other -> one - other"),
    ]


def test_the_code_of_a_mutant_is_that_of_its_function(mutants: list[mutate.Mutant]) -> None:
    """Exchanged in a function that is there, it does what the change says."""
    space: dict[str, object] = {}
    exec(CODE, space)
    add = space["add"]
    assert callable(add)
    results = []
    for mutant in mutants:
        if mutant.function == "add":
            seen: list[int] = []
            add.__code__ = mutate.code_of(mutant)  # type: ignore[attr-defined]
            results.append((add(7, 2, seen), seen))
    assert results == [
        (7, []),
        (7, []),
        (9, [2]),
        (9, [2]),
        (9, [2]),
        (9, []),
        (None, [2]),
        (5, [2]),
    ]
