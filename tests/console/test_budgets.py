"""What the pages weigh, and what they ask for."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from tests.console.harness import Visit, World

Visitor = Callable[..., Visit]

MOST_BYTES: Final = 150_000
"""Of all files, compressed."""
MOST_TO_PAINT: Final = 30
"""Requests until the overview is shown: the page, its modules, its style, and three answers."""


def static_files() -> list[str]:
    """Return the paths of all files of the pages."""
    root = resources.files("leasehold.http.console") / "static"

    def below(folder: Traversable, prefix: str) -> list[str]:
        found = []
        for each in folder.iterdir():
            found += below(each, f"{prefix}{each.name}/") if each.is_dir() else [prefix + each.name]
        return found

    return below(root, "")


def fetch(url: str) -> tuple[bytes, str]:
    """Return what a browser gets over the wire, and its encoding."""
    asked = urllib.request.Request(url, headers={"accept-encoding": "gzip"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.read(), answer.headers.get("content-encoding", "")


def test_all_files_together(world: World) -> None:
    """As the server sends them, with every page and the library for plots."""
    sizes = {
        name: len(fetch(f"{world.url}/console/static/{name}")[0])
        for name in static_files()
        if not name.endswith(("LICENSES.txt", "index.html"))
    }
    sizes["index.html"] = len(fetch(f"{world.url}/console/")[0])
    assert sum(sizes.values()) <= MOST_BYTES, sorted(sizes.items(), key=lambda each: -each[1])
    assert len(sizes) > 15


def test_requests_until_the_overview_is_shown(world: World, operator: Visit) -> None:
    """Pages that are not shown are not loaded, nor is what draws plots."""
    world.client.queue("orders").create()
    operator.open()
    operator.link("orders").wait_for()
    assert len(operator.requests) <= MOST_TO_PAINT, operator.requests
    assert not [each for each in operator.requests if "uplot" in each]


def test_second_visit_asks_whether_files_have_changed(world: World, operator: Visit) -> None:
    """And is told that they have not: nothing is sent twice."""
    operator.open()
    operator.page.reload()
    operator.page.wait_for_selector("h1")
    sizes = operator.page.evaluate(
        """() => performance.getEntriesByType("resource")
          .filter((each) => each.name.includes("/console/static/"))
          .map((each) => each.transferSize)"""
    )
    assert len(sizes) > 10
    assert max(sizes) <= 300  # headers alone


def test_page_names_no_other_origin() -> None:
    """Nothing is fetched from elsewhere, whatever page is shown."""
    root = resources.files("leasehold.http.console") / "static"
    for name in static_files():
        if name.endswith(".txt") or name.startswith("vendor/"):
            continue
        text = root.joinpath(name).read_text(encoding="utf-8")
        found = set(re.findall(r"""(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s"'`)]*""", text))
        assert found <= {"http://www.w3.org/2000/svg"}, name
