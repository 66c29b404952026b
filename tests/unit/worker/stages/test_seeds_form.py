"""The form of the Azure team's video workflow: two digits, then the content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.testing import ManualTime
from leasehold.worker.adapters import Delivery, Saved
from leasehold.worker.adapters.envelope import StagePrefixForm, UnreadableEnvelope
from leasehold.worker.message import Message
from leasehold.worker.stages import COMPLETED, Stages

FORM = StagePrefixForm({1: "scan", 2: "encode", 3: "compress"})


@given(st.text(), st.sampled_from(["scan", "encode", "compress"]))
def test_what_is_written_is_read(content: str, stage: str) -> None:
    """Content and stage come back as they were written."""
    body = content.encode()
    assert FORM.unwrap(FORM.wrap(body, Saved(stage=stage))) == (body, Saved(stage=stage))


def test_messages_of_the_original_are_read() -> None:
    """Two digits of the number, then the content without a separator."""
    assert FORM.unwrap("02clip.mp4") == (b"clip.mp4", Saved(stage="encode"))
    assert FORM.unwrap("0342") == (b"42", Saved(stage="compress"))
    assert FORM.unwrap("01") == (b"", Saved(stage="scan"))


def test_new_messages_begin_with_the_first_stage() -> None:
    """A new message says that the first stage is to be done."""
    assert FORM.fresh(b"clip") == "01clip"
    assert FORM.wrap(b"clip", Saved()) == "01clip"
    assert StagePrefixForm({1: "a", 0: "b"}, first=1).fresh(b"x") == "01x"


@pytest.mark.parametrize("text", ["", "1", "1x", "clip", " 1", "+1", "1_", "\u0661\u0662"])
def test_other_text_is_refused(text: str) -> None:
    """Text that does not begin with two digits is an error, not a message in some state."""
    with pytest.raises(UnreadableEnvelope, match="two digits"):
        FORM.unwrap(text)


def test_unknown_numbers_are_refused() -> None:
    """A number without a stage is named in the error."""
    with pytest.raises(UnreadableEnvelope, match="state 09"):
        FORM.unwrap("09clip")


def test_there_is_no_place_for_a_state() -> None:
    """A state is refused rather than lost; a fraction is only for people and is left out."""
    with pytest.raises(ValueError, match="cannot hold a state"):
        FORM.wrap(b"", Saved(stage="scan", state={"frame": 1}))
    assert FORM.wrap(b"x", Saved(stage="scan", fraction=0.5)) == "01x"


def test_what_has_no_form_is_refused() -> None:
    """A stage without a number, and a body that is not text, are errors."""
    with pytest.raises(ValueError, match="'upload'"):
        FORM.wrap(b"", Saved(stage="upload"))
    with pytest.raises(ValueError, match="text only"):
        FORM.fresh(b"\xff")


def test_the_original_workflow_runs() -> None:
    """A message in any state of the original is finished from there; "completed" needs nothing."""
    form = StagePrefixForm({1: "scan", 2: "encode", 3: "compress", 4: COMPLETED})
    done: list[str] = []
    pipeline = Stages(save_end=True)
    for name in ("scan", "encode", "compress"):
        pipeline.stage(name)(lambda message, state, name=name: done.append(name))

    class Holding:
        deadline_s = 1e9
        text = "02clip"

        def check(self) -> None:
            pass

        def extend(self, visibility_timeout_s: int) -> None:
            pass

        def save(self, saved: Saved) -> None:
            self.text = form.wrap(b"clip", saved)
            done.append(self.text)

    holding = Holding()
    for _ in range(2):
        body, saved = form.unwrap(holding.text)
        delivery = Delivery(queue="q", message_id="1", receipt="r", body=body, saved=saved)
        pipeline(Message(delivery, holding, ManualTime()))
    assert done == ["encode", "03clip", "compress", "04clip"]


@pytest.mark.parametrize("stages", [{}, {100: "a"}, {-1: "a"}, {1: "a", 2: "a"}])
def test_maps_that_cannot_work_are_refused(stages: dict[int, str]) -> None:
    """Numbers are two digits and stand for one stage each."""
    with pytest.raises(ValueError, match=r"stage|digits"):
        StagePrefixForm(stages)


def test_the_first_number_must_be_known() -> None:
    """A new message cannot begin with a number that stands for nothing."""
    with pytest.raises(ValueError, match="first number"):
        StagePrefixForm({1: "a"}, first=2)
