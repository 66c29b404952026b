"""The table of rights holds for a running server, in full; a table that is wrong is noticed."""

from __future__ import annotations

import re
from base64 import b64encode
from collections import defaultdict
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from proof.forged import forged_credentials
from proof.rights import (
    INTERFACES,
    ROLES,
    Asked,
    Asker,
    Credential,
    Holder,
    Right,
    ask_again,
    ask_all,
    credentials,
    differences,
    must_see_nothing,
    read_sealed,
    read_table,
    spoiled,
    told_apart,
)

from leasehold.auth.types import Operation
from leasehold.clock import SystemClock
from leasehold.http.mns.call import Operation as MnsOperation
from leasehold.http.mns.call import find_route, operation_of, parse_query
from leasehold.http.mns.dialect import ACTIONS, HANDLERS
from leasehold.http.native.dialect import routes_for
from tests.e2e.identity import IdentityProvider
from tests.e2e.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ACCOUNT, _OTHER, _ACCESS_KEY = "rights", "strangers", "LTAI5tRights"
_KEY, _SECOND_KEY, _INSPECTOR, _OTHERS_KEY = (
    b64encode(char * 64).decode() for char in (b"1", b"2", b"i", b"o")
)
_SECRET: Final = "a-secret-of-thirty-characters-"


class World(NamedTuple):
    """Every operation asked for with every credential, of a server over https."""

    asked: list[Asked]
    again: list[Asked]
    """What must see nothing, asked again when there was something to see."""
    states: tuple[list[Any], list[Any]]
    """What there was, before it was asked again and after."""
    seen: list[Asked]
    """What may look at the queue, asked again as well."""


_HOLDER: Final = Holder(
    name=_ACCOUNT,
    keys=(_KEY, _SECOND_KEY),
    inspector=_INSPECTOR,
    access_key=(_ACCESS_KEY, _SECRET),
    other=(_OTHER, _OTHERS_KEY),
)


class Served(NamedTuple):
    """A server over https, and what asks it."""

    asker: Asker
    tokens: IdentityProvider
    now_ms: int


@contextmanager
def _served(folder: Path) -> Iterator[Served]:
    tokens = IdentityProvider(folder / "issuer")
    config = folder / "leasehold.toml"
    _write_config(config)
    options = {"--config": str(config), **tokens.server_options()}
    server = Server(folder / "data", options=options, ca_file=tokens.certificate_file)
    with server as endpoint:
        assert endpoint.ca_file is not None
        mns_url = re.search(r"url_mns=(\S+)", server.log)
        assert mns_url is not None, server.log
        url = f"{endpoint.origin}/{_ACCOUNT}"
        with closing(Asker(url, mns_url[1], endpoint.ca_file)) as asker:
            yield Served(asker, tokens, SystemClock().now_ms())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """All that is asked in this module."""
    with _served(tmp_path_factory.mktemp("rights")) as (asker, tokens, now_ms):
        shown = credentials(_HOLDER, tokens, now_ms)
        shown += asker.delegated(tokens.token(roles=[ROLES["contributor"]]), now_ms)
        shown += asker.sessions(_KEY, _INSPECTOR)
        forged = forged_credentials(_HOLDER, "A" * 36, now_ms)
        shown += [credential for credential in forged if _is_asked_everywhere(credential)]
        asked = ask_all(asker, read_table(), shown)
        asker.make(_KEY)
        before = asker.state(_KEY)
        again = ask_again(asker, asked, must_see_nothing)
        after = asker.state(_KEY)
        seen = ask_again(asker, asked, _looks_at_the_queue)
        return World(asked, again, (before, after), seen)


def _is_asked_everywhere(forged: Credential) -> bool:
    """Tell whether it is no session, or one that its maker gains the most by."""
    is_session = forged.name.startswith("forged console-session")
    return not is_session or "operator by the holder of an inspector key" in forged.name


def _looks_at_the_queue(each: Asked) -> bool:
    names = {"get-queue-metadata", "get-queue", "mns-get-queue-attributes"}
    return each.allowed and each.right.operation in names and not each.credential.of_another


def _write_config(path: Path) -> None:
    path.write_text(
        f'[accounts.{_ACCOUNT}]\nkey1 = "{_KEY}"\nkey2 = "{_SECOND_KEY}"\n'
        f'[inspectors.{_ACCOUNT}]\nkey1 = "{_INSPECTOR}"\n'
        f'[accounts.{_OTHER}]\nkey1 = "{_OTHERS_KEY}"\n'
        f'[mns_keys.{_ACCESS_KEY}]\nsecret = "{_SECRET}"\naccount = "{_ACCOUNT}"\n'
    )
    path.chmod(0o600)


def test_server_does_what_the_table_says(world: World) -> None:
    """For all pairs of an operation and a credential."""
    assert differences(world.asked) == []
    for interface in INTERFACES:
        found = {each.allowed for each in world.asked if each.right.interface == interface}
        assert found == {True, False}


def test_table_is_complete() -> None:
    """It has a row for each operation of the Azure interface and each route of the native one."""
    rows = [(right.interface, right.operation) for right in read_table()]
    assert len(rows) == len(set(rows))
    azure = {name for interface, name in rows if interface == "azure"}
    assert azure == {operation.value for operation in Operation}
    native = {name for interface, name in rows if interface == "native"}
    assert native == {route.name for route in routes_for(test_mode=False)}
    mns = {name for interface, name in rows if interface == "mns"}
    assert mns == {operation.value for operation in MnsOperation}
    assert {*HANDLERS, *ACTIONS, MnsOperation.BATCH_SEND_MESSAGE} == set(MnsOperation)


def test_sealed_things_are_forged_by_every_lesser_holder(world: World) -> None:
    """Each row of a sealed thing that users could make has been tried, and opened nothing."""
    forged = [asked for asked in world.asked if asked.credential.name.startswith("forged ")]
    tried = {asked.credential.name.split(" ")[1].rstrip(",") for asked in forged}
    others = {
        "bearer-token": "tests of credentials: forged, of another issuer, of another audience",
        "console-csrf-token": "sent with each forged session; tests/unit/http/console",
        "oidc-state": "tests/unit/http/console/test_oidc.py",
        "receipt": "tests/contract/stores/test_receipts.py",
    }
    assert tried | set(others) == {right.operation for right in read_sealed()}
    assert tried & set(others) == set()
    assert [asked for asked in forged if asked.allowed and not asked.right.is_open] == []


@pytest.mark.long
def test_no_holder_makes_a_session(tmp_path: Path) -> None:
    """In every kind, role and form, of every secret that users know, on every route."""
    with _served(tmp_path) as served:
        forged = [
            credential
            for credential in forged_credentials(_HOLDER, "A" * 36, served.now_ms)
            if credential.name.startswith("forged console-session")
        ]
        native = [right for right in read_table() if right.interface == "native"]
        allowed = [
            f"{asked.right.operation} by {asked.credential.name}"
            for asked in ask_all(served.asker, native, forged)
            if asked.allowed and not asked.right.is_open
        ]
        assert len(forged) == 320
        assert allowed == []


def test_rows_of_mns_name_their_operation() -> None:
    """Each request is of the operation that its row is about."""
    for right in read_table():
        if right.interface != "mns":
            continue
        path, _, query = right.path.replace("{queue}", "q").partition("?")
        found = operation_of(
            find_route(path).kind, right.method, parse_query(query), has_body=bool(right.body)
        )
        # Of a send, the document says whether it is one of several messages.
        is_batch = found is MnsOperation.SEND_MESSAGE and b"Messages" in right.body
        assert (MnsOperation.BATCH_SEND_MESSAGE if is_batch else found) == right.operation


def test_whoever_is_refused_finds_nothing_out(world: World) -> None:
    """The same answer, to the byte, whether there is something or not; and nothing is changed."""
    assert told_apart(world.asked, world.again) == []
    before, after = world.states
    assert after == before
    assert {each.right for each in world.again} == set(read_table())


def test_whoever_may_look_finds_it_out(world: World) -> None:
    """Control: each answer to them is another one when the queue is there."""
    assert len(told_apart(world.asked, world.seen)) == len(world.seen)
    assert {each.right.interface for each in world.seen} == set(INTERFACES)


def test_each_wrong_cell_is_noticed(world: World) -> None:
    """Whatever cell of the table is changed, the answers of the server contradict it."""
    answers: dict[Right, list[Asked]] = defaultdict(list)
    for each in world.asked:
        answers[each.right].append(each)
    unnoticed = [
        wrong
        for right, found in answers.items()
        for wrong in spoiled(right)
        if not differences(each._replace(right=wrong) for each in found)
    ]
    assert unnoticed == []
