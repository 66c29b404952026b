"""Runs each test of this folder as a coroutine, once with each flavour of the SDK."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.azure_python.sdk import FLAVOURS, Flavour, Sdk

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.identity import IdentityProvider
    from tests.e2e.server import Endpoint


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker behind :func:`tests.e2e.azure_python.covers.covers`."""
    config.addinivalue_line("markers", "covers(members): what of the SDK the test exercises")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test, then check that it has exercised what it says it does."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    sdks = [value for value in pyfuncitem.funcargs.values() if isinstance(value, Sdk)]
    asyncio.run(_run(pyfuncitem.obj, arguments, sdks))
    used = {member for sdk in sdks for member in sdk.used}
    for marker in pyfuncitem.iter_markers("covers"):
        claimed = {m for m in marker.args[0] if m.startswith(("QueueClient.", "QueueServiceC"))}
        assert claimed <= used, f"declared but not exercised: {sorted(claimed - used)}"
    return True


async def _run(test: Callable[..., Any], arguments: dict[str, Any], sdks: list[Sdk]) -> None:
    try:
        await test(**arguments)
    finally:
        for sdk in sdks:
            await sdk.aclose()


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Which of the two SDKs."""
    chosen: Flavour = request.param
    return chosen


@pytest.fixture
def sdk(flavour: Flavour, endpoint: Endpoint) -> Sdk:
    """The SDK, aimed at the server over plain http with the account's key."""
    return Sdk(flavour, endpoint)


@pytest.fixture
def tls_sdk(flavour: Flavour, tls_endpoint: Endpoint) -> Sdk:
    """The SDK, aimed at the server that speaks https and takes tokens."""
    return Sdk(flavour, tls_endpoint)


@pytest.fixture
def token(identity: IdentityProvider) -> str:
    """A token that the server at ``tls_endpoint`` accepts."""
    return identity.token()
