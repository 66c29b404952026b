"""The pages of the worker library name everything that there is, and no more."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import ModuleType
from typing import Any, Final, get_args

import pytest
from prometheus_client import CollectorRegistry

import leasehold.worker as library
from leasehold.testing import fencing_proof
from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker import adapters, errors, idempotency, leases, metrics, payloads, stages
from leasehold.worker.adapters import Capabilities, Delivery, Fault, Saved, fallbacks, specs
from leasehold.worker.adapters import protocol as queue_errors
from leasehold.worker.adapters.azure import AZURE
from leasehold.worker.adapters.envelope import SAVED_MARKER, saved_members, wrap
from leasehold.worker.adapters.mns import MNS
from leasehold.worker.adapters.native import LEASEHOLD
from leasehold.worker.hooks import Hooks
from leasehold.worker.idempotency import errors as once_errors
from leasehold.worker.idempotency import headers
from leasehold.worker.idempotency.fencing import DEFAULT_FENCE_TABLE
from leasehold.worker.idempotency.sql import DEFAULT_TABLE, load_statements
from leasehold.worker.leases import (
    HeldState,
    LeaseCounts,
    LeaseHooks,
    LeaseLearner,
    LeaseSettings,
    LossKind,
)
from leasehold.worker.leases.decisions import Action, Verdict
from leasehold.worker.message import Message
from leasehold.worker.options import MAX_CONCURRENCY, MAX_PROCESSES
from leasehold.worker.outcomes import Kind
from leasehold.worker.payloads import claim_check
from leasehold.worker.payloads.codecs import compress
from leasehold.worker.reporting import QueueStats, Snapshot
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.stages.declared import StageHooks
from leasehold.worker.worker import Worker
from tests.docs.pages import DOCS, blocks, code, read, rows, section

PAGE: Final = read("reference/worker.md")
FORMATS: Final = read("reference/worker-formats.md")
METRICS: Final = read("reference/worker-metrics.md")
KEEPING: Final = read("explanation/keeping-leases.md")
KEEP: Final = read("howto/keep-leases.md")


def table(text: str, heading: str) -> dict[str, list[str]]:
    """Return the rows under a heading by what stands between backticks in their first cells."""
    return {
        name.partition("(")[0]: row for row in rows(section(text, heading)) for name in code(row[0])
    }


def named(text: str) -> set[str]:
    """Return the words between backticks."""
    return {word for each in code(text) for word in re.findall(r"\w+", each)}


def public(kind: type) -> set[str]:
    """Return the names of the members that are for users."""
    return {name for name in dir(kind) if not name.startswith("_")}


def own_classes(module: ModuleType) -> set[str]:
    """Return the names of the classes that a module defines."""
    found = inspect.getmembers(module, inspect.isclass)
    return {name for name, kind in found if kind.__module__ == module.__name__}


# --- what there is ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "heading"),
    [
        (adapters, "## Queue clients"),
        (leases, "## Leases"),
        (stages, "## Stages"),
        (payloads, "## Payloads"),
        (idempotency, "## Once"),
        (fencing_proof, "## Once"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_every_public_name(module: ModuleType, heading: str) -> None:
    """What a package exports stands in its section."""
    assert set(module.__all__) - named(section(PAGE, heading)) == set()


def test_where_names_are() -> None:
    """The first table has exactly what can be imported from the library itself."""
    listed = set(code(table(PAGE, "## Where things are")["leasehold.worker"][1]))
    assert listed == set(library.__all__)
    for name in listed:
        assert hasattr(library, name), name


@pytest.mark.parametrize("module", [errors, queue_errors, once_errors], ids=lambda m: m.__name__)
def test_every_error(module: ModuleType) -> None:
    """Each class of error has its row."""
    listed = {name.partition("(")[0] for row in rows(PAGE) for name in code(row[0])}
    raised = {name for name in own_classes(module) if issubclass(getattr(module, name), Exception)}
    assert raised - listed - {"QueueError"} == set()


def test_every_argument_of_a_worker() -> None:
    """Each stands in the table, in its order, with its default."""
    listed = table(PAGE, "## Worker")
    found = dict(inspect.signature(Worker).parameters)
    assert [name for name in listed if name in found] == list(found)
    for name, parameter in found.items():
        default = parameter.default
        if default is parameter.empty:
            assert listed[name][3] == "", name
        else:
            expected = f'"{default}"' if isinstance(default, str) else repr(default)
            assert code(listed[name][3]) == [expected], name
    assert f"{MAX_CONCURRENCY:,}" in listed["concurrency"][2]
    assert f"{MAX_PROCESSES:,}" in listed["concurrency"][2]


def test_every_member_of_a_worker() -> None:
    """Methods, properties, and what a snapshot and the figures show."""
    said = named(section(PAGE, "## Worker"))
    snapshot = {each.name for each in fields(Snapshot)} | {"in_work", "buffered"}
    stats = {each.name for each in fields(QueueStats)} - {"queue"}
    # Called by those who renew.
    assert (public(Worker) - {"fail"}) | snapshot | stats <= said


def test_every_member_of_a_message() -> None:
    """What a handler can use."""
    assert public(Message) <= named(section(PAGE, "## Message"))


def test_every_hook() -> None:
    """Hooks of workers, of leases and of stages."""
    assert set(table(PAGE, "## Hooks")) == public(Hooks)
    assert public(LeaseHooks) <= named(section(PAGE, "### LeaseManager"))
    assert public(StageHooks) <= named(section(PAGE, "## Stages"))


def test_every_outcome() -> None:
    """How the work on a message can end."""
    assert set(table(PAGE, "## Outcomes")) == set(Kind)


@pytest.mark.parametrize(
    ("rule", "heading"), [(RetryRule, "## RetryRule"), (PoisonRule, "## PoisonRule")]
)
def test_every_member_of_a_rule(rule: Any, heading: str) -> None:
    """With its default; the guide has the same."""
    listed = table(PAGE, heading)
    for each in fields(rule):
        assert code(listed[each.name][3]) == [str(each.default)], each.name


# --- leases ----------------------------------------------------------------------------------


def test_every_lease_setting() -> None:
    """Each stands in the reference and in the guide, and there are no others."""
    names = {each.name for each in fields(LeaseSettings) if each.default is MISSING}
    assert set(table(PAGE, "### LeaseSettings")) & names == names
    assert set(table(KEEP, "## Set each one")) == names


def test_every_argument_of_a_learner() -> None:
    """With its default."""
    listed = table(PAGE, "### LeaseLearner")
    for name, parameter in inspect.signature(LeaseLearner).parameters.items():
        assert code(listed[name][3]) == [str(parameter.default)], name


def test_the_decision_table() -> None:
    """The rows are the actions, in their order; the answers are the verdicts."""
    text = section(KEEPING, "## One tick for one message")
    looks = [code(row[0])[0] for row in rows(text) if code(row[0])]
    assert looks == ["nothing", "skip", "abandon", "lose", "nothing", "renew"]
    assert set(looks) == {each.name.lower() for each in Action}
    answers = set(table(KEEPING, "## Responses to a renewal"))
    assert answers == {each.name.lower() for each in Verdict}


def test_every_state_of_a_held_message() -> None:
    """Those of the picture, of the table below it, and of the code; and why one is lost."""
    states = {each.value for each in HeldState}
    picture = (DOCS / "explanation" / "held-states.svg").read_text("utf-8")
    assert set(re.findall(r'<text class="state"[^>]*>([^<]+)</text>', picture)) == states
    assert set(table(KEEPING, "## States")) == states
    for text in (section(KEEPING, "## States"), section(PAGE, "### LeaseManager")):
        assert set(get_args(LossKind)) <= set(code(text))
    assert {each.name for each in fields(LeaseCounts)} <= named(section(PAGE, "### LeaseManager"))


# --- queues ----------------------------------------------------------------------------------

SERVICES: Final[Mapping[str, Capabilities]] = {
    "leasehold": LEASEHOLD,
    "azure": AZURE,
    "mns": MNS,
    "memory": MEMORY,
}


def test_every_capability() -> None:
    """The table of what each service can do is that of the code."""
    listed = table(PAGE, "### Capabilities")
    heads = next(rows(section(PAGE, "### Capabilities")))
    assert code(" ".join(heads)) == list(SERVICES)
    names = {each.name for each in fields(Capabilities)} - {"service"}
    assert set(listed) - set(SERVICES) == names
    for name in names:
        expected = [getattr(each, name) for each in SERVICES.values()]
        shown = [f"{value:,}" if type(value) is int else str(value) for value in expected]
        assert listed[name][1:] == shown, name


def test_what_the_guide_says_of_services() -> None:
    """The figures of the guide are the same."""
    listed = {
        row[0]: row
        for row in rows(section(read("howto/workers-elsewhere.md"), "## What each can do"))
    }
    services = [LEASEHOLD, AZURE, MNS]
    for name, figure in (
        ("Messages in one receive", "max_receive"),
        ("Renewals in one request", "max_settle"),
    ):
        assert listed[name][1:] == [f"{getattr(each, figure):,}" for each in services]


def test_every_method_of_a_client() -> None:
    """Methods of the protocol, and what they take and give."""
    said = named(section(PAGE, "## Queue clients"))
    assert public(adapters.QueueClient) <= said
    assert public(adapters.WorkerSession) <= said
    for kind in (adapters.Outgoing, adapters.Saved, adapters.Depth, adapters.Fault):
        assert {each.name for each in fields(kind)} <= said
    guide = named(read("howto/test-a-handler.md"))
    assert {"left", "buried", "poison", "faults_of", "calls", "cancel", "lose_sessions"} <= guide
    assert {"left", "buried", "poison", "faults_of", "calls"} <= public(MemoryQueue) | {
        "buried",
        "calls",
    }


def test_every_variable_of_an_address() -> None:
    """Where credentials are looked up."""
    variables = {value for name, value in vars(specs).items() if name.endswith("_VARIABLE")}
    assert variables == set(table(FORMATS, "## Addresses"))
    for line in next(b.text for b in blocks(DOCS / "reference" / "worker-formats.md")).splitlines():
        environment = dict.fromkeys(variables, "a")
        parsed = specs.QueueSpec.parse(line, environment)
        assert parsed.queue == "orders", line


# --- formats ---------------------------------------------------------------------------------


def documents() -> dict[str, Any]:
    """Return the JSON examples of the page by the member that has their version."""
    found = {}
    for block in blocks(DOCS / "reference" / "worker-formats.md"):
        if block.language == "json":
            document = json.loads(block.text)
            found[next(iter(document))] = document
    return found


def test_the_envelope() -> None:
    """The example is what is written, and each member is explained."""
    saved = Saved(stage="encode", state={"frame": 1200}, fraction=0.4)
    assert documents()["leasehold.envelope"] == json.loads(wrap(b"harvest.mp4", saved))
    listed = set(table(FORMATS, "## Envelope"))
    shown = {"leasehold.envelope", "saved", "saved.stage", "saved.state", "saved.fraction"}
    assert listed == shown | {"body", "body_base64"}


def test_what_a_server_keeps() -> None:
    """The example is what is written beside the body."""
    saved = Saved(stage="encode", state={"frame": 1200}, fraction=0.4)
    assert documents()[SAVED_MARKER] == saved_members(saved)


def test_the_poison_copy() -> None:
    """Members and the properties that they become."""
    delivery = Delivery(
        queue="orders", message_id="7", receipt="", dequeue_count=5, inserted_at_ms=1767225600000
    )
    copy = fallbacks.wrap_poison(
        "order 7", delivery, Fault(text="no such customer", type="ValueError")
    )
    assert list(documents()["leasehold.poison"]) == list(json.loads(copy))
    assert documents()["leasehold.poison"] | {"id": "7"} == json.loads(copy)
    properties = fallbacks.unwrap_poison(copy)
    assert properties is not None
    assert set(properties.properties) <= set(code(section(FORMATS, "## Poison copy")))


def test_the_claim_check_and_the_compressed_form() -> None:
    """The members of what stands in for a body."""
    found = documents()
    made = claim_check.Reference(url="s3://b/k", size=1, sha256="0" * 64, content_type="text/plain")
    assert list(found["leasehold.claim_check"]) == list(json.loads(made.to_body()))
    assert list(found["leasehold.zlib"]) == list(json.loads(compress(b"a" * 99)))


def test_headers_and_tables() -> None:
    """Names of headers, of tables and of their columns."""
    assert set(table(FORMATS, "## Headers")) == {headers.KEY_HEADER, headers.FENCE_HEADER}
    text = section(FORMATS, "## History table")
    columns = re.findall(
        r"^ +(\w+) +(?:TEXT|BIGINT|INTEGER)",
        load_statements("sqlite", "t")["create_table"],
        re.MULTILINE,
    )
    assert columns == [name for name in table(FORMATS, "## History table") if name in columns]
    assert {DEFAULT_TABLE, DEFAULT_FENCE_TABLE} <= set(code(text))


# --- metrics ---------------------------------------------------------------------------------


def test_every_metric_of_a_worker() -> None:
    """Name, type and labels of each; pages name no others."""
    registry = CollectorRegistry()
    worker = Worker(print, MemoryQueue("orders"), registry=registry)
    found = {family.name: family.type for family in registry.collect()}
    del worker
    listed = {
        re.sub("_total$", "", name): row
        for name, row in table(METRICS, "# Worker metrics").items()
        if name.startswith("leasehold_worker_")
    }
    assert {name: row[1] for name, row in listed.items()} == found
    labels = {**metrics.COUNTERS, **metrics.GAUGES}
    labels[metrics.HISTOGRAM] = ("", ("worker", "queue"))
    for name, row in listed.items():
        expected = labels[name.removeprefix("leasehold_worker_")][1]
        assert ["worker", *code(row[2])] == list(expected), name
    for page in DOCS.rglob("*.md"):
        words = set(re.findall(r"\bleasehold_worker_[a-z_]*[a-z]\b", page.read_text("utf-8")))
        assert {re.sub("_total$", "", word) for word in words} <= set(found), page
