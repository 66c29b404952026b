"""Requests that schemathesis makes of the OpenAPI document, right ones and wrong ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from tests.reliability.fuzz_shots import PLAYGROUND
from tests.reliability.native_flows import ARROW, QUEUES, STREAMS, TRANSACTIONS
from tests.reliability.native_grammar import Pool
from tests.reliability.native_nasty import tamed
from tests.reliability.native_watch import Sent
from tests.unit.http.native.checking import document

_MODES: Final = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
_SENT_BY_US: Final = frozenset(("authorization", "content-length", "host", "connection"))


def aimed_document() -> dict[str, Any]:
    """Return the document with accounts and queues that there are, and no credentials to guess."""
    aimed: dict[str, Any] = json.loads(json.dumps(document()))
    aimed["security"] = []
    components = aimed["components"]
    del components["securitySchemes"]
    components["parameters"]["Account"]["schema"] = {"enum": [PLAYGROUND]}
    components["parameters"]["Queue"]["schema"] = {"enum": list(QUEUES)}
    components["parameters"]["Stream"]["schema"] = {"enum": list(STREAMS)}
    components["parameters"]["TransactionName"]["schema"] = {"enum": list(TRANSACTIONS)}
    for path in aimed["paths"].values():
        for operation in path.values():
            # It has no grammar for these; ours draws them.
            content = operation["requestBody"]["content"] if "requestBody" in operation else {}
            content.pop(ARROW, None)
    return aimed


def fire_cases(
    fire: Callable[[Sent], None], pool: Pool, rng: random.Random, *, examples: int, number: int
) -> None:
    """Draw so many requests for each operation, right ones and as many wrong ones, and send them.

    Args:
        fire: Sends a request and judges the answer.
        pool: What answers have given out; it takes the place of drawn ids and receipts.
        rng: Decides where it does.
        examples: Requests per operation and kind.
        number: The seed.
    """
    schema = schemathesis.openapi.from_dict(aimed_document())
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        for mode in _MODES:
            one = _shot_of(f"schema, {mode.value}", fire, pool, rng)
            drawn = given(operation.as_strategy(generation_mode=mode))(one)
            quiet = settings(
                max_examples=examples,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            try:
                seed(number)(quiet(drawn))()
            except Unsatisfiable:
                continue  # nothing about the operation can be wrong


def _shot_of(
    kind: str, fire: Callable[[Sent], None], pool: Pool, rng: random.Random
) -> Callable[[Any], None]:
    def one(case: Any) -> None:
        _lead(case, pool, rng)
        fire(_sent(case, kind))

    return one


def _lead(case: Any, pool: Pool, rng: random.Random) -> None:
    """Put what exists in place of most ids and receipts, which nobody can guess."""
    given_path = case.path_parameters or {}
    if rng.random() < 0.8:
        message_id, _ = pool.held()
        for name, value in (
            ("id", message_id),
            ("job_id", pool.job()),
            ("session_id", pool.session()),
            ("number", pool.claim()),
        ):
            if name in given_path:
                given_path[name] = value
    body = case.body
    if isinstance(body, dict) and "token" in body and rng.random() < 0.8:
        body["token"] = pool.token()
    items = body.get("items") if isinstance(body, dict) else None
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and "id" in item and "receipt" in item and rng.random() < 0.8:
            item["id"], item["receipt"] = pool.held()


def _sent(case: Any, kind: str) -> Sent:
    prepared = requests.Request(
        **{
            name: value
            for name, value in case.as_transport_kwargs(base_url="http://127.0.0.1").items()
            if name in {"method", "url", "params", "json", "data", "headers"}
        }
    ).prepare()
    address = urlsplit(prepared.url or "")
    body = prepared.body or b""
    assert isinstance(body, bytes | str)
    return Sent(
        kind=kind,
        method=prepared.method or "",
        path=str(address.path),
        query=str(address.query),
        body=tamed(body.encode() if isinstance(body, str) else body),
        headers=tuple(
            (name, value if isinstance(value, str) else value.decode("latin-1"))
            for name, value in prepared.headers.items()
            if name.lower() not in _SENT_BY_US
        ),
    )
