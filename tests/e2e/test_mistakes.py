"""Sixty mistakes of new users, each answered with what is wrong and what to type instead."""

from __future__ import annotations

import base64
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from click.testing import CliRunner

from leasehold.cli import main
from leasehold.client import AsyncClient, Client
from leasehold.worker import Worker
from tests.e2e.server import Endpoint, Server

_ID: Final = "00000000-0001-8abc-9def-0123456789ab"


@dataclass(frozen=True, slots=True)
class World:
    """A server with two queues, a program that is no server of queues, and some files."""

    endpoint: Endpoint
    client: Client
    folder: Path
    other_url: str

    def words(self, line: str) -> list[str]:
        """Return the words of a command line, with what is in this world for its placeholders."""
        names = {
            "ORIGIN": self.endpoint.origin,
            "HTTPS": self.endpoint.origin.replace("http:", "https:"),
            "CONNECTION": self.endpoint.connection_string,
            "OTHER": self.other_url,
            "FOLDER": str(self.folder),
        }
        for name, value in names.items():
            line = line.replace(f"${name}", f"'{value}'" if ";" in value else value)
        return shlex.split(line)


class _Page(BaseHTTPRequestHandler):
    """A web page, where a server of queues was expected."""

    def do_GET(self) -> None:
        """Answer with a page."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>A page</html>")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The world in which the mistakes happen."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "wrong.key").write_text(base64.b64encode(b"x" * 64).decode())
    (folder / "no-base64.key").write_text("secret!")
    page = HTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=page.serve_forever, daemon=True)
    thread.start()
    with (
        Server(folder / "data") as endpoint,
        Client.from_connection_string(endpoint.connection_string) as client,
    ):
        for name in ("orders", "mails"):
            client.queue(name).create()
        yield World(endpoint, client, folder, f"http://127.0.0.1:{page.server_port}")
    page.shutdown()
    page.server_close()
    thread.join()


def is_like(expected: str, text: str) -> bool:
    """Tell whether a text is what was expected, in which ... stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("..."))), text) is not None


class Typed(NamedTuple):
    """A command line, and what it is answered with."""

    line: str
    first_line: str
    """All of the first line on standard error; ... stands for anything."""
    code: int = 2
    has_server: bool = True
    """Whether AZURE_STORAGE_CONNECTION_STRING names the server."""


_NEAR_ORDERS: Final = (
    "Refused: There is no queue `{0}` in account `devstoreaccount1`. Near: `orders`. "
    r"Create it: leasehold queue create {0}"
)
COMMANDS: Final = [
    Typed(
        "receive orders",
        "Error: There is no command 'receive'. Type: leasehold message receive orders",
    ),
    Typed(
        f"message delete orders {_ID}",
        "Error: There is no command 'message delete'. Type one of: "
        "leasehold message complete QUEUE [ID] [RECEIPT] (its work is done), "
        "leasehold message remove QUEUE ID (for good, without a receipt)",
    ),
    Typed(
        "get orders",
        "Error: There is no command 'get'. Type: leasehold message receive orders",
    ),
    Typed(
        "publish orders hello",
        "Error: There is no command 'publish'. Type: leasehold send orders hello",
    ),
    Typed(
        "purge orders",
        "Error: There is no command 'purge'. Type: leasehold queue purge orders",
    ),
    Typed("ls", "Error: There is no command 'ls'. Type: leasehold queue list"),
    Typed(
        "queue rm orders",
        "Error: There is no command 'queue rm'. Type: leasehold queue delete orders",
    ),
    Typed(
        "dlq orders",
        "Error: There is no command 'dlq'. Type: leasehold message list --state poisoned orders",
    ),
    Typed("quue list", "Error: There is no command 'quue'. Type: leasehold queue list"),
    Typed(
        "ack orders ID RECEIPT",
        "Error: There is no command 'ack'. Type: leasehold message complete orders ID RECEIPT",
    ),
]
NAMES: Final = [
    Typed("message receive ordres", _NEAR_ORDERS.format("ordres"), 1),
    Typed("send Orders hello", _NEAR_ORDERS.format("Orders"), 1),
    Typed(
        "queue create Orders",
        "Clients of Azure cannot use the name 'Orders': ... Type: leasehold queue create orders",
        0,
    ),
    Typed(
        "queue create 'my orders'",
        "Refused: 'my orders' is not a valid queue name: the name may hold ... Use ...",
        1,
    ),
    Typed(
        "message receive orders --max-messages 5",
        "Error: leasehold message receive has no option '--max-messages'. "
        "Type: leasehold message receive orders --max 5",
    ),
    Typed(
        "send orders hello --ttl 1h",
        "Error: leasehold send has no option '--ttl'. "
        "Type: leasehold send orders hello --time-to-live 1h",
    ),
    Typed(
        "message show orders 123",
        "Refused: Queue `orders` holds no message `123`... List ...: leasehold message list orders",
        1,
    ),
    Typed(
        "queue set orders --reset visibility_timeout",
        "Error: --reset is 'visibility_timeout'. Type: --reset visibility-timeout",
    ),
    Typed(
        "worker run json:dumps --queue ordres",
        "Error: There is no queue `ordres` (leasehold at http...). Near: `orders`. "
        "Create it: leasehold queue create ordres",
        1,
    ),
    Typed(
        "worker run jobz:handle --queue orders",
        "Error: handler: there is no module jobz in ... Name a handler as MODULE:HANDLER...",
    ),
]
VALUES: Final = [
    Typed(
        "send orders hello --delay 5minutes",
        "Error: --delay: '5minutes' is no length of time: write seconds, or 90s, 5m, 2h, 7d.",
    ),
    Typed(
        "message receive orders --max three",
        "Error: --max is 'three'; it must be a whole number from 1 to 10,000. Type: --max 1",
    ),
    Typed(
        "message receive orders --max 0",
        "Error: --max is '0'; it must be a whole number from 1 to 10,000. Type: --max 1",
    ),
    Typed(
        "queue create parcels --visibility-timeout 1000ms",
        "Error: --visibility-timeout: '1000ms' is no length of time: write seconds, or 90s, ...",
    ),
    Typed(
        "send orders hello --priority high",
        "Error: --priority is 'high'; it must be a whole number from 1 to 16. Type: --priority 1",
    ),
    Typed(
        "send orders hello --time-to-live forever",
        "Error: --time-to-live: 'forever' is no length of time: write ..., or 'never'.",
    ),
    Typed(
        "message receive orders --wait 1h",
        "Refused: --wait is 3,600; it may be from 0 to 60. ...",
        1,
    ),
    Typed(
        "queue set orders --visibility-timeout 30d",
        "Refused: --visibility-timeout is 2,592,000; it may be from 1 to 604,800. ...",
        1,
    ),
    Typed(
        "queue create large --max-body-bytes 64KiB",
        "Error: --max-body-bytes is '64KiB'; it must be a whole number from 1 to 67,108,864. "
        "Type: --max-body-bytes 1",
    ),
    Typed(
        "serve --port abc",
        "Error: port: is 'abc'; it must be a whole number, 0 to 65,535 (option --port)",
        78,
    ),
]
SERVERS: Final = [
    Typed(
        "queue list --url http://127.0.0.1:1",
        "Error: No Leasehold server can be reached at http://127.0.0.1:1: ...leasehold serve...",
        3,
    ),
    Typed(
        "queue list --url localhost:10001",
        "Error: --url is 'localhost:10001'; it must begin with http:// or https://. "
        "Type: --url http://localhost:10001",
    ),
    Typed(
        "queue list --url $ORIGIN --account shop",
        "Error: Account 'shop' needs a key. Type: --key-file FILE, ...",
        has_server=False,
    ),
    Typed(
        "queue list --connection-string 'AccountName=shop;AccountKey=c2VjcmV0'",
        "Error: --connection-string: QueueEndpoint is missing... Add QueueEndpoint=http...",
    ),
    Typed(
        "queue list --url $ORIGIN --key-file $FOLDER/wrong.key",
        "Refused: The key is not that of the account. Check ...--key-file...",
        1,
    ),
    Typed(
        "queue list --key-file $FOLDER/none.key",
        "Error: --key-file: File '...none.key' does not exist. Type the path of ...",
    ),
    Typed(
        "queue list --url $ORIGIN --key-file $FOLDER/no-base64.key",
        "Error: --key-file: the account key is not base64... Put ... in the file...",
    ),
    Typed(
        "queue list --url $HTTPS",
        "Error: The server at https://127.0.0.1:... does not speak https. Use http://127.0.0.1:...",
        3,
    ),
    Typed(
        "queue list --url $OTHER",
        "Error: http://127.0.0.1:... answered 200 with ... no Leasehold server... Type: --url ...",
        3,
    ),
    Typed(
        "queue list --url $ORIGIN --connection-string $CONNECTION",
        "Error: --connection-string and --url exclude each other. Type one of them...",
    ),
]
ORDERS: Final = [
    Typed(
        "orders send hello",
        "Error: There is no command 'orders'. Type: leasehold send orders hello",
    ),
    Typed(
        "message orders receive",
        "Error: There is no command 'message orders'. Type: leasehold message receive orders",
    ),
    Typed(
        "queue parcels create",
        "Error: There is no command 'queue parcels'. Type: leasehold queue create parcels",
    ),
    Typed(
        "--url $ORIGIN queue list",
        "Error: Options stand behind the command. Type: leasehold queue list --url http://127...",
    ),
    Typed(
        "send hello",
        "Error: There is no body: ... Type: leasehold send hello BODY, with the queue first...",
    ),
    Typed(
        "send orders hello world",
        "Error: leasehold send takes QUEUE [BODY|-], and 'world' is one too many. "
        "Type: leasehold send orders 'hello world'",
    ),
    Typed(
        f"message complete orders AAAAAAAABQAAAAFI0nwM7oHxE7Ocz64hm2SK {_ID}",
        "Error: The ID and the RECEIPT are in the wrong order. "
        f"Type: leasehold message complete orders {_ID} AAAAAAAABQAAAAFI0nwM7oHxE7Ocz64hm2SK",
    ),
    Typed(
        f"message show {_ID} orders",
        "Error: The QUEUE and the ID are in the wrong order. "
        f"Type: leasehold message show orders {_ID}",
    ),
    Typed(
        "stats orders",
        "Error: leasehold stats takes no arguments, and 'orders' is one too many. "
        "Type: leasehold stats --prefix orders",
    ),
    Typed(
        "queue counts --watch orders",
        "Error: --watch is 'orders'; it must be a number of seconds. "
        "Type: leasehold queue counts orders --watch",
    ),
]
TYPED: Final = {
    f"{kind}: {typed.line}": typed
    for kind, rows in {
        "wrong command": COMMANDS,
        "wrong name": NAMES,
        "wrong type or unit": VALUES,
        "wrong server or key": SERVERS,
        "wrong order of arguments": ORDERS,
    }.items()
    for typed in rows
}


def handle(message: object) -> None:
    """Do nothing with a message."""


CALLS: Final[dict[str, tuple[Callable[[World], object], str]]] = {
    "Client.from_connection_string(None)": (
        lambda _: Client.from_connection_string(None),  # type: ignore[arg-type]  # the mistake
        "InvalidConnectionString: the connection string is None: ... leave the argument out ...",
    ),
    "Client(connection_string)": (
        lambda world: Client(world.endpoint.connection_string),
        "ValueError: the url is a connection string: ...Client.from_connection_string...",
    ),
    "Client(url, 'shop')": (
        lambda world: Client(world.endpoint.origin, "shop"),
        "ValueError: account 'shop' has no credential: give exactly one of key, sas and ...",
    ),
    "client.queue(None)": (
        lambda world: world.client.queue(None),  # type: ignore[arg-type]  # the mistake
        'TypeError: the name of a queue is a str, not NoneType: client.queue("orders")',
    ),
    "client.queue('ordres').receive()": (
        lambda world: world.client.queue("ordres").receive(),
        (
            "QueueNotFound: queue-not-found: There is no queue `ordres` in account "
            "`devstoreaccount1`. Near: `orders`. Create it with client.queue('ordres').create()."
        ),
    ),
    "queue.put({...})": (
        lambda world: world.client.queue("orders").put({"order": 17}),  # type: ignore[arg-type]
        "TypeError: a body is str or bytes, not dict; ... json.dumps",
    ),
    "queue.put('x', delay_s='5m')": (
        lambda world: world.client.queue("orders").put("x", delay_s="5m"),  # type: ignore[arg-type]
        (
            "ServerProblem: invalid-request: `$.messages[0].delay_s` takes a whole number of "
            "seconds or null, not text..."
        ),
    ),
    "queue.complete(message.id)": (
        lambda world: world.client.queue("orders").complete(_ID),  # type: ignore[arg-type]
        "TypeError: ... a received message or a LeaseRef, not str...",
    ),
    "Worker(handle, async_client.queue('orders'))": (
        lambda _: Worker(handle, AsyncClient().queue("orders")),  # type: ignore[arg-type]
        "TypeError: a worker ... not AsyncQueueHandle; ...Client...queue...",
    ),
    "Worker(handle, 'orders')": (
        lambda _: Worker(handle, "orders"),
        "ValueError: 'orders' is no address of a queue...leasehold:///orders...",
    ),
}


def test_there_are_sixty() -> None:
    """Ten mistakes of each of six kinds."""
    kinds = [COMMANDS, NAMES, VALUES, SERVERS, ORDERS, CALLS]
    assert [len(rows) for rows in kinds] == [10] * 6
    assert len(TYPED) == 50


@pytest.mark.parametrize("typed", TYPED.values(), ids=TYPED)
def test_command_lines(world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line says what is wrong and what to type; the exit code is the documented one."""
    monkeypatch.chdir(world.folder)
    connection = world.endpoint.connection_string if typed.has_server else None
    env = {"AZURE_STORAGE_CONNECTION_STRING": connection, "COLUMNS": "400"}
    result = CliRunner().invoke(main, world.words(typed.line), env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    first_line = result.stderr.partition("\n")[0]
    assert is_like(typed.first_line, first_line), result.output
    assert result.exit_code == typed.code


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls(world: World, call: tuple[Callable[[World], object], str]) -> None:
    """The first line of the exception says what is wrong and what to write."""
    make, expected = call
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text names the class
        make(world)
    first_line = f"{type(caught.value).__name__}: {caught.value}".partition("\n")[0]
    assert is_like(expected, first_line), first_line


def test_worker_takes_a_handle(world: World) -> None:
    """The handle of a queue that a client gives is a queue for a worker."""
    handle_of_queue = world.client.queue("orders")
    handle_of_queue.put("hello")
    bodies: list[str] = []
    Worker(lambda message: bodies.append(message.text), handle_of_queue).run_until_idle(60)
    assert bodies == ["hello"]
    assert handle_of_queue.counts().total == 0  # the client is still open
