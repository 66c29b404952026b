"""The form of two digits: named in addresses, and noticed where it is not."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from leasehold.client import Client
from leasehold.testing import ManualTime
from leasehold.worker.adapters import Delivery, QueueClient, Saved
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.specs import QueueSpec, form_of
from leasehold.worker.message import Message
from leasehold.worker.stages import COMPLETED, Stages

FORM = "1:scan,2:encode,3:(completed)"
MNS = {"ALIBABA_CLOUD_ACCESS_KEY_ID": "id", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "secret"}


def opened(address: str) -> QueueClient:
    """Open the queue of an address."""
    return QueueSpec.parse(address, MNS | {"AZURE_STORAGE_CONNECTION_STRING": DEVELOPMENT}).open()


DEVELOPMENT = "UseDevelopmentStorage=true"


def test_an_option_names_the_stages() -> None:
    """Numbers and names; the number of finished work stands for the end."""
    form = form_of(FORM)
    assert form is not None
    assert form.unwrap("02cellar.mp4") == (b"cellar.mp4", Saved(stage="encode"))
    assert form.unwrap("03cellar.mp4") == (b"cellar.mp4", Saved(stage=COMPLETED))
    assert form_of("envelope") is None


@pytest.mark.parametrize("wrong", ["", "scan", "1", "x:scan", "1:", "1:a,1:b", "100:a", "1:a,2:a"])
def test_a_form_that_makes_no_sense_is_refused(wrong: str) -> None:
    """With the address, before anything is opened."""
    with pytest.raises(ValueError):  # noqa: PT011 - the texts are of several places
        QueueSpec("leasehold", "coho", options={"form": wrong})


@pytest.mark.parametrize(
    "address",
    ["leasehold:///coho", "azure:///coho", "mns+http://127.0.0.1:1/coho?encoding=none"],
)
def test_the_form_can_be_chosen_for_every_service(address: str) -> None:
    """What is in the queue is taken apart, and new messages begin with the first stage."""
    client: Any = opened(f"{address}{'&' if '?' in address else '?'}form={FORM}")
    if isinstance(client, NativeQueue):
        assert client.capabilities.saves == "in_body"
        assert client._form is not None
        assert client._form.fresh(b"x") == "01x"
    else:
        found = client._texts.open("02cellar.mp4")
        assert (found.body, found.saved) == (b"cellar.mp4", Saved(stage="encode"))
        assert client._texts.fresh("x") == "01x"
    client.close()


def test_a_native_queue_reads_what_others_have_written() -> None:
    """The worker gets the content, and where the work is."""
    given = {
        "id": "m",
        "body": "02cellar.mp4",
        "inserted_at_ms": 1,
        "expires_at_ms": None,
        "visible_at_ms": 31_000,
        "dequeue_count": 1,
        "fence": 1,
        "receipt": "r",
    }
    transport = httpx.MockTransport(
        lambda _: httpx.Response(
            200,
            content=json.dumps({"messages": [given]}),
            headers={"content-type": "application/json"},
        )
    )
    with Client(transport=transport) as client:
        queue = NativeQueue(client.queue("coho"), form=form_of(FORM))
        [delivery] = queue.receive(1, visibility_timeout_s=30)
    assert (delivery.body, delivery.saved) == (b"cellar.mp4", Saved(stage="encode"))


class Nowhere:
    """A lease whose saves are kept nowhere."""

    deadline_s = math.inf

    def check(self) -> None:
        pass

    def extend(self, visibility_timeout_s: int) -> None:
        pass

    def save(self, saved: Saved) -> None:
        pass


def steps(seen: list[str]) -> Stages:
    """Return two stages that tell what they see."""
    made = Stages()
    for name in ("scan", "encode"):
        made.stage(name)(lambda message, _state, name=name: seen.append(f"{name} {message.text}"))
    return made


def message(body: str, saved: Saved | None = None) -> Message:
    """Return a message as a worker has it."""
    delivery = Delivery(queue="coho", message_id="m", receipt="r", body=body.encode(), saved=saved)
    return Message(delivery, Nowhere(), ManualTime())


def test_a_pipeline_that_meets_it_undeclared_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the name of the option. It goes on: there are names that begin with two digits."""
    seen: list[str] = []
    pipeline = steps(seen)
    for _ in range(3):
        pipeline(message("02cellar.mp4"))
    assert caplog.text.count("two digits of state") == 1
    assert "form=1:scan" in caplog.text
    assert "StagePrefixForm" in caplog.text
    assert seen[0] == "scan 02cellar.mp4"


@pytest.mark.parametrize(
    ("body", "saved"),
    [
        ("cellar.mp4", None),
        ("2 cellars", None),
        ("2026-11-22", None),
        ("75 cellars", None),
        ("02cellar.mp4", Saved(stage="encode")),
        ("", None),
    ],
)
def test_other_bodies_are_taken_as_they_are(
    caplog: pytest.LogCaptureFixture, body: str, saved: Saved | None
) -> None:
    """No number of a stage, or a stage that is known otherwise."""
    steps([])(message(body, saved))
    assert "two digits" not in caplog.text
