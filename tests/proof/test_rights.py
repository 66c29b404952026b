"""The table of rights holds for a running server, in full; a table that is wrong is noticed."""

from __future__ import annotations

from base64 import b64encode
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest
from proof.rights import Asked, Asker, Right, ask_all, credentials, differences, read_table, spoiled

from leasehold.auth.types import Operation
from leasehold.clock import SystemClock
from leasehold.http.native.dialect import routes_for
from tests.e2e.identity import IdentityProvider
from tests.e2e.server import Server

if TYPE_CHECKING:
    from pathlib import Path

_ACCOUNT: Final = "rights"
_KEY, _SECOND_KEY, _INSPECTOR = (b64encode(char * 64).decode() for char in (b"1", b"2", b"i"))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[Asked]:
    """Every operation asked for with every credential, of a server over https."""
    folder = tmp_path_factory.mktemp("rights")
    tokens = IdentityProvider(folder / "issuer")
    config = folder / "leasehold.toml"
    _write_config(config)
    options = {"--config": str(config), **tokens.server_options()}
    with Server(folder / "data", options=options, ca_file=tokens.certificate_file) as endpoint:
        assert endpoint.ca_file is not None
        with closing(Asker(f"{endpoint.origin}/{_ACCOUNT}", endpoint.ca_file)) as asker:
            shown = credentials(
                name=_ACCOUNT,
                keys=(_KEY, _SECOND_KEY),
                inspector=_INSPECTOR,
                tokens=tokens,
                now_ms=SystemClock().now_ms(),
            )
            return ask_all(asker, read_table(), [*shown, *asker.sessions(_KEY, _INSPECTOR)])


def _write_config(path: Path) -> None:
    path.write_text(
        f'[accounts.{_ACCOUNT}]\nkey1 = "{_KEY}"\nkey2 = "{_SECOND_KEY}"\n'
        f'[inspectors.{_ACCOUNT}]\nkey1 = "{_INSPECTOR}"\n'
    )
    path.chmod(0o600)


def test_server_does_what_the_table_says(asked: list[Asked]) -> None:
    """For all pairs of an operation and a credential."""
    assert differences(asked) == []
    kinds = {each.allowed for each in asked}
    assert kinds == {True, False}


def test_table_is_complete() -> None:
    """It has a row for each operation of the Azure interface and each route of the native one."""
    rows = [(right.interface, right.operation) for right in read_table()]
    assert len(rows) == len(set(rows))
    azure = {name for interface, name in rows if interface == "azure"}
    assert azure == {operation.value for operation in Operation}
    native = {name for interface, name in rows if interface == "native"}
    assert native == {route.name for route in routes_for(test_mode=False)}


def test_each_wrong_cell_is_noticed(asked: list[Asked]) -> None:
    """Whatever cell of the table is changed, the answers of the server contradict it."""
    answers: dict[Right, list[Asked]] = defaultdict(list)
    for each in asked:
        answers[each.right].append(each)
    unnoticed = [
        wrong
        for right, found in answers.items()
        for wrong in spoiled(right)
        if not differences(each._replace(right=wrong) for each in found)
    ]
    assert unnoticed == []
