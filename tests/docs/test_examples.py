"""Examples run, and print what the pages say they print.

The blocks of a page run in order and in one namespace; see CONTRIBUTING.md for the fences.
"""

from __future__ import annotations

import base64
import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from leasehold.cli import main
from leasehold.server.settings import load_settings
from leasehold.testing import InProcessServer
from tests.docs.pages import DOCS, ROOT, Block, blocks, page_id, pages
from tests.e2e.azure_js import test_azure_js as official
from tests.e2e.identity import IdentityProvider
from tests.e2e.node import install_packages
from tests.e2e.server import Server
from tests.patience import PROGRAM_S

DEVELOPMENT: Final = "UseDevelopmentStorage=true"
SHOP: Final = "https://queues.example.net/shop"
TOKENS: Final = DOCS / "howto" / "bearer-tokens.md"
CONNECTION_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
NEEDS_SERVER: Final = re.compile(f"{DEVELOPMENT}|leasehold:///|azure:///|[$] leasehold ")
LEASEHOLD: Final = str(Path(sys.executable).with_name("leasehold"))
IN_A_HURRY: Final = {
    "visibility_timeout=10)": "visibility_timeout=2)",
    "lease=10,": "lease=2,",
}
"""Readers of the tutorials need a lease long enough to paste into; a test does not."""
MARK: Final = "---- block {} ----"


def _pages_with(language: str) -> list[Path]:
    return [page for page in pages() if any(b.language == language for b in blocks(page))]


def _id(value: object) -> str:
    return page_id(value) if isinstance(value, Path) else str(value)


def _starts_spark(page: Path) -> bool:
    return any("local_session(" in b.text for b in blocks(page) if b.language == "python")


PYTHON: Final = [page for page in _pages_with("python") if page != TOKENS]
SPARK: Final = [page for page in PYTHON if _starts_spark(page)]
SCRIPT: Final = _pages_with("js")
FILES: Final = [page for page in PYTHON if any(each.title for each in blocks(page))]
"""Their command lines run between the other blocks, where the files that they name are."""
CONSOLE: Final = [page for page in _pages_with("console") if page not in FILES]


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """A new server: pages create the queues that they use. It has no errors to tell of."""
    with capture_logs() as logs, InProcessServer(store="sqlite", clock="system") as started:
        yield started
    assert [each for each in logs if each["log_level"] in {"error", "critical"}] == []


def examples(page: Path, language: str) -> list[tuple[Block, str | None]]:
    """Return the blocks that run, each with what it must print if the page says so."""
    found: list[tuple[Block, str | None]] = []
    before = ""
    for block in blocks(page):
        if block.language == language:
            found.append((block, None))
        elif block.language == "console" and page in FILES:
            found.append((block, re.sub(r"^\$ .*\n", "", block.text, flags=re.MULTILINE)))
        elif block.language == "text" and block.adjacent and before == language:
            found[-1] = (found[-1][0], block.text)
        before = block.language
    return found


def python_of(block: Block) -> str:
    """Return what does in a script what a reader does with a block."""
    if block.title is not None:
        return f"open({block.title!r}, 'w').write({block.text!r})"
    if block.language != "console":
        return block.text
    lines = []
    for typed in re.findall(r"^\$ (.*)$", block.text, re.MULTILINE):
        name, *words = shlex.split(typed)
        program = {"leasehold": LEASEHOLD, "python": sys.executable}[name]
        lines.append(f"__import__('subprocess').run({[program, *words]!r}, check=True)")
    return "\n".join(lines)


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout_s: float = PROGRAM_S,
) -> str:
    """Run a program in *folder*; return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "*", **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def check_output(page: Path, shown: Sequence[tuple[Block, str | None]], printed: str) -> None:
    """Compare what each block printed with the page."""
    checker = doctest.OutputChecker()
    parts = re.split(re.escape(MARK).replace(r"\{\}", r"\d+") + "\n", printed)[1:]
    assert len(parts) == len(shown)
    for (block, expected), got in zip(shown, parts, strict=True):
        same = expected is None or checker.check_output(expected, got, doctest.ELLIPSIS)
        assert same, f"{page_id(page)}, {block}: expected\n{expected}\nbut got\n{got}"


def script_of(page: Path, changes: Mapping[str, str], prelude: str = "") -> str:
    """Return the Python blocks of a page as one program, which says where each begins."""
    shown = examples(page, "python")
    parts = [f"print({MARK.format(i)!r})\n{python_of(b)}" for i, (b, _) in enumerate(shown)]
    script = "\n".join([prelude, *parts])
    for old, new in changes.items():
        script = script.replace(old, new)
    return script


def run_python(
    page: Path,
    folder: Path,
    changes: Mapping[str, str],
    prelude: str = "",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run the Python blocks of a page."""
    script = script_of(page, changes, prelude)
    (folder / "example.py").write_text(script, encoding="utf-8")
    # Unbuffered: what other programs print has its place between what this one does.
    printed = run([sys.executable, "-u", "example.py"], folder, environment or {})
    check_output(page, examples(page, "python"), printed)


@pytest.mark.sdk
@pytest.mark.parametrize("page", [page for page in PYTHON if page not in SPARK], ids=page_id)
def test_python_examples(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each page can be followed from its first block to its last."""
    changes, environment = dict(IN_A_HURRY), {"COLUMNS": "100"}
    if NEEDS_SERVER.search("".join(each.text for each in blocks(page))):
        server: InProcessServer = request.getfixturevalue("server")
        changes[DEVELOPMENT] = server.connection_string
        environment[CONNECTION_VARIABLE] = server.connection_string
    run_python(page, tmp_path, changes, environment=environment)


@pytest.mark.parametrize("page", CONSOLE, ids=page_id)
def test_console_examples(
    page: Path, server: InProcessServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Command lines after a dollar sign, with what they print below.

    Python between them does what they then show. Commands run within this process: each would
    start for half a second otherwise.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "*")
    checker = doctest.OutputChecker()
    environment = {CONNECTION_VARIABLE: server.connection_string, "COLUMNS": "100"}
    for block in blocks(page):
        if block.language == "python":
            script = block.text.replace(DEVELOPMENT, server.connection_string)
            run([sys.executable, "-c", script], tmp_path, {})
        if block.language != "console":
            continue
        for example in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            typed, _, expected = example.partition("\n")
            words = shlex.split(typed)
            assert words.pop(0) == "leasehold", typed
            done = CliRunner().invoke(main, words, env=environment)
            assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
            got = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
            same = checker.check_output(expected, got, doctest.ELLIPSIS)
            assert same, f"{page_id(page)}, {block}: expected\n{expected}\nbut got\n{got}"


@pytest.mark.sdk
@pytest.mark.parametrize("page", SCRIPT, ids=page_id)
def test_javascript_examples(page: Path, server: InProcessServer, tmp_path: Path) -> None:
    """The same for JavaScript."""
    install_packages(official.HERE)
    (tmp_path / "node_modules").symlink_to(official.HERE / "node_modules")
    shown = examples(page, "js")
    parts = [f"console.log({MARK.format(i)!r});\n{b.text}" for i, (b, _) in enumerate(shown)]
    script = "\n".join(parts).replace(DEVELOPMENT, server.connection_string)
    (tmp_path / "example.mjs").write_text(script, encoding="utf-8")
    check_output(page, shown, run(["node", "example.mjs"], tmp_path, {}))


@pytest.mark.sdk
def test_examples_with_tokens(tmp_path: Path) -> None:
    """A server with TLS, an issuer and an account of its own, as the page sets it up."""
    identity = IdentityProvider(tmp_path / "identity")
    key = base64.b64encode(os.urandom(64)).decode()
    config = tmp_path / "leasehold.toml"
    config.write_text(f'[accounts.shop]\nkey1 = "{key}"\n', encoding="utf-8")
    server = Server(
        tmp_path / "data",
        options={"--config": str(config), **identity.server_options()},
        ca_file=identity.certificate_file,
    )
    with server as started:
        prelude = (
            f"import os\nos.environ['REQUESTS_CA_BUNDLE'] = {started.ca_file!r}\n"
            f"def fetch_token():\n    return {identity.token()!r}\n"
        )
        run_python(TOKENS, tmp_path, {SHOP: f"{started.origin}/shop"}, prelude)


def _configurations() -> list[tuple[Path, Block]]:
    return [(page, b) for page in pages() for b in blocks(page) if b.language == "toml"]


@pytest.mark.parametrize(("page", "block"), _configurations(), ids=_id)
def test_configurations_load(page: Path, block: Block, tmp_path: Path) -> None:
    """Every example of a settings file is one that the server takes."""

    def key(match: re.Match[str]) -> str:
        return base64.b64encode(match[1].encode() * 64).decode()

    config = tmp_path / "leasehold.toml"
    config.write_text(re.sub(r"<key (\d)>", key, block.text), encoding="utf-8")
    loaded = load_settings({}, file=config, environment={})
    assert f"file {config}" in loaded.origins.values(), page


_SHELL = frozenset({"|", "||", "&&", ">", "<"})
"""What ends a command line within one of the shell."""


def _commands() -> Iterator[tuple[str, list[str]]]:
    for page in pages():
        for block in blocks(page):
            if block.language not in {"sh", "ini"}:
                continue
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                typed = line.removeprefix("ExecStart=").partition(" # ")[0]
                whole = typed.removesuffix("\\")  # a command that goes on begins with another word
                words = shlex.split(whole, comments=True) if "leasehold" in whole else []
                words = list(takewhile(lambda word: word not in _SHELL, words))
                if len(words) > 1 and words[0].rpartition("/")[2] == "leasehold":
                    yield f"{page_id(page)}:{number}", words[1:]


@pytest.mark.parametrize(("where", "words"), list(_commands()), ids=_id)
def test_commands_exist(where: str, words: list[str]) -> None:
    """Every command line on a page is one that ``leasehold`` understands."""
    command: click.Command = main
    while isinstance(command, click.Group) and not words[0].startswith("-"):
        command, words = command.commands[words[0]], words[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    context = click.Context(command, **command.context_settings)
    if context.allow_interspersed_args:  # else options may be those of another program
        typed = [word.partition("=")[0] for word in words if re.match("--?[a-z]", word)]
        assert set(typed) <= known, where
    parser = command.make_parser(context)
    assert parser.parse_args(words)[1] == [], where


def test_the_readme_names_real_targets() -> None:
    """What the README and CONTRIBUTING tell people to make can be made, and nothing is left out."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named: set[str] = set()
    for page in pages():
        named.update(re.findall(r"`make ([a-z-]+)`", page.read_text("utf-8")))
        for block in blocks(page):
            if block.language == "sh":
                named.update(re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE))
    assert named - targets == set()
    assert targets - named == {"help"}
