"""The model is run in small bounds, and what it does is written down as the store writes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from proof.model.bounds import MODELS, PLANTS
from proof.model.conform import walks
from proof.model.tlc import NoTlc, check, jar, java
from proof.model.traces import planted
from proof.model.values import State, read_states, read_value


@pytest.fixture(scope="module")
def tlc() -> None:
    try:
        jar(), java()
    except NoTlc as error:
        pytest.skip(str(error))


def test_values_are_read_as_they_are_printed() -> None:
    text = '[a |-> <<1, "b c">>, s |-> {2, 1}, f |-> (m1 :> TRUE @@ 2 :> {}), n |-> -3]'
    with pytest.raises(ValueError, match="m1"):
        read_value(text)
    value = read_value(text.replace("m1", "1"))
    assert value == {"a": [1, "b c"], "s": [1, 2], "f": {1: True, 2: []}, "n": -3}


def test_states_are_read_from_counterexamples_and_from_walks() -> None:
    printed = "State 1: <Initial predicate>\n/\\ x = 1\n/\\ y = <<>>\n\n"
    printed += "State 2: <Put line 3, col 4 to line 5, col 6 of module M>\n"
    printed += "/\\ x = 2\n/\\ y = <<1,\n  2>>\n"
    assert list(read_states(printed)) == [
        State("Initial", {"x": 1, "y": []}),
        State("Put", {"x": 2, "y": [1, 2]}),
    ]
    walk = "STATE_1 == \n/\\ x = 1\n\n\nSTATE_2 == \n/\\ x = 2\n\n\n====\n"
    assert [state.variables for state in read_states(walk)] == [{"x": 1}, {"x": 2}]


@pytest.mark.usefixtures("tlc")
def test_the_model_keeps_its_laws_in_the_smallest_bounds() -> None:
    model = MODELS["Leases"].short
    small = replace(model, constants={**model.constants, "MaxFence": 3})
    run = check(small, rule="strict", workers=1)
    assert run.broken is None
    assert run.states > 100


@pytest.mark.usefixtures("tlc")
def test_a_planted_bug_breaks_its_law() -> None:
    _, run = planted("receipt-kept", "until-retaken")
    assert run.broken == PLANTS["receipt-kept"].law


@pytest.mark.usefixtures("tlc")
def test_the_store_writes_the_log_of_the_model() -> None:
    """Walks of the model, done over again by the store: the event logs are the same."""
    compared = list(walks("until-retaken", 100))
    assert len(compared) >= 100
    for walk in compared:
        assert walk.store == walk.model
    assert any(len(walk.model) > 10 for walk in compared)
