"""Commands in an environment that lacks libraries: one line, and the right extra in it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from leasehold import extras
from leasehold.cli.root import main

ROOT = Path(__file__).resolve().parents[3]
DISTRIBUTIONS = {
    "prometheus-client": "prometheus_client",
    "PyJWT": "jwt",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter",
    "azure-storage-queue": "azure",
    "aliyun-mns-sdk": "mns",
}
"""Names under which a library is imported, where that is another than the one it is known by."""
NOT_OF_COMMANDS = {"demo", "bench", "proof", "docs", "slow", "test", "release", "dev"}
PROGRAM = """
import importlib, json, os, sys, tempfile
blocked, calls = json.loads(sys.argv[1])
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
for name in ("leasehold.client", "leasehold.cli.output", "leasehold.cli.remote"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
told = []
for words in calls:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["leasehold", *words]
            from leasehold.command import main
            sys.exit(main())
        _, status = os.waitpid(child, 0)
        texts = [os.pread(each.fileno(), 1 << 20, 0).decode() for each in (out, err)]
        told.append([os.waitstatus_to_exitcode(status), *texts])
print(json.dumps(told))
"""
"""Runs commands where libraries are missing, each in a process of its own that forks from one.

What most of them import is imported before, which is most of the time that they would take.
"""
AWAY = ("--url", "http://127.0.0.1:9")
WORDS = {
    "serve": ("serve", "--port", "0", "--data", "/proc/nowhere"),
    "health": ("health", "--port", "9"),
    "settings": ("settings",),
    "version": ("version",),
    "completion": ("completion", "bash"),
    "help": ("help", "queue"),
    "queue": ("queue", "list", *AWAY),
    "message": ("message", "list", "q", *AWAY),
    "job": ("job", "list", *AWAY),
    "backup": ("backup", "/nowhere", "/proc/nowhere"),
    "restore": ("restore", "/nowhere", "/proc/nowhere"),
    "store": ("store", "check", "/nowhere"),
    "session": ("session", "list", *AWAY),
    "stream": ("stream", "list", "q", *AWAY),
    "claim": ("claim", "show", "q", "s", "1", *AWAY),
    "transaction": ("transaction", "list", *AWAY),
    "events": ("events", "tail", *AWAY),
    "trace": ("trace", "q", "m", *AWAY),
    "definitions": ("definitions", "export", "-", *AWAY),
    "group": ("group", "list", "q", *AWAY),
    "stats": ("stats", *AWAY),
    "top": ("top", "--once", *AWAY),
    "worker": ("worker", "run", "no_such_module_of_ours:handle", "--queue", "q", *AWAY),
    "spark": ("spark", "cluster", "--help"),
    "certify": ("certify", "--list"),
    "doctor": ("doctor", *AWAY),
    "pipeline": ("pipeline", "run", "no_such_module_of_ours:films", *AWAY),
    "simulate": ("simulate", "--work", "constant:1", "--messages", "5"),
    "analyze": ("analyze", *AWAY),
    "send": ("send", "q", "body", *AWAY),
    "inspect": ("inspect", "q", *AWAY),
    "explain": ("explain", "q", *AWAY),
    "redrive": ("redrive", "q", *AWAY),
}
"""A call of every command that needs nothing but its libraries to come to a result."""
EXTRAS = {name: extras._OF_COMMANDS.get(name) for name in WORDS}
"""The extra that a command needs; None for those that need none."""
EVERYTHING = frozenset(extras.LIBRARIES) | extras.ALWAYS


@cache
def declared() -> dict[str, list[str]]:
    """Return what each extra asks for, and without a name what is always there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def libraries(names: str = "") -> set[str]:
    """Return the libraries that an installation brings, by the names they are imported under."""
    found: set[str] = set()
    for name in ("", *filter(None, names.split(","))):
        for wanted in declared()[name]:
            distribution = re.split(r"[\[<>=!~ ]", wanted)[0]
            if distribution == "leasehold":
                found |= libraries(wanted.partition("[")[2].rstrip("]"))
            else:
                found.add(DISTRIBUTIONS.get(distribution, distribution.replace("-", "_")))
    return found


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def run(calls: Sequence[tuple[str, ...]], missing: set[str]) -> list[Ended]:
    """Run commands where these libraries are missing."""
    given = json.dumps([sorted(missing), calls])
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM, given),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return [Ended(*each) for each in json.loads(done.stdout)]


@cache
def run_with(extra: str | None) -> dict[str, Ended]:
    """Run a call of every command that needs an extra, or none, where that alone is installed."""
    present = libraries(extra or "") | ({"py4j"} if extra else set())
    chosen = [name for name in WORDS if EXTRAS[name] == extra]
    calls = [WORDS[name] for name in chosen]
    return dict(zip(chosen, run(calls, set(EVERYTHING - present)), strict=True))


@cache
def run_bare() -> dict[str, Ended]:
    """Run a call of every command where no extra is installed."""
    missing = set(EVERYTHING - libraries())
    return dict(zip(WORDS, run(list(WORDS.values()), missing), strict=True))


def test_every_library_is_known() -> None:
    """What is declared can be named; what the table says brings it does."""
    assert libraries() == extras.ALWAYS
    brought = {
        library
        for name in declared()
        if name and name not in NOT_OF_COMMANDS
        for library in libraries(name)
    }
    assert brought <= EVERYTHING
    for library, name in extras.LIBRARIES.items():
        assert library in libraries(name) | {"py4j", "grpc", "cryptography"}


def test_extras_within_extras_are_known() -> None:
    """The line names no extra that another one of it brings."""
    for extra, within in extras._WITHIN.items():
        for name in within:
            assert libraries(name) <= libraries(extra)


def test_every_command_is_tried() -> None:
    """A new command gets a line above."""
    with click.Context(main) as context:
        assert sorted(WORDS) == sorted(main.list_commands(context))


@pytest.mark.parametrize("name", WORDS)
def test_a_bare_install_runs_a_command_or_names_its_extra(name: str) -> None:
    """In one line, without a traceback; so it does for the help of the command."""
    result = run_bare()[name]
    extra = EXTRAS[name]
    assert "Traceback" not in result.stderr, result.stderr
    if extra is None:
        assert "needs the library" not in result.stderr, result.stderr
        return
    assert result.code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: leasehold {name} needs the library ")
    assert f"pip install '.[{extra}]'" in line
    assert result.stdout == ""


def test_a_broken_install_says_what_should_be_there() -> None:
    """Also without a command."""
    for result in run([(), ("--help",), ("--version",)], set(EVERYTHING)):
        assert (result.code, result.stdout) == (1, "")
        assert result.stderr.startswith("Error: leasehold needs the library click, which should")
        assert "pip install ." in result.stderr


@pytest.mark.parametrize("name", [name for name in WORDS if EXTRAS[name]])
def test_the_extra_that_is_named_is_all_that_a_command_needs(name: str) -> None:
    """With it and nothing else the command comes to its own result."""
    result = run_with(EXTRAS[name])[name]
    assert "needs the library" not in result.stderr, result.stderr
    assert "Traceback" not in result.stderr, result.stderr


def test_a_mistake_in_a_handler_is_not_taken_for_a_missing_extra() -> None:
    """A library of the user's own code is none of ours."""
    assert extras.need_of(["worker", "run"], ModuleNotFoundError("x", name="boto3.session")) is None
    assert extras.need_of(["queue"], ModuleNotFoundError("x", name="leasehold.gone")) is None


def test_a_cluster_without_spark_names_the_extra() -> None:
    """Its help needs nothing."""
    missing = set(EVERYTHING - libraries())
    (result,) = run([("spark", "cluster")], missing)
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: leasehold spark needs the library pyspark: ")
    assert "pip install '.[spark]'" in result.stderr


def test_what_a_url_needs_is_asked_for_beside_the_command() -> None:
    """A library that not every use of a command needs adds its extra."""
    need = extras.need_of(["worker", "run"], ModuleNotFoundError("x", name="azure.core"))
    assert need is not None
    assert "'.[azure]'" in need
    need = extras.need_of(["pipeline", "run"], ModuleNotFoundError("x", name="psycopg"))
    assert need is not None
    assert "'.[spark,postgres]'" in need
    need = extras.need_of(["analyze"], ModuleNotFoundError("x", name="numpy"))
    assert need is not None
    assert "'.[analysis]'" in need


def test_the_page_on_installing_names_every_extra() -> None:
    """All but those that only developers of Leasehold need."""
    page = (ROOT / "docs/howto/install.md").read_text()
    told = {
        name
        for row in re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", row)
    }
    assert told == set(declared()) - {"", *NOT_OF_COMMANDS}


def test_no_text_names_a_package_that_is_not_published() -> None:
    """There is none of this name to install from an index: texts say how it is done today."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*")):
        if page.is_file():
            assert not re.search(r"install [^\n]*\bleasehold(\[|$)", page.read_text()), page
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "leasehold[" in text else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"install ['\"]?leasehold\[", node.value), path
