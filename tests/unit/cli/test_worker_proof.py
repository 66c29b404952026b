"""``leasehold worker prove-fencing`` and ``leasehold worker stages``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from leasehold.cli.remote import LocalCommand
from leasehold.cli.worker import worker
from tests.unit.cli.worker_support import Folder, clean_modules

BANK = """
    from leasehold.worker.idempotency import Fenced
    from leasehold.worker.stages import Stages
    from leasehold.worker.errors import LeaseLost
    log, kept = [], {}
    def reset():
        log.clear()
        kept.clear()
    def probe():
        return [list(log), {name: each[1] for name, each in kept.items()}]
    def broken():
        raise OSError("no such table")
    def careless(message):
        log.append(message.text)
    def careful(message):
        fence, _ = kept.get(message.text, (0, None))
        if message.fence >= fence: kept[message.text] = (message.fence, "paid")
    def fails(message):
        raise ValueError("always")
    pipeline = Stages(version=2)
    @pipeline.stage("pay", weight=3)
    def pay(message, state):
        careful(message)
        return None
    @pipeline.stage("tell", retries=2)
    def tell(message, state):
        return None
    each = {"orders": careful}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A current directory with the module ``bank``."""
    monkeypatch.chdir(tmp_path)
    with clean_modules():
        made = Folder(tmp_path)
        made.write("bank", BANK)
        yield made


def prove(folder: Folder, handler: str, *options: str) -> tuple[int, str, str]:
    """Prove a handler; return the exit code and what was written to both outputs."""
    fixed = ("--probe", "w6_bank:probe", "--body", "a", "--patience", "0.1")
    result = folder("prove-fencing", f"w6_bank:{handler}", *fixed, *options)
    return result.exit_code, result.stdout, result.stderr


RESET = ("--reset", "w6_bank:reset")


@pytest.mark.parametrize("handler", ["careful", "pipeline"])
def test_a_careful_handler_is_proven(folder: Folder, handler: str) -> None:
    """Exit code 0, and a line for each scenario; a pipeline is stopped at the user's lines."""
    code, out, _ = prove(folder, handler, *RESET)
    assert code == 0, out
    assert out.startswith(f"w6_bank:{handler}:\n")
    assert out.endswith("\n\nProven: no late worker did harm.\n")
    for scenario in ("delivered again after success", "zombie in the middle", "crash before"):
        assert scenario in out
    middle = next(line for line in out.splitlines() if "zombie in the middle" in line)
    assert int(middle.split()[-2]) >= 2  # places
    assert "NOT" not in out


def test_a_careless_handler_is_not(folder: Folder) -> None:
    """Exit code 1, with what was seen and where."""
    code, out, _ = prove(folder, "careless", *RESET)
    assert code == 1
    assert out.endswith("\n\nNot proven.\n")
    assert "zombie after the next holder   NOT FENCED" in out
    assert "[['a'], {}] became [['a', 'a'], {}]" in out
    assert "at w6_bank.py:" in out


def test_what_cannot_be_decided_is_not_proven(folder: Folder) -> None:
    """Without a reset; the hint says what is missing."""
    code, out, err = prove(folder, "careful", "--body", "b")
    assert (code, "UNDECIDED" in out) == (1, True)
    assert "--reset is missing, so one effect cannot be told from two" in err


def test_the_report_as_json(folder: Folder) -> None:
    """One document, with the same exit codes."""
    code, out, err = prove(folder, "careless", *RESET, "--json")
    told = json.loads(out)
    assert (code, err) == (1, "")
    assert (told["handler"], told["holds"]) == ("w6_bank:careless", False)
    assert {each["verdict"] for each in told["scenarios"]} <= {"NOT FENCED", "NOT IDEMPOTENT"}


def test_the_message_can_be_described(folder: Folder) -> None:
    """Its body may come from standard input, and the codec reads it."""
    folder.write(
        "other",
        """
        seen = []
        def handle(message):
            seen.append((message.queue, message.type, message.properties, message.payload))
        def probe(): return len(seen)
        """,
    )
    options = ("--queue", "orders", "--type", "t", "--property", "a=b", "--codec", "json")
    more = ("--probe", "w6_other:probe", "--body-file", "-", "--places", "1", "--patience", "0.1")
    folder("prove-fencing", "w6_other:handle", *options, *more, stdin='{"n": 1}')
    assert folder.module("other").seen[0] == ("orders", "t", {"a": "b"}, {"n": 1})


@pytest.mark.parametrize(
    ("handler", "options", "text"),
    [
        ("nobody", (), "module w6_bank has no nobody"),
        ("each", (), "w6_bank:each has a handler for each queue: name one of them"),
        ("fails", (), "the handler failed at a plain delivery: ValueError: always"),
        ("careful", ("--probe", "w6_bank:reset"), "the probe does not see"),
        ("careful", ("--probe", "w6_bank:broken"), "OSError: no such table (w6_bank.py, line 12)"),
        ("careful", ("--reset", "w6_bank:pay"), "TypeError"),
        ("careful", ("--codec", "json", "--death", "kill"), "decode cannot be taken"),
    ],
)
def test_what_can_prove_nothing(
    folder: Folder, handler: str, options: tuple[str, ...], text: str
) -> None:
    """Is a mistake of the command line: exit code 2, and no traceback."""
    code, out, err = prove(folder, handler, *options)
    assert (code, out) == (2, "")
    assert text in err
    assert "Traceback" not in err


def test_stages_are_described(folder: Folder) -> None:
    """As text, as a flowchart, and for scripts."""
    plain = folder("stages", "w6_bank:pipeline")
    assert plain.stdout == "2 stages, version 2\n  1. pay\n  2. tell  retries 2\n"
    chart = folder("stages", "w6_bank:pipeline", "--mermaid").stdout
    assert chart.startswith("flowchart LR\n")
    assert '    s2["tell<br/>retries 2"]\n' in chart
    assert json.loads(folder("stages", "w6_bank:pipeline", "--json").stdout) == {
        "pipeline": "w6_bank:pipeline",
        "version": 2,
        "stages": [{"name": "pay", "weight": 3}, {"name": "tell", "weight": 1}],
    }


def test_what_is_no_pipeline(folder: Folder) -> None:
    """Is a mistake of the command line."""
    folder.write("empty", "from leasehold.worker.stages import Stages\nnone = Stages()\n")
    for name, text in (("bank:pay", "no pipeline"), ("empty:none", "the pipeline has no stage")):
        result = folder("stages", f"w6_{name}")
        assert (result.exit_code, result.stdout) == (2, "")
        assert text in result.stderr


@pytest.mark.parametrize("name", ["prove-fencing", "stages"])
def test_commands_without_a_server_explain_themselves(folder: Folder, name: str) -> None:
    """A sentence, an example, every option with a whole sentence; nothing about connections."""
    command = worker.commands[name]
    assert isinstance(command, LocalCommand)
    text = folder(name, "--help").output
    assert f"  leasehold worker {name} " in text.split("Example:\n")[1]
    assert "--connection-string" not in text
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help.endswith("."), parameter.name
