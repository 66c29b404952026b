"""The order of the tests, and their logs: what is dear begins first."""

from __future__ import annotations

import functools
import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest
import structlog

import leasehold

ROOT: Final = Path(__file__).parent
SPARK: Final = ROOT / "spark"
"""These share one session of Spark in a process; its Java costs more than most of them."""
DEAR: Final = tuple(
    ROOT / name for name in ("docs/test_spark_examples.py", "reliability", "docs", "console", "e2e")
)
"""These start processes, and wait for them."""
_file: Path | None = None
"""Whose tests run."""

# Who compares two stores says what differs.
pytest.register_assert_rewrite("tests.property")
# An example may take any time: the machine may be busy with other things.
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")


def pytest_configure() -> None:
    """Have all events on stderr, those of servers too that tests of another kind have left open.

    On stdout they would be among what commands print. Tracebacks are plain: those with all local
    variables, which structlog writes where rich is installed, take half a second each.
    """
    importlib.import_module("leasehold.testing.server")  # notes first how logs are as they come
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*processors, renderer],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def pytest_report_header() -> str:
    """Say what is tested: `make setup` compiles, and edited sources run as they are."""
    return f"hot path: {leasehold.form()}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: nearly all that is made stays.

    It took a seventh of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with Spark in the first of two processes, with all else that is dear in the second.

    pytest-xdist gives each process a stretch of the list; one that has done its own takes from the
    end of another's.
    """
    spark = [item for item in items if _is_of_spark(item.path)]
    others = [item for item in items if not _is_of_spark(item.path)]
    dear = [item for item in others if _price(item.path) is not None]
    dear.sort(key=lambda item: _price(item.path) or 0)
    cheap = [item for item in others if _price(item.path) is None]
    before = max(0, len(items) // 2 - len(spark))
    items[:] = [*spark, *cheap[:before], *dear, *cheap[before:]]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let no collection of garbage look at what is there for good when a file begins.

    That is many thousand tests, and what earlier files have left, such as the modules of Spark and
    its friends. Whatever collects garbage itself took twenty times as long in a process that had
    used Spark.
    """
    global _file  # noqa: PLW0603 - there is one process
    if item.path != _file:
        _file = item.path
        gc.collect()
        gc.freeze()


@functools.cache
def _is_of_spark(path: Path) -> bool:
    return path.is_relative_to(SPARK)


@functools.cache
def _price(path: Path) -> int | None:
    """Return at which place of those that are dear a file is, if it is one of them."""
    for number, place in enumerate(DEAR):
        if path.is_relative_to(place):
            return number
    return None
