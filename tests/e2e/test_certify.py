"""``leasehold certify`` finds nothing in a good worker, and each fault in one that has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from proof.workers.faulty import FAULTS, NOT_OVER_MNS

from leasehold.testing.certify.judge import RULES
from leasehold.testing.certify.scenarios import SCENARIOS

ROOT: Final = Path(__file__).resolve().parents[2]
SHOWN_BY: Final = {
    "deletes-first": "one-message",
    "crashes-on-failure": "fails-once",
    "tries-for-ever": "fails-always",
    "throws-poison-away": "poison-is-kept",
    "works-again": "delete-is-refused",
    "gives-up": "server-is-away-while-idle",
    "leaves-leases": "stopped-in-work",
    "ignores-failed-renewal": "lease-is-taken-away",
    "takes-more": "stopped-with-others-waiting",
    "polls-busily": "empty-queue",
    "forgets-progress": "killed-in-a-step",
    "ignores-sigterm": "stopped-while-idle",
    "renews-only-the-first": "slow-work-before-others",
    "never-renews": "work-of-a-lease",
    "renews-too-late": "work-of-three-leases",
    "keeps-old-receipt": "slow-then-quick",
}
"""By fault, a scenario that shows it."""
QUICK: Final = ("deletes-first", "crashes-on-failure", "works-again")
SLOW: Final = (
    "renews-too-late",
    "keeps-old-receipt",
    "ignores-sigterm",
    "throws-poison-away",
    "renews-only-the-first",
)
"""They take half a minute each: something is waited for that does not come."""


def certify(
    worker: str,
    *words: str,
    scenarios: tuple[str, ...] = (),
    options: tuple[str, ...] = ("--progress",),
) -> list[dict[str, Any]]:
    """Run the command on a worker of ours; return what it says about each scenario."""
    chosen = [word for name in scenarios for word in ("--scenario", name)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "leasehold.cli", "certify", "--json", *options, *chosen),
            *(sys.executable, "-m", f"proof.workers.{worker}", *words),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told, done.stderr
    found = any(each["findings"] for each in told)
    assert done.returncode == int(found), done.stderr
    return told


def test_good_worker_passes() -> None:
    """A scenario of each kind that is quick."""
    names = ("one-message", "fails-once", "delete-is-refused")
    told = certify("leasehold_worker", "progress", scenarios=names)
    assert {each["scenario"]: each["findings"] for each in told} == {key: [] for key in names}


@pytest.mark.sdk
@pytest.mark.parametrize("worker", [("faulty", "none"), ("leasehold_worker",)])
def test_good_worker_passes_over_mns(worker: tuple[str, ...]) -> None:
    """Its bodies are in Base64, as the SDK has them; one that is not must not stop it."""
    names = ("text-that-is-not-base64", "delete-is-refused")
    words, options = (*worker[1:], "mns", "base64"), ("--mns", "--base64")
    told = certify(worker[0], *words, scenarios=names, options=options)
    assert {each["scenario"]: each["findings"] for each in told} == {key: [] for key in names}


@pytest.mark.parametrize("fault", QUICK)
def test_fault_is_found(fault: str) -> None:
    """The same small worker, with something wrong in it."""
    _finds(fault)


@pytest.mark.long
@pytest.mark.parametrize("fault", sorted(set(SHOWN_BY) - set(QUICK) - set(SLOW)))
def test_other_fault_is_found(fault: str) -> None:
    """Those that take longer."""
    _finds(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", SLOW)
def test_slow_fault_is_found(fault: str) -> None:
    """Those that take much longer, and three times that on a machine with much else to do."""
    _finds(fault)


@pytest.mark.sdk
def test_fault_is_found_over_mns() -> None:
    """Requests of MNS name messages by their receipts."""
    _finds("deletes-first", over_mns=True)


@pytest.mark.slow
@pytest.mark.sdk
@pytest.mark.parametrize("fault", sorted(set(SHOWN_BY) - NOT_OVER_MNS - {"deletes-first"}))
def test_other_fault_is_found_over_mns(fault: str) -> None:
    """All the others that can be there."""
    _finds(fault, over_mns=True)


def _finds(fault: str, *, over_mns: bool = False) -> None:
    words, options = ((fault, "mns"), ("--mns",)) if over_mns else ((fault,), ("--progress",))
    (told,) = certify("faulty", *words, scenarios=(SHOWN_BY[fault],), options=options)
    assert FAULTS[fault] in {each["rule"] for each in told["findings"]}


@pytest.mark.long
def test_our_worker_passes_all() -> None:
    """In every scenario."""
    _passes_all("leasehold_worker", "progress")


@pytest.mark.slow
def test_small_worker_passes_all() -> None:
    """The one with no fault switched on."""
    _passes_all("faulty", "none")


@pytest.mark.slow
@pytest.mark.sdk
@pytest.mark.parametrize("worker", [("faulty", "none"), ("leasehold_worker",)])
def test_good_worker_passes_all_over_mns(worker: tuple[str, ...]) -> None:
    """All but those for saved progress, which no message of MNS keeps."""
    _passes_all(*worker, "mns", "base64", options=("--mns", "--base64"))


def _passes_all(worker: str, *words: str, options: tuple[str, ...] = ("--progress",)) -> None:
    told = certify(worker, *words, options=options)
    fitting = {name for name, each in SCENARIOS.items() if each.option in {"", *options}}
    assert {each["scenario"] for each in told} == fitting
    assert [each for each in told if each["findings"]] == []


@pytest.mark.slow
@pytest.mark.sdk
@pytest.mark.parametrize(
    ("worker", "words", "scenario", "rule"),
    [
        ("celery_azure", (), "one-message", "deleted-early"),
        ("celery_azure", ("raw",), "one-message", "crashed"),
        ("celery_leasehold", (), "one-message", None),
        ("azure_renewing", (), "renewal-is-refused-once", "lease-lost"),
        ("azure_renewing", ("quick",), "renewal-is-refused-once", None),
    ],
)
def test_library_is_as_the_manual_says(
    worker: str, words: tuple[str, ...], scenario: str, rule: str | None
) -> None:
    """What docs/explanation/workers-certified.md says of libraries, and what is right beside it."""
    (told,) = certify(worker, *words, scenarios=(scenario,))
    found = {each["rule"] for each in told["findings"]}
    assert rule in found if rule else not found


@pytest.mark.long
@pytest.mark.sdk
def test_sdk_of_mns_fails_at_a_text() -> None:
    """Its error is none of those that the documented loop catches, and the receipt is lost."""
    name = "text-that-is-not-base64"
    options = ("--mns", "--base64")
    (told,) = certify("mns_loop", "base64", scenarios=(name,), options=options)
    assert "crashed" in {each["rule"] for each in told["findings"]}


def test_faults_and_scenarios_are_known() -> None:
    """Each fault has a scenario, each rule is one that is explained, and forty are played."""
    assert set(SHOWN_BY) == set(FAULTS) - {"none"}
    assert set(SHOWN_BY.values()) <= set(SCENARIOS)
    assert {rule for rule in FAULTS.values() if rule} <= set(RULES)
    assert len([each for each in SCENARIOS.values() if not each.option]) >= 40
