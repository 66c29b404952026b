"""What ``leasehold serve`` says to a person at a terminal."""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from leasehold.client import Client
from tests.unit.cli.terminal import Terminal

_KEY = base64.b64encode(b"secret of the account in the greeting").decode()
_LAST = "Press Ctrl+C to stop it."


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    """Begin a server in a terminal, with a data folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("LEASEHOLD_ACCOUNTS", "LEASEHOLD_CONFIG", "LEASEHOLD_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)

    def begin(*options: str, port: str = "0") -> Terminal:
        words = ("serve", "--port", port, "--mns-port", "off", *options)
        return Terminal(*words, columns=300, lines=12)

    return begin


def _is_greeted(lines: list[str]) -> bool:
    return _LAST in lines


def _shown(lines: list[str]) -> list[str]:
    return [line for line in lines if line]


def test_three_lines(serve: Callable[..., Terminal]) -> None:
    """Where it is, how to reach it, how to stop it; and a client gets there with that."""
    terminal = serve()
    address, connection, stop = _shown(terminal.until(_is_greeted))
    url = re.fullmatch(
        r"Leasehold \S+ listens at (http://127\.0\.0\.1:\d+), its console at \1/console/", address
    )
    assert url is not None
    assert stop == _LAST
    with Client.from_connection_string(connection.removeprefix("Connection string: ")) as client:
        assert client.url == url[1]
        assert client.queue("orders").create().name == "orders"
    terminal.type("\x03")
    assert terminal.ended() == 0
    assert b"[info" not in terminal.sent


def test_the_key_of_an_account_stays_secret(
    serve: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another account than that of development the connection string has no key."""
    monkeypatch.setenv("LEASEHOLD_ACCOUNTS", f"shop:{_KEY}")
    terminal = serve("--dev-account", "off", "--no-console")
    address, connection, _ = _shown(terminal.until(_is_greeted))
    assert "console" not in address
    assert re.search(
        r";AccountName=shop;AccountKey=KEY;QueueEndpoint=http://\S+/shop;$", connection
    )
    terminal.type("\x03")
    assert terminal.ended() == 0
    assert _KEY.encode() not in terminal.sent


def test_warnings_are_shown(serve: Callable[..., Terminal]) -> None:
    """After the greeting, too: here the second Ctrl+C ends what has not been answered."""
    terminal = serve()
    address = _shown(terminal.until(_is_greeted))[0]
    port = int(re.findall(r"127\.0\.0\.1:(\d+)", address)[0])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1")
        # Once this is answered, the server has read the half request before it.
        with urlopen(f"http://127.0.0.1:{port}/healthz"):
            pass
        terminal.type("\x03")
        while _is_listening(port):
            pass
        terminal.type("\x03")
        assert terminal.ended() == 130
    assert b"server.killed" in terminal.sent
    assert b"server.stopping" not in terminal.sent


def _is_listening(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)):
            return True
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it closed meanwhile
        return False


def test_a_chosen_log_is_kept(serve: Callable[..., Terminal]) -> None:
    """A level or format that is set is meant; the greeting comes all the same."""
    terminal = serve("--log-level", "info")
    terminal.until(_is_greeted)
    terminal.type("\x03")
    assert terminal.ended() == 0
    assert b"server.ready" in terminal.sent


@pytest.fixture
def taken_port() -> Iterator[str]:
    """A port at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


def test_a_port_in_use(serve: Callable[..., Terminal], taken_port: str) -> None:
    """One line: what is in use, and what to do."""
    terminal = serve(port=taken_port)
    assert terminal.ended() == 69
    (line,) = _shown(list(map(str.rstrip, terminal.screen.display)))
    what = f"cannot listen on 127.0.0.1 port {taken_port}: Address already in use"
    assert line == f"Error: {what}. Choose another port: --port N"


def test_a_folder_in_use(serve: Callable[..., Terminal], tmp_path: Path) -> None:
    """One line, with the process that uses it."""
    first = serve()
    first.until(_is_greeted)
    second = serve()
    assert second.ended() == 75
    (line,) = _shown(list(map(str.rstrip, second.screen.display)))
    what = f"data: {tmp_path / 'data'} is in use by another server (process {first.pid})"
    assert line == f"Error: {what}. Choose another folder: --data FOLDER"
    first.type("\x03")
    assert first.ended() == 0


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (("--data", "file/data"), 78, "Error: data: file/data cannot be used: Not a directory. "),
        (("--config", "none.toml"), 78, "Error: config: none.toml cannot be read: No such file "),
        (("--config", "file"), 78, "Error: config: file cannot be read: "),
    ],
)
def test_files_that_cannot_be_used(
    serve: Callable[..., Terminal], tmp_path: Path, options: tuple[str, ...], code: int, line: str
) -> None:
    """One line names the file and the reason."""
    (tmp_path / "file").write_text("this is no TOML")
    terminal = serve(*options)
    assert terminal.ended() == code
    (shown,) = _shown(list(map(str.rstrip, terminal.screen.display)))
    assert shown.startswith(line)
