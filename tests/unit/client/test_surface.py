"""The two clients are the same, and what is public is what is said to be."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import leasehold.client
from leasehold.client import (
    AsyncClient,
    AsyncQueueHandle,
    Client,
    QueueHandle,
    errors,
    handles,
    models,
)

ROOT = Path(__file__).resolve().parents[3]
RENAMED = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}


def test_the_synchronous_client_is_up_to_date() -> None:
    """What is in the tree is what the tool makes of the asynchronous source."""
    done = subprocess.run(
        [sys.executable, "tools/make_sync.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


PAIRS = [
    (AsyncClient, Client),
    (AsyncQueueHandle, QueueHandle),
    (handles.AsyncTestControl, handles.TestControl),
    (handles.AsyncSession, handles.Session),
    (handles.AsyncStream, handles.Stream),
    (handles.AsyncTransaction, handles.Transaction),
]


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_both_clients_have_the_same_methods(asynchronous: type, synchronous: type) -> None:
    """Names, arguments and defaults agree."""

    def public(kind: type) -> dict[str, list[tuple[str, object]]]:
        members = inspect.getmembers(kind, callable)
        return {
            RENAMED.get(name, name): [
                (each.name, each.default) for each in inspect.signature(member).parameters.values()
            ]
            for name, member in members
            if not name.startswith("_")
            or name == "__init__"
            or name in {*RENAMED, *RENAMED.values()}
        }

    expected = public(asynchronous)
    assert len(expected) > 4
    assert {name: public(synchronous).get(name) for name in expected} == expected


def test_exports_are_sorted_and_there() -> None:
    """What __all__ names exists, in order, and is not too much to look at."""
    names = leasehold.client.__all__
    assert names == sorted(names)
    assert len(names) <= 15
    assert all(hasattr(leasehold.client, name) for name in names)
    assert set(names) <= set(dir(leasehold.client))
    with pytest.raises(AttributeError, match="AsyncThing"):
        leasehold.client.AsyncThing  # noqa: B018 - to look for it is the test


def test_the_client_does_not_bring_the_server_along() -> None:
    """To import it needs neither the server's modules nor its dependencies.

    Nor httpx and what that brings for its own command line, which the first client loads, nor
    asyncio, which the client for threads never does.
    """
    program = (
        "import sys, leasehold.client\n"
        "brought = 'httpx', 'httpcore', 'h11', 'certifi', 'rich', 'click', 'pygments'\n"
        "bad = ('asyncio', 'leasehold.http', 'leasehold.engine', 'leasehold.stores',"
        " 'leasehold.server', 'leasehold.cli', 'apsw', 'httptools', 'structlog', 'jwt', *brought)\n"
        "print([name for name in bad if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_model_and_handle_is_exported() -> None:
    """Wherever a class of models is defined, it is found in one place."""
    for module in (models, handles):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        assert all(hasattr(module, name) for name in module.__all__)
    found = {
        name
        for name, value in vars(models).items()
        if inspect.isclass(value) and value.__module__.startswith("leasehold.client")
    }
    assert found <= set(models.__all__)


def test_the_tree_of_errors_is_complete() -> None:
    """Each class stands in the picture at the top of the module."""
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert errors.__doc__ is not None
    assert {name for name in classes if name not in errors.__doc__} == set()


@pytest.mark.parametrize("kind", [each for pair in PAIRS for each in pair])
def test_each_method_is_documented(kind: type) -> None:
    """A public method says what it does, and names each argument unless it points elsewhere."""
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_"):
            continue
        text = inspect.getdoc(member) or ""
        assert text, name
        for argument in list(inspect.signature(member).parameters)[1:]:
            short = ":meth:" in text or len(text.splitlines()) < 6
            assert short or f"{argument}:" in text or f"*{argument}*" in text, (name, argument)
