"""Whatever is sent natively, the answer is one of the document's, and both protocols go on."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest

from tests.reliability.fuzz_shots import KEYS, PLAYGROUND, SENTINEL
from tests.reliability.native_cases import fire_cases
from tests.reliability.native_grammar import QUEUES, NativeGrammar
from tests.reliability.native_watch import Judgement, NativeClient, NativeSentinel, Sent
from tests.reliability.running import KillableServer
from tests.reliability.test_fuzz import client_of

_MEMORY_BYTES = 160 * 1024 * 1024
_TEND = 40
_FAILURES = ("internal_error", "http.application_failed", "Traceback")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableServer]:
    """A server with two accounts."""
    folder = tmp_path_factory.mktemp("native-fuzz")
    config = folder / "leasehold.toml"
    config.write_text("".join(f'[accounts.{name}]\nkey1 = "{KEYS[name]}"\n' for name in KEYS))
    options = {"--config": str(config), "--disk-reserve-mib": "4"}
    server = KillableServer(folder / "data", options=options)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def sentinel(server: KillableServer) -> Iterator[NativeSentinel]:
    """The account that must not change."""
    with client_of(server, SENTINEL) as azure, NativeClient(server.port) as native:
        yield NativeSentinel(azure, native)


class Range:
    """A playground to shoot in, and the judge who stands beside it."""

    def __init__(
        self, server: KillableServer, client: NativeClient, grammar: NativeGrammar
    ) -> None:
        self.server = server
        self.client = client
        self.grammar = grammar
        self.judgement = Judgement()
        self._fired = 0

    def fire(self, sent: Sent) -> None:
        """Send a request, judge the answer, and take what it gives out."""
        if self._fired % _TEND == 0:
            self.tend()
        self._fired += 1
        try:
            answer = self.client.send(sent)
        except TimeoutError:
            self.judgement.complain(sent, "hangs")
        except OSError as error:
            self.judgement.complain(sent, f"no answer: {error!r}")
        else:
            self.judgement.judge(sent, answer)
            self.grammar.pool.take_from(answer.body)

    def tend(self) -> None:
        """See that there are queues, and messages in all states in them."""
        ask = self.client.ask
        for queue in QUEUES:
            ask("PUT", f"queues/{queue}", {})
            ask("PATCH", f"queues/{queue}", {"settings": {"paused_until_ms": None}})
            messages = [self.grammar.put_item() for _ in range(6)]
            ask("POST", f"queues/{queue}/messages", {"messages": messages})
            leased = ask(
                "POST",
                f"queues/{queue}/messages/receive",
                {"max_messages": 3, "visibility_timeout_s": 600, "holder": "h"},
            )
            for message in leased["messages"][1:]:
                item = {"id": message["id"], "receipt": message["receipt"]}
                if message["fence"] % 2:
                    item |= {"outcome": "buried", "error": {"text": "tended"}}
                ask("POST", f"queues/{queue}/messages/release", {"items": [item]})

    def look_through_azure(self) -> None:
        """Read all that is there through the other protocol."""
        with client_of(self.server, PLAYGROUND) as azure:
            for query in ("comp=list", "comp=list&include=metadata"):
                answer = azure.call(azure.asked("GET", "", query))
                assert answer.status == 200, answer
                names = [each.text or "" for each in ET.fromstring(answer.body).iter("Name")]
            assert names
            for queue in names:
                reads = (
                    azure.asked("GET", queue, "comp=metadata"),
                    azure.asked("GET", f"{queue}/messages", "peekonly=true&numofmessages=32"),
                    *(
                        azure.asked(
                            "GET",
                            f"{queue}/messages",
                            f"peekonly=true&include=invisible&numofmessages=32&marker={marker}",
                        )
                        for marker in ("", "q20", "q200")
                    ),
                    azure.asked("GET", f"{queue}/messages", "numofmessages=32"),
                )
                for asked in reads:
                    answer = azure.call(asked)
                    assert answer.status == 200, (asked, answer)
                    if answer.body:
                        ET.fromstring(answer.body)


@pytest.fixture
def ground(server: KillableServer) -> Iterator[Range]:
    """A playground."""
    with NativeClient(server.port) as client:
        yield Range(server, client, NativeGrammar(1))


def run(ground: Range, sentinel: NativeSentinel, *, examples: int, odd: int) -> Judgement:
    """Fire requests of both sources; look at the server before, in between and after."""
    server, grammar = ground.server, ground.grammar
    before = sentinel.state()
    ground.tend()
    memory = server.rss_bytes()
    fire_cases(ground.fire, grammar.pool, grammar.rng, examples=examples, number=1)
    ground.look_through_azure()
    requests = grammar.requests()
    for number in range(odd):
        ground.fire(next(requests))
        if number % 500 == 499:
            ground.look_through_azure()
    ground.tend()
    ground.look_through_azure()
    grown = server.rss_bytes() - memory
    judgement = ground.judgement
    print(judgement.summary())  # noqa: T201 - figures for a person who runs it with -s
    print(f"memory grew by {grown / 2**20:.1f} MiB")  # noqa: T201
    assert judgement.complaints == [], "\n".join(judgement.complaints[:20])
    assert sentinel.state() == before
    assert grown < _MEMORY_BYTES
    assert not any(word in server.log for word in _FAILURES), server.log[-3000:]
    return judgement


def test_odd_requests_are_answered_as_documented(ground: Range, sentinel: NativeSentinel) -> None:
    """The quick part: some hundred requests of the document, and as many nasty ones."""
    judgement = run(ground, sentinel, examples=6, odd=700)
    assert judgement.kinds["schema, positive"] > 150
    assert judgement.kinds["schema, negative"] > 150
    assert len(judgement.codes) > 10
