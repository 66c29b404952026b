"""Nothing that axe takes for a serious barrier, on any page; and no need for a pointer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.console.harness import NARROW, WIDE, Visit, World
from tests.console.scene import Scene, addresses, shop

AXE: Final = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text("utf-8")
SERIOUS: Final = frozenset({"serious", "critical"})
_RUN: Final = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .map(({id, impact, help, nodes}) => ({id, impact, help,
    nodes: nodes.slice(0, 5).map((node) => node.html + "\\n" + node.failureSummary)}))"""
_SLOW: Final = pytest.mark.long
SIGHTS: Final = (
    pytest.param("light", False, id="light-1400px"),
    pytest.param("dark", True, id="dark-360px"),
    pytest.param("dark", False, id="dark-1400px", marks=_SLOW),
    pytest.param("light", True, id="light-360px", marks=_SLOW),
)


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[World, Scene]]:
    """Give a server with everything on it that pages show."""
    with World() as world, shop(world.client) as scene:
        yield world, scene


def barriers(visit: Visit) -> list[dict[str, Any]]:
    """Return what axe finds on the page as it is."""
    if not visit.page.evaluate("() => 'axe' in window"):
        visit.page.evaluate(AXE)  # by the debugger's protocol: the page's policy stays as it is
    found: list[dict[str, Any]] = visit.page.evaluate(_RUN)
    return [each for each in found if each["impact"] in SERIOUS]


@pytest.mark.parametrize(("theme", "is_narrow"), SIGHTS)
def test_axe_finds_nothing_serious(
    stage: tuple[World, Scene],
    browser: Browser,
    theme: Literal["light", "dark"],
    is_narrow: bool,
    subtests: pytest.Subtests,
) -> None:
    """On no page, in both themes, wide and narrow; and nothing has to be scrolled sideways."""
    world, scene = stage
    size = NARROW if is_narrow else WIDE
    with Visit(browser, world.url, theme=theme, size=size) as visit:
        visit.page.goto(f"{world.url}/console/")
        visit.page.wait_for_selector("h1")
        with subtests.test("sign-in"):
            assert not barriers(visit)
        visit.sign_in()
        visit.page.reload()
        for name, address in addresses(scene).items():
            with subtests.test(name):
                visit.open(address).settle()
                assert not barriers(visit)
                width = visit.page.evaluate("() => document.documentElement.scrollWidth")
                assert width <= size["width"]
        assert not visit.troubles


def test_axe_would_find_a_barrier(operator: Visit) -> None:
    """A control: a button without a name, and grey on white, are found."""
    operator.open()
    operator.page.evaluate(
        """() => {
          const button = document.createElement("button");
          document.querySelector("main").append(button);
        }"""
    )
    assert "button-name" in {each["id"] for each in barriers(operator)}


def test_axe_finds_nothing_serious_in_dialogs(stage: tuple[World, Scene], browser: Browser) -> None:
    """Nor in what is folded away: on a narrow screen, in the dark."""
    world, scene = stage
    with Visit(browser, world.url, theme="dark", size=NARROW) as visit:
        visit.sign_in()
        opened = {
            "#/queues/orders": ("Put messages", "Pause", "Redrive", "Delete the queue"),
            f"#/messages/orders/{scene.ids['delayed']}": ("Edit", "Delay", "Remove"),
        }
        for address, buttons in opened.items():
            visit.open(address).settle()
            for name in buttons:
                visit.button(name).click()
                dialog = visit.page.locator("dialog")
                dialog.wait_for()
                assert not barriers(visit), name
                visit.page.keyboard.press("Escape")
                expect(dialog).to_have_count(0)
        visit.open("#/queues/orders?tab=messages").settle()
        visit.page.get_by_text("More filters").click()
        assert not barriers(visit)
        assert not visit.troubles


def tab_to(visit: Visit, wanted: Locator) -> None:
    """Press Tab until something has the focus."""
    for _ in range(120):
        if wanted.count() and wanted.first.evaluate("(each) => each === document.activeElement"):
            return
        visit.page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {wanted}")


def test_by_keyboard_alone(world: World, visitor: Callable[..., Visit]) -> None:
    """Sign in, open a queue, filter, open a message, and take it back from its worker."""
    queue = world.client.queue("orders")
    queue.create()
    queue.put_many(["order 1", "order 2", "order 3"])
    held = queue.receive(3, visibility_timeout_s=600, holder="worker-1")[1]
    visit = visitor(world.url)
    page = visit.page
    page.goto(f"{world.url}/console/")
    enter = page.keyboard
    tab_to(visit, visit.button("Use the development account"))
    enter.press("Enter")
    visit.link("orders").wait_for()
    tab_to(visit, visit.link("orders"))
    enter.press("Enter")
    page.wait_for_url("**/#/queues/orders")
    tab_to(visit, page.get_by_label("Find a message"))
    enter.type("order 2")
    enter.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    tab_to(visit, page.locator("tbody td.main a"))
    enter.press("Enter")
    page.wait_for_url(f"**/#/messages/orders/{held.id}")
    expect(page.locator("h1")).to_be_focused()
    tab_to(visit, visit.button("End lease"))
    enter.press("Enter")
    tab_to(visit, page.locator("dialog [type=submit]"))
    enter.press("Enter")
    visit.sees("The lease was ended.")
    assert queue.get(held.id).state == "visible"
    assert visit.clicks == 0
