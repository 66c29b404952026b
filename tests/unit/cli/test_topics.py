"""``leasehold help``: topics from the documentation, and the help of commands."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasehold.cli import main, topics
from leasehold.cli.topics import TOPICS
from tests.unit.cli.terminal import Terminal

ROOT = Path(__file__).resolve().parents[3]


def shown(*words: str) -> str:
    """Return what help says."""
    result = CliRunner().invoke(main, ("help", *words))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", TOPICS)
def test_every_topic_has_its_text(name: str) -> None:
    """All its sections, each with something in it, and no links that nobody can follow."""
    text = shown(name)
    for heading in TOPICS[name].sections:
        assert re.search(rf"^#+ {heading}\n\n\S", text, re.MULTILINE), heading
    assert re.search(r"\]\(|\]\[|<!--|<a id|!\[", text) is None
    assert len(text.splitlines()) > 5


def test_a_section_ends_where_the_next_one_begins() -> None:
    """What belongs to another topic is not in it."""
    assert "NO_COLOR" in shown("environment")
    assert "What they print" not in shown("environment")
    assert shown("receipts").count("\n## ") == 1


def test_the_topics_are_listed() -> None:
    """With a line about each."""
    text = shown()
    for name, topic in TOPICS.items():
        assert re.search(rf"^  {name} +{re.escape(topic.summary)}$", text, re.MULTILINE)


def test_the_wheel_has_the_pages() -> None:
    """Those that topics show, and no others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["pages"]
    assert packed == sorted({each.page for each in TOPICS.values()})


def test_an_installation_shows_what_a_checkout_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its pages are compressed."""
    text = shown("states")
    page = TOPICS["states"].page
    packed = tmp_path / f"{page}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress((ROOT / "docs" / page).read_bytes()))
    monkeypatch.setattr(topics, "_PACKED", tmp_path)
    monkeypatch.setattr(topics, "_SOURCE", tmp_path / "none")
    assert shown("states") == text


def test_an_installation_without_the_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says what is missing."""
    monkeypatch.setattr(topics, "_SOURCE", tmp_path)
    result = CliRunner().invoke(main, ("help", "states"))
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: The page explanation/visibility.md is missing from this ")


def test_commands_are_explained_as_by_their_own_help() -> None:
    """Also those of groups, which are imported for it."""
    runner = CliRunner()
    for words in (("serve",), ("queue",), ("queue", "create"), ("message", "send")):
        own = runner.invoke(main, (*words, "--help"), prog_name="leasehold").output
        helped = runner.invoke(main, ("help", *words), prog_name="leasehold").output
        assert helped == own


@pytest.mark.parametrize("words", [("zzz",), ("queue", "zzz"), ("states", "zzz")])
def test_what_is_neither(words: tuple[str, ...]) -> None:
    """It is a mistake of usage."""
    result = CliRunner().invoke(main, ("help", *words))
    assert result.exit_code == 2
    assert "There is no topic and no command" in result.output


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("leasehold help ex", {"exit-codes", "explain"}),
        ("leasehold help queue cr", {"create"}),
        ("leasehold help states x", set()),
        ("leasehold to", {"top"}),
    ],
)
def test_it_is_completed(typed: str, expected: set[str]) -> None:
    """Topics and commands; behind a command those of its group."""
    words = typed.split()
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    env = {**os.environ, "_LEASEHOLD_COMPLETE": "bash_complete", **asked}
    program = "from leasehold.cli.root import main; main(prog_name='leasehold')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert {line.partition(",")[2] for line in done.stdout.split()} == expected


def test_a_person_gets_it_laid_out() -> None:
    """In a terminal there are no marks of Markdown."""
    terminal = Terminal("help", "output", columns=80, lines=60)
    assert terminal.ended() == 0
    text = "\n".join(terminal.screen.display)
    assert "Tables, for people." in text
    assert "`" not in text
    assert "#" not in text
