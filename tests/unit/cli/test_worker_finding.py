"""What ``module:name`` means, and what is said if it means nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.cli.worker_setup import NotFound, find, find_function, find_stages, find_target
from tests.unit.cli.worker_support import Folder, clean_modules


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A current directory with two modules."""
    monkeypatch.chdir(tmp_path)
    with clean_modules():
        made = Folder(tmp_path)
        made.write(
            "jobs",
            """
            from leasehold.worker.stages import Stages
            def handle(message): ...
            async def ahandle(message): ...
            class Handlers:
                def one(self, message): ...
                async def __call__(self, message): ...
            all_of_them = Handlers()
            pipeline = Stages()
            number = 3
            """,
        )
        yield made


def test_it_is_found_in_the_current_directory(folder: Folder) -> None:
    """Names may have dots."""
    assert find("w6_jobs:handle") is folder.module("jobs").handle
    assert find("w6_jobs:all_of_them.one").__name__ == "one"
    assert find("os:path.join").__name__ == "join"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("w6_jobs", "'w6_jobs' is not of the form module:name"),
        (":handle", "':handle' is not of the form"),
        (
            "w6_nothing:handle",
            r"there is no module w6_nothing in /.*, and none is installed\. Name a handler as",
        ),
        ("w6_jobs.sub:handle", r"there is no module w6_jobs.sub in"),
        ("w6_jobs:handel", "module w6_jobs has no handel; it has handle, ahandle$"),
        (
            "w6_jobs:zzz",
            "module w6_jobs has no zzz; it has handle, ahandle, all_of_them, pipeline$",
        ),
        ("w6_jobs:handle.zzz", r"module w6_jobs has no handle\.zzz"),
    ],
)
def test_what_is_not_there(text: str, complaint: str) -> None:
    """Is named, with what the user may have meant."""
    with pytest.raises(NotFound, match=complaint):
        find(text)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (
            "import w6_missing",
            "ModuleNotFoundError: No module named 'w6_missing' .w6_bad.py, line 2",
        ),
        ("x = (", "SyntaxError: '.' was never closed .w6_bad.py, line 2"),
        ("1 / 0", r"ZeroDivisionError: division by zero .w6_bad.py, line 2.$"),
        (
            "import json; json.loads('x')",
            r"JSONDecodeError: Expecting value.* .w6_bad.py, line 2.$",
        ),
        ("raise SystemExit(3)", r"SystemExit: 3 .w6_bad.py, line 2.$"),
    ],
)
def test_a_module_that_fails(folder: Folder, source: str, complaint: str) -> None:
    """The error is told with the user's own line, not that of a library."""
    folder.write("bad", f"\n{source}\n")
    with pytest.raises(NotFound, match=f"module w6_bad cannot be imported: {complaint}"):
        find("w6_bad:handle")


@pytest.mark.parametrize(
    ("name", "is_async"), [("handle", False), ("ahandle", True), ("all_of_them", True)]
)
def test_handlers(name: str, *, is_async: bool) -> None:
    """Functions, coroutine functions, and objects that are called like either."""
    target = find_target(f"w6_jobs:{name}", None)
    assert (target.is_async, target.stages) == (is_async, None)


def test_pipelines() -> None:
    """In an event loop a pipeline is called in the other way."""
    pipeline = find_stages("w6_jobs:pipeline")
    acall = pipeline.acall
    assert find_target("w6_jobs:pipeline", "asyncio").handler == acall
    assert find_target("w6_jobs:pipeline", None).handler is pipeline
    assert find_target("w6_jobs:pipeline", None).stages is pipeline


def test_what_is_something_else() -> None:
    """Is said to be that."""
    with pytest.raises(NotFound, match="is of the type int, and no handler"):
        find_target("w6_jobs:number", None)
    with pytest.raises(NotFound, match="is the class Handlers, and no handler"):
        find_target("w6_jobs:Handlers", None)
    with pytest.raises(NotFound, match="is of the type function, and no pipeline"):
        find_stages("w6_jobs:handle")
    with pytest.raises(NotFound, match="is of the type int, and cannot be called"):
        find_function("w6_jobs:number")
