"""That nothing of the SDK's public surface is left out."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from azure.storage import queue
from azure.storage.queue import (
    QueueMessage,
    QueueProperties,
    aio,
)

from tests.e2e.azure_python.covers import DECLARED, covers
from tests.e2e.azure_python.sdk import ASYNC_CLASSES, SYNC_CLASSES, Sdk


def _client_members(classes: dict[str, type[Any]]) -> set[str]:
    """Return the public members of the clients, and the arguments of their methods."""
    members = set()
    for class_name, client_class in classes.items():
        names = {name for name in dir(client_class) if not name.startswith("_")}
        for name in {*names, *_public_annotations(client_class), "__init__"}:
            if name != "__init__":
                members.add(f"{class_name}.{name}")
            member = getattr(client_class, name, None)
            if inspect.isroutine(member):
                members |= {f"{class_name}.{name}:{a}" for a in _arguments(member)}
    return members


def _arguments(function: Any) -> set[str]:
    """Return the names of the arguments that the function itself declares."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind not in kinds and p.name != "self"}


def _public_annotations(some_class: type[Any]) -> set[str]:
    return {name for name in getattr(some_class, "__annotations__", {}) if name[0] != "_"}


def _model_members() -> set[str]:
    """Return everything else that the package exports, and the fields of its models."""
    members = set()
    for name in set(queue.__all__) - set(SYNC_CLASSES):
        exported = getattr(queue, name)
        members.add(name)
        if inspect.isclass(exported) and not name.endswith("Retry"):
            members |= {f"{name}.{field}" for field in _public_annotations(exported)}
    return members


def _import_all_tests() -> None:
    for file in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"tests.e2e.azure_python.{file.stem}")


def test_every_public_member_is_exercised() -> None:
    """Each method, argument, property, model, field and function has a test that says so."""
    _import_all_tests()
    missing = (_client_members(SYNC_CLASSES) | _model_members()) - set(DECLARED)
    assert not missing, f"no test exercises {sorted(missing)}"


def test_nothing_is_declared_that_does_not_exist() -> None:
    """A member that the SDK has dropped or renamed shows up here."""
    _import_all_tests()
    surplus = set(DECLARED) - _client_members(SYNC_CLASSES) - _model_members()
    assert not {name for name in surplus if ".__init__" not in name}


def test_the_asynchronous_sdk_has_the_same_surface() -> None:
    """So that running each test with both flavours covers both."""
    assert set(aio.__all__) == set(ASYNC_CLASSES) == set(SYNC_CLASSES)
    assert _client_members(ASYNC_CLASSES) == _client_members(SYNC_CLASSES)


async def test_an_unkept_declaration_is_found(sdk: Sdk) -> None:
    """The record of calls knows methods, arguments given by position, and properties."""
    made = await sdk.new_queue()
    await made.send_message("x", time_to_live=5)
    _ = made.url
    assert {"QueueClient.send_message", "QueueClient.send_message:content"} <= sdk.used
    assert {"QueueClient.send_message:time_to_live", "QueueClient.url"} <= sdk.used
    assert "QueueClient.send_message:visibility_timeout" not in sdk.used
    assert "QueueClient.peek_messages" not in sdk.used


@covers("QueueMessage", "QueueProperties")
async def test_models_are_dictionaries_too(sdk: Sdk) -> None:
    """Messages and properties can be read as either."""
    made = await sdk.new_queue()
    sent = await made.send_message("x")
    received = await made.receive_message()
    assert received["id"] == received.get("id") == sent.id
    assert "pop_receipt" in received
    assert received.get("nothing") is None
    assert dict(received.items())["content"] == "x"
    assert set(received.keys()) == set(vars(QueueMessage()))
    assert received == QueueMessage(**{**dict(received.items()), "content": "x"})
    properties = await made.get_queue_properties()
    assert properties["name"] == made.queue_name
    assert properties.has_key("approximate_message_count")
    assert len(properties) == len(vars(QueueProperties()))


@pytest.mark.parametrize("letters", ["r", "rwdlacup", "rwdxylacupfti"])
def test_permissions_are_read_and_written_alike(letters: str) -> None:
    """Letters make permissions, and permissions letters."""
    sdk: Any = queue  # its class methods have no types
    assert sorted(str(sdk.AccountSasPermissions.from_string(letters))) == sorted(letters)
    assert str(sdk.QueueSasPermissions.from_string("raup")) == "raup"
    assert str(sdk.ResourceTypes.from_string("sco")) == "sco"
    assert str(sdk.Services.from_string("bqf")) == "bqf"
    assert str(sdk.Services(queue=True)) == "q"
