"""Servers for the end-to-end tests, one of each kind per test process.

``LEASEHOLD_TEST_ENDPOINT``, a connection string, runs the tests against something else. Tests that
carry ``differs_on_azurite`` must then fail if it is an Azurite: the list of differences stays true.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.e2e.identity import IdentityProvider
from tests.e2e.server import Endpoint, Server, port_is_free

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDPOINT_VARIABLE: Final = "LEASEHOLD_TEST_ENDPOINT"
_SDKS: Final = ("azure_python", "azure_js", "mns_python", "mns_js")
DEVELOPMENT_PORT: Final = 10001  # what UseDevelopmentStorage=true stands for


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of known differences."""
    config.addinivalue_line(
        "markers",
        "differs_on_azurite(reason, run=True): what Azurite does unlike the service and us",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that drive the server through a vendor SDK."""
    folders = tuple(f"{Path(__file__).parent / name}{os.sep}" for name in _SDKS)
    for item in items:
        if str(item.path).startswith(folders):
            item.add_marker(pytest.mark.sdk)


@pytest.fixture(scope="session", autouse=True)
def _no_proxy() -> Iterator[None]:
    """Keep a proxy of the environment out of the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "*")
        yield


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Address of a server over plain http, or of what the environment names."""
    given = os.environ.get(ENDPOINT_VARIABLE)
    if given:
        yield Endpoint.from_connection_string(given)
        return
    with Server(tmp_path_factory.mktemp("server") / "data") as started:
        yield started


@pytest.fixture(scope="session")
def on_azurite(endpoint: Endpoint) -> bool:
    """Whether the tests run against Azurite."""
    return ENDPOINT_VARIABLE in os.environ and endpoint.is_azurite


@pytest.fixture(autouse=True)
def _expect_known_differences(request: pytest.FixtureRequest) -> None:
    """Expect tests to fail on Azurite that document a difference."""
    marker = request.node.get_closest_marker("differs_on_azurite")
    if marker is not None and request.getfixturevalue("on_azurite"):
        run = marker.kwargs.get("run", True)
        request.node.add_marker(pytest.mark.xfail(reason=marker.args[0], strict=True, run=run))


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> IdentityProvider:
    """An issuer of tokens that the server at ``tls_endpoint`` trusts."""
    if ENDPOINT_VARIABLE in os.environ:
        pytest.skip("tokens need a server that was started to trust them")
    return IdentityProvider(tmp_path_factory.mktemp("identity"))


@pytest.fixture(scope="session")
def tls_endpoint(
    tmp_path_factory: pytest.TempPathFactory, identity: IdentityProvider
) -> Iterator[Endpoint]:
    """Address of a server over https that accepts the tokens of ``identity``."""
    server = Server(
        tmp_path_factory.mktemp("tls-server") / "data",
        options=identity.server_options(),
        ca_file=identity.certificate_file,
    )
    with server as started:
        yield started


@contextlib.contextmanager
def development_server(data: Path) -> Iterator[Endpoint | None]:
    """Run a server on the port that ``UseDevelopmentStorage=true`` stands for; None if taken."""
    with exclusive(f"port-{DEVELOPMENT_PORT}"):
        if ENDPOINT_VARIABLE in os.environ or not port_is_free(DEVELOPMENT_PORT):
            yield None
            return
        with Server(data, port=DEVELOPMENT_PORT) as started:
            yield started


@pytest.fixture
def development_endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """Address of a server on the port that ``UseDevelopmentStorage=true`` stands for."""
    with development_server(tmp_path / "data") as started:
        if started is None:
            pytest.skip(f"no server of ours can listen on port {DEVELOPMENT_PORT}")
        yield started


@pytest.fixture
def own_account(endpoint: Endpoint) -> Iterator[Endpoint]:
    """The server, for one test at a time: what it changes belongs to the whole account."""
    with exclusive(f"account-{endpoint.port}"):
        yield endpoint


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Keep other test processes of this machine out while the context lasts."""
    path = Path(tempfile.gettempdir()) / f"leasehold-e2e-{name}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
