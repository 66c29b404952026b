"""The corpus of each fuzzer passes; a parser that is wrong is found."""

from __future__ import annotations

import pytest
from proof.fuzz import __main__ as fuzzing
from proof.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_corpus_passes(target: str) -> None:
    """Inputs that once reached new code of a parser."""
    inputs = sorted((fuzzing.CORPUS / target).iterdir())
    assert inputs
    for file in inputs:
        TARGETS[target](file.read_bytes())


def test_targets_are_named() -> None:
    """The command knows all of them without loading the server."""
    assert sorted(TARGETS) == sorted(fuzzing.TARGETS)


@pytest.mark.long
@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_nothing_new_is_found(target: str) -> None:
    """A short round of each."""
    done = fuzzing.fuzz(target, 2, 0)
    assert done.found is None, done.log[-3_000:]
    assert done.runs > len(list((fuzzing.CORPUS / target).iterdir()))


@pytest.mark.long
def test_planted_fault_is_found() -> None:
    """A target that is wrong for inputs of which the corpus has none."""
    done = fuzzing.fuzz(fuzzing.PLANTED, 120, 1)
    assert done.found is not None
    assert done.found.read_bytes().endswith(b"!")
    done.found.unlink()
