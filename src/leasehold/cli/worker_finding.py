"""Finding what ``module:name`` means, from where the command was typed."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasehold.worker.handlers import Handler, is_async
from leasehold.worker.stages import Stages

_SHOWN: Final = 8


class NotFound(Exception):
    """There is no such thing, or it is not what it should be; the text is for people."""


class Target(NamedTuple):
    """What is to handle messages."""

    handler: Handler | Mapping[str, Handler]
    is_async: bool
    stages: Stages | None


def find_target(text: str, runner: str | None) -> Target:
    """Return the handler, or the pipeline, that *text* names.

    Args:
        text: ``module:name``; the name may have dots. A mapping has a handler for each queue.
        runner: What the user chose, if anything: in an event loop a pipeline is called otherwise.

    Raises:
        NotFound: See there.
    """
    found = find(text)
    if isinstance(found, Stages):
        in_loop = runner == "asyncio" or (runner is None and found.is_async)
        return Target(found.acall if in_loop else found, in_loop, found)
    if isinstance(found, Mapping):
        each = list(found.values())
        if each and all(map(callable, each)):
            return Target(found, any(map(is_async, each)), None)
    elif callable(found) and not isinstance(found, type):
        return Target(found, is_async(found), None)
    raise NotFound(f"{text} is {_kind(found)}, and no handler that could be called with a message")


def find_stages(text: str) -> Stages:
    """Return the pipeline that *text* names.

    Raises:
        NotFound: See there.
    """
    found = find(text)
    if isinstance(found, Stages):
        return found
    raise NotFound(f"{text} is {_kind(found)}, and no pipeline (leasehold.worker.stages.Stages)")


def find_function(text: str) -> Callable[..., Any]:
    """Return the function that *text* names.

    Raises:
        NotFound: See there.
    """
    found = find(text)
    if callable(found):
        function: Callable[..., Any] = found
        return function
    raise NotFound(f"{text} is {_kind(found)}, and cannot be called")


def find(text: str) -> Any:
    """Return what *text* names, in the current directory or among what is installed.

    Raises:
        NotFound: It is not there, or its module cannot be imported.
    """
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path):
        raise NotFound(f"{text!r} is not of the form module:name, such as jobs:handle")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _imported(module_name)
    module = found
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NotFound(
                f"module {module_name} has no {path}{_suggestion(module, path)}"
            ) from None
    return found


def told(error: BaseException) -> str:
    """Say what an error of the user's code is, and where in that code it came about."""
    here = str(Path.cwd())
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(here) and "site-packages" not in frame.filename
    ]
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({Path(error.filename).name}, line {error.lineno})"
    elif own:
        where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return type(error).__name__ + (f": {text}" if text else "") + where


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound(
                f"there is no module {error.name} in {Path.cwd()}, nor among what is installed"
            ) from None
        raise NotFound(f"module {name} cannot be imported: {told(error)}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit too
        raise NotFound(f"module {name} cannot be imported: {told(error)}") from None


def _suggestion(module: Any, path: str) -> str:
    """Say which names the user may have meant."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Stages) or getattr(value, "__module__", None) == module.__name__)
        and not isinstance(value, type)
        and callable(value)
    ]
    near = difflib.get_close_matches(path, own, n=_SHOWN, cutoff=0.5) or own[:_SHOWN]
    return f"; it has {', '.join(near)}" if near else ""


def _kind(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}"
    return f"of the type {type(found).__name__}"
