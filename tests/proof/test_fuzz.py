"""The corpus of each fuzzer passes; a parser that is wrong is found."""

from __future__ import annotations

from typing import Any, Final

import pytest
from proof.fuzz import __main__ as fuzzing
from proof.fuzz.targets import TARGETS, Wrong, ask_mns

from leasehold.auth import mns
from leasehold.http.mns import call, dialect

_ASSEMBLE: Final = mns._assemble
_SPOILT: Final[dict[str, tuple[str, Any, str, Any]]] = {
    "any signature is good": ("mns_signature", mns, "is_signed_by", lambda *_: True),
    "version 2 signs no x-mns": ("mns_signature", mns, "_SIGNED", "y-mns-"),
    "version 2 signs no target": (
        *("mns_signature", mns, "_assemble"),
        lambda request, _, *, fold=False: _ASSEMBLE(request, "", fold=fold),
    ),
    "version 4 signs no type": ("mns_signature", mns, "_SIGNED_IN_V4", frozenset()),
    "version 4 signs no query": ("mns_signature", mns, "_canonical_query", lambda _: ""),
    "the digest is not read": ("mns", dialect, "_is_md5", lambda *_: int("x")),
    "an error is no document": (
        *("mns", call.Call, "reply_fault"),
        lambda self, fault: self.reply_xml(fault.status, b"<"),
    ),
}
"""Target, and what is put in place of what, for the control that the corpus notices."""


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_corpus_passes(target: str) -> None:
    """Inputs that once reached new code of a parser."""
    inputs = sorted((fuzzing.CORPUS / target).iterdir())
    assert inputs
    for file in inputs:
        TARGETS[target](file.read_bytes())


@pytest.mark.parametrize("fault", _SPOILT)
def test_corpus_notices(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is wrong is told from one that is not."""
    target, owner, name, wrong = _SPOILT[fault]
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(Wrong):
        test_corpus_passes(target)


def test_corpus_of_mns_does_everything() -> None:
    """Each operation of MNS is carried out by some input, so that mutations begin there."""
    done = {
        answer.operation
        for file in (fuzzing.CORPUS / "mns").iterdir()
        for answer in ask_mns(file.read_bytes())
        if answer.status < 300
    }
    assert done >= set(call.Operation)


def test_targets_are_named() -> None:
    """The command knows all of them without loading the server."""
    assert sorted(TARGETS) == sorted(fuzzing.TARGETS)


@pytest.mark.long
@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_nothing_new_is_found(target: str) -> None:
    """A short round of each."""
    done = fuzzing.fuzz(target, 1, 0)
    assert done.found is None, done.log[-3_000:]
    assert done.runs > len(list((fuzzing.CORPUS / target).iterdir()))


@pytest.mark.long
def test_planted_fault_is_found() -> None:
    """A target that is wrong for inputs of which the corpus has none."""
    done = fuzzing.fuzz(fuzzing.PLANTED, 120, 1)
    assert done.found is not None
    assert done.found.read_bytes().endswith(b"!")
    done.found.unlink()
