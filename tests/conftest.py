"""The tiers of the tests, their logs, and the collection of garbage."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

import leasehold
from tests.by_file import ByFile, Total
from tests.durations import Stopwatch, announcement, function_id, moved_tests, tier_of

# Tests are rewritten before they run, and processes by the thousand import the same modules: that
# is kept, also where the environment says that Python shall keep nothing.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_file: Path | None = None
"""Whose tests run."""

# Who compares two stores says what differs.
pytest.register_assert_rewrite("tests.property")
# An example may take any time: the machine may be busy with other things.
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")


def pytest_configure(config: pytest.Config) -> None:
    """Have all events on stderr, those of servers too that tests of another kind have left open.

    On stdout they would be among what commands print. Tracebacks are plain: those with all local
    variables, which structlog writes where rich is installed, take half a second each.
    """
    # A shell that starts it in the background has it ignored, and so would each child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*processors, renderer],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    if ByFile.suits(config):
        config.pluginmanager.register(ByFile(config))
    elif config.getoption("numprocesses", default=None):
        config.pluginmanager.register(Total(config))
    tier = tier_of(config)
    is_full = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if tier is not None and is_full and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(tier))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say how long it takes, and what is tested: edited sources run as they are, not compiled."""
    return [line for line in (announcement(config), f"hot path: {leasehold.form()}") if line]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail a test during which a PostgreSQL of the tests met a deadlock."""
    yield
    postgres = sys.modules.get("tests.postgres")
    if postgres is not None and (deadlocks := postgres.take_deadlocks()):
        pytest.fail("PostgreSQL has met a deadlock:" + "\n\n".join(deadlocks), pytrace=False)


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what took long when it was recorded, before pytest chooses by marks."""
    moved = moved_tests()
    for item in items:
        if function_id(item.nodeid) in moved:
            item.add_marker(pytest.mark.long)


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
