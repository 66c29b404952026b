"""What a command that speaks to a server works with: the client, the screen, the time."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import httpx
from rich.console import RenderableType
from rich.live import Live

from leasehold.cli.asking import can_ask, confirm
from leasehold.cli.rendering import Screen
from leasehold.client import Client, QueueHandle
from leasehold.clock import Clock, SystemClock

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What tests replace: click hands it on as ``obj``."""

    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    transport: httpx.BaseTransport | None = None
    is_interactive: bool | None = None
    """Whether somebody can be asked; None: if standard input and error are a terminal."""


class Session:
    """Handed to every command that speaks to a server."""

    def __init__(
        self,
        client: Client,
        screen: Screen,
        around: Surroundings,
        ca_file: str | None = None,
    ) -> None:
        self.client = client
        self.screen = screen
        self._around = around
        self._ca_file = ca_file

    @property
    def now_ms(self) -> int:
        """This machine's time of day, Unix milliseconds."""
        return self._around.clock.now_ms()

    @property
    def is_interactive(self) -> bool:
        """Whether somebody can be asked."""
        if self._around.is_interactive is not None:
            return self._around.is_interactive
        return can_ask()

    def web(self, timeout_s: float) -> httpx.Client:
        """Return what fetches the server's own pages, which need no credential."""
        trusted = (
            None if self._ca_file is None else ssl.create_default_context(cafile=self._ca_file)
        )
        return httpx.Client(
            transport=self._around.transport,
            verify=True if trusted is None else trusted,
            timeout=timeout_s,
        )

    def queue(self, name: str) -> QueueHandle:
        """Return the handle of a queue."""
        return self.client.queue(name)

    def sleep(self, length_s: float) -> None:
        """Wait."""
        self._around.sleep(length_s)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only if the caller has said so, beforehand or now.

        Raises:
            click.UsageError: Nobody can be asked.
            click.exceptions.Exit: They said no.
        """
        if not yes:
            confirm(self.screen, question, is_interactive=self.is_interactive)

    def present(
        self,
        fetch: Callable[[], _T],
        render: Callable[[_T], RenderableType],
        lines: Callable[[_T], Iterable[object]] | None = None,
        every_s: float | None = None,
    ) -> None:
        """Show what *fetch* gives, once or again and again.

        Args:
            fetch: Asks the server.
            render: Shows it to people.
            lines: Makes one line of JSON of each part; None: it is one document.
            every_s: Seconds between two looks, until Ctrl+C; None: look once.
        """
        screen = self.screen

        def write(found: _T) -> None:
            if not screen.as_json:
                screen.show(render(found))
            elif lines is not None:
                for each in lines(found):
                    screen.line(each)
            elif every_s is None:
                screen.document(found)
            else:
                screen.line(found)

        if every_s is None:
            write(fetch())
            return
        try:
            if screen.is_terminal and not screen.as_json:
                self._refresh(fetch, render, every_s)
            while True:
                write(fetch())
                self.sleep(every_s)
        except KeyboardInterrupt:
            # It was to go on until then.
            return

    def _refresh(
        self, fetch: Callable[[], _T], render: Callable[[_T], RenderableType], every_s: float
    ) -> NoReturn:
        first = render(fetch())
        with Live(first, console=self.screen.out, auto_refresh=False) as live:
            while True:
                self.sleep(every_s)
                live.update(render(fetch()), refresh=True)


def open_session(given: dict[str, Any], around: Surroundings | None) -> Session:
    """Make a session from the options that all commands share.

    Raises:
        click.UsageError: They do not go together, or a connection string is malformed.
    """
    around = around or Surroundings(clock=SystemClock())
    screen = Screen(as_json=given["as_json"], no_color=given["no_color"])
    try:
        client = _client(given, around.transport)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"The server cannot be addressed: {error}.") from None
    return Session(client, screen, around, given["ca_file"])


def _client(given: dict[str, Any], transport: httpx.BaseTransport | None) -> Client:
    url, account, key_file = given["url"], given["account"], given["key_file"]
    common: dict[str, Any] = {"send_key": given["send_key"], "transport": transport}
    if given["ca_file"] is not None:
        common["ssl_context"] = ssl.create_default_context(cafile=given["ca_file"])
    if url is None and account is None and key_file is None:
        return Client.from_connection_string(given["connection_string"], **common)
    if given["connection_string"] is not None:
        raise click.UsageError(
            "--connection-string says all that --url, --account and --key-file say: give one or "
            "the other."
        )
    given_names = {"url": url, "account": account}
    common |= {name: value for name, value in given_names.items() if value is not None}
    if key_file is not None:
        common["key"] = Path(key_file).read_text("utf-8").strip()
    return Client(**common)
