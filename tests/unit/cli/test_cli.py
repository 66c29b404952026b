"""The command line: options, help, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold import __version__
from leasehold.cli import main
from leasehold.server import main as server
from leasehold.server.settings import Settings, all_settings
from leasehold.testing import InProcessServer

KEY = "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command line in an environment of its own."""

    def run(*arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(main, arguments, env=environment)

    for name in all_settings():
        monkeypatch.delenv(f"LEASEHOLD_{name.upper()}", raising=False)
    monkeypatch.delenv("LEASEHOLD_CONFIG", raising=False)
    return run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings that a server was started with; none really starts."""
    started: list[Settings] = []

    def serve(settings: Settings, announce: object, *, is_greeted: bool = False) -> int:
        assert not is_greeted  # there is no terminal
        del announce
        started.append(settings)
        return 70

    monkeypatch.setattr(server, "serve", serve)
    return started


def test_version(run: Any) -> None:
    """The version can be asked for in the two usual ways."""
    assert run("version").output == f"leasehold {__version__}\n"
    assert run("--version").output == f"leasehold {__version__}\n"
    for words in (("--version", "--json"), ("--json", "--version"), ("version", "--json")):
        told = json.loads(run(*words).output)
        assert told["leasehold"] == __version__
        assert told["form"] in {"compiled", "pure"}
    alone = run("--json", "version")
    assert (alone.exit_code, "--json needs --version" in alone.output) == (2, True)


def test_without_a_command_the_help_is_shown(run: Any) -> None:
    """As a mistake: a script that lost its command must not go on."""
    result = run()
    assert result.exit_code == 2
    assert "Commands" in result.output or "queue" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(run: Any, shell: str) -> None:
    """The script asks the program itself what may come next."""
    assert "_LEASEHOLD_COMPLETE" in run("completion", shell).output
    typed = {
        "_LEASEHOLD_COMPLETE": "fish_complete",
        "COMP_WORDS": "leasehold que",
        "COMP_CWORD": "que",
    }
    assert "queue" in run(**typed).output


def test_health_is_asked_of_the_server_that_the_settings_mean(run: Any) -> None:
    """Of the port that is set, and of this machine where the server listens everywhere."""
    with InProcessServer() as server:
        port = server.url.rsplit(":", 1)[1].strip("/")
        for more in ((), ("--ready",), ("--host", "0.0.0.0", "--dev-account", "insecure")):
            result = run("health", "--port", port, *more)
            assert result.exit_code == 0, result.output
        assert run("health", LEASEHOLD_PORT=port).exit_code == 0
    gone = run("health", "--port", port)
    assert gone.exit_code == 1
    assert f"Error: http://127.0.0.1:{port}/healthz: " in gone.output


def test_serve_takes_an_option_for_every_setting_without_secrets(run: Any) -> None:
    """The help names each setting; keys cannot be given where other users could read them."""
    text = run("serve", "--help").output
    for name in all_settings():
        assert (f"--{name.replace('_', '-')} " in text) == (
            name not in {"accounts", "account_stores", "inspectors", "mns_keys"}
        ), name


def test_serve_runs_with_what_was_typed(run: Any, served: list[Settings]) -> None:
    """Options reach the server, and its exit code reaches the shell."""
    options = ("--port", "0", "--tls-terminated", "--no-metrics-enabled")
    result = run("serve", *options, LEASEHOLD_ACCOUNTS=f"orders:{KEY}")
    assert result.exit_code == 70
    (settings,) = served
    assert (settings.port, settings.tls_terminated, settings.metrics_enabled) == (0, True, False)


def test_what_was_not_typed_comes_from_elsewhere(
    run: Any, served: list[Settings], tmp_path: Path
) -> None:
    """Options that were not typed hide neither the environment nor the file."""
    (tmp_path / "a.toml").write_text(f"max_connections = 5\n[accounts.orders]\nkey1 = '{KEY}'")
    run("serve", "--config", str(tmp_path / "a.toml"), LEASEHOLD_PORT="7")
    (settings,) = served
    assert (settings.port, settings.max_connections) == (7, 5)
    assert settings.account_names() == ("orders",)


def test_unusable_settings_are_told(run: Any, served: list[Settings]) -> None:
    """Exit code 78, every reason with its origin, and no traceback."""
    tls = ("--tls-cert", "no.pem", "--tls-key", __file__)
    result = run("serve", "--port", "70000", *tls, LEASEHOLD_IDLE_TIMEOUT_S="5")
    assert result.exit_code == 78
    assert "port: is 70000; it must be 0 to 65,535 (option --port)" in result.output
    assert "idle_timeout_s" in result.output
    assert (
        "tls_cert: is 'no.pem', which does not exist or cannot be read (option --tls-cert)"
        in result.output
    )
    assert isinstance(result.exception, SystemExit)
    assert served == []


def test_unknown_option(run: Any) -> None:
    """A mistyped option is a mistake of usage."""
    result = run("serve", "--prt", "1")
    assert result.exit_code == 2
    assert "--port" in result.output


def test_settings_show_value_and_origin(run: Any) -> None:
    """Every setting is there, with where it came from; keys are masked."""
    result = run("settings", "--port", "7", LEASEHOLD_ACCOUNTS=f"orders:{KEY}")
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines()}
    assert list(rows) == list(all_settings())
    assert rows["port"].endswith("option --port")
    assert rows["host"].endswith("default")
    assert "orders (***)" in rows["accounts"]
    assert KEY not in result.output


def test_settings_as_json(run: Any) -> None:
    """Programs get the same as one object."""
    table = json.loads(run("settings", "--json", "--port", "7").output)
    assert table["port"] == {"value": "7", "origin": "option --port"}
    assert list(table) == list(all_settings())


def test_reference_page(run: Any) -> None:
    """The reference page can be written anew."""
    assert run("settings", "--reference").output.startswith("# Settings\n")
