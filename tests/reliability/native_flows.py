"""Right requests about sessions, claims, transactions and commits, for the grammar to spoil."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from tests.reliability.native_grammar import NativeGrammar

ARROW: Final = "application/vnd.apache.arrow.stream"
QUEUES: Final = ("native-one", "native-two", "native-two-poison")
STREAMS: Final = ("daily", "a.b_c:d~e-9")
TRANSACTIONS: Final = tuple(f"batch:{number}" for number in range(40))

FLOWS: Final[dict[str, Callable[[NativeGrammar, dict[str, str]], Any]]] = {
    "POST {queue}/messages/{id}/cancel": lambda grammar, _: {"reason": grammar.text()},
    "POST {account}/sessions": lambda grammar, _: {
        "holder": grammar.text(),
        "timeout_s": 60,
        "progress_timeout_s": 600,
    },
    "POST {account}/sessions/{session}/heartbeat": lambda grammar, _: {
        "progress": {"x": {"fraction": 0.5, "note": grammar.text()}, "y": None}
    },
    "POST {account}/sessions/{session}/end": lambda grammar, _: {"reason": grammar.text()},
    "PUT {stream}": lambda *_: {},
    "PUT {stream}/claims/{claim}": lambda grammar, _: {
        "token": grammar.pool.token(),
        "limit": grammar.pick((1, 2, 50)),
        "lease_s": grammar.pick((1, 60)),
        "holder": grammar.text(),
        "max_bytes": 1_000_000,
        "accept_loss": True,
        "wait_s": 0.001,
    },
    "POST {stream}/claims/{claim}/extend": lambda grammar, _: {
        "token": grammar.pool.token(),
        "lease_s": 60,
        "park": True,
    },
    "POST {stream}/claims/{claim}/exemptions": lambda grammar, item: {
        "token": grammar.pool.token(),
        "exemptions": [
            {
                "id": item["id"],
                "outcome": grammar.pick(("failed", "interrupted", "returned", "buried")),
                "delay_s": 0,
                "error": {"text": grammar.text(), "type": "E"},
            }
        ],
    },
    "POST {stream}/claims/{claim}/bind": lambda grammar, _: {
        "token": grammar.pool.token(),
        "transaction": grammar.pick(TRANSACTIONS),
    },
    "POST {stream}/claims/{claim}/give-back": lambda grammar, _: {"token": grammar.pool.token()},
    "POST {stream}/settle": lambda grammar, item: {
        "token": grammar.pool.token(),
        "upto": grammar.pool.claim(),
        "exemptions": [
            {
                "number": grammar.pool.claim(),
                "id": item["id"],
                "outcome": grammar.pick(("failed", "interrupted", "returned", "buried")),
                "delay_s": 0,
                "error": {"text": grammar.text(), "type": "E"},
            }
        ],
        "publish": [grammar.pick(TRANSACTIONS)],
        "sends": [grammar.queued_item()],
    },
    "POST {transaction}/stage": lambda grammar, _: {
        "part": grammar.pick(("a", "b", "")),
        "chunk": grammar.pick((0, 0, 1)),
        "timeout_s": 60,
        "messages": [grammar.staged_item(), {"queue": QUEUES[0], "json": {"a": 1}}],
    },
    "POST {transaction}/publish": lambda grammar, _: {"parts": [grammar.pick(("a", "b"))]},
    "POST {transaction}/discard": lambda *_: {"parts": ["a", "b"]},
    "POST {account}/commit": lambda grammar, item: {
        "name": f"c{grammar.rng.random()}",
        "send": [grammar.queued_item()],
        "complete": [{"queue": grammar.pick(QUEUES), **item}],
        "release": [
            {
                "queue": grammar.pick(QUEUES),
                "id": "x",
                "receipt": item["receipt"],
                "outcome": "failed",
                "delay_s": 1,
                "error": {"text": grammar.text()},
            }
        ],
        "renew": [
            {
                "queue": grammar.pick(QUEUES),
                "id": "y",
                "receipt": item["receipt"],
                "visibility_timeout_s": 9,
                "body": grammar.text(),
                "progress": {"fraction": 1, "note": ""},
            }
        ],
        "publish": [grammar.pick(TRANSACTIONS)],
    },
}
"""As ``native_grammar.TEMPLATES``."""


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


_MAPS: Final = pa.map_(pa.string(), pa.string())
ARROWS: Final = tuple(
    _written(pa.table(columns))
    for columns in (
        {"body": ["a", "b"]},
        {"body": pa.array([b"a", b"\xff"], pa.large_binary()), "priority": [1, None]},
        {
            "body": ["a", "b"],
            "queue": ["native-one", None],
            "delay_s": [0, 1],
            "time_to_live_s": [-1, 60],
            "message_type": ["t", None],
            "properties": pa.array([[("k", "v")], None], _MAPS),
        },
    )
)
"""Streams of messages to stage."""
