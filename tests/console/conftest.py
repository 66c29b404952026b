"""A browser for the tests of a process, and windows of it on servers of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.console.harness import CHROMIUM, SHOWN_MS, Visit, World, find_chromium, launch


# Playwright leaves a running event loop in its thread, in which other tests could start none: so
# the browser ends with the last of these tests, not with the process.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Start Chromium once for the tests of this folder."""
    path = find_chromium()
    if path is None:
        reason = f"no Chromium: install Debian's package chromium, or name another in {CHROMIUM}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    expect.set_options(timeout=SHOWN_MS)
    with sync_playwright() as playwright:
        started = launch(playwright, path)
        yield started
        started.close()


@pytest.fixture
def world() -> Iterator[World]:
    """Give a server without a queue."""
    with World() as started:
        yield started


Visitor = Callable[..., Visit]


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    """Give a function that opens a window on a server; it fails the test for all troubles."""
    visits: list[Visit] = []

    def visit(url: str, **options: Any) -> Visit:
        visits.append(Visit(browser, url, **options))
        return visits[-1]

    yield visit
    for each in visits:
        each.context.close()
    troubles = [trouble for each in visits for trouble in each.troubles]
    assert not troubles


@pytest.fixture
def operator(world: World, visitor: Visitor) -> Visit:
    """Give a window in which an operator is signed in; no page is open."""
    return visitor(world.url).sign_in()


@pytest.fixture
def viewer(world: World, visitor: Visitor) -> Visit:
    """Give a window in which a viewer is signed in; no page is open."""
    return visitor(world.url).sign_in("viewer")
