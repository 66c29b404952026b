"""The overview: all queues with their figures, found, sorted and kept fresh."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.console.harness import NARROW, Visit, World

Visitor = Callable[..., Visit]


def test_rows_tell_the_states(world: World, operator: Visit) -> None:
    """As many as there are of each, with links to those messages."""
    orders = world.client.queue("orders")
    orders.create(settings={"failure_policy": {"max_failures": 1}})
    orders.put_many([f"m{number}" for number in range(7)])
    orders.put("later", delay_s=600)
    orders.receive(2, visibility_timeout_s=600)
    for message in orders.receive(1):
        orders.release(message, outcome="failed", error="no")
    operator.open()
    row = operator.row("orders").first
    expect(row.get_by_role("link", name="4 visible in orders")).to_be_visible()
    expect(row.get_by_role("link", name="2 leased in orders")).to_be_visible()
    expect(row.get_by_role("link", name="1 delayed in orders")).to_be_visible()


def test_search_and_order_are_in_the_address(world: World, operator: Visit) -> None:
    """So that they can be kept, and sent to a colleague."""
    for name in ("alpha", "beta", "gamma"):
        world.client.queue(name).create()
    world.client.queue("gamma").put_many(["x"] * 3)
    operator.open("#/?sort=visible")
    names = operator.page.locator("tbody td.main a")
    expect(names).to_have_text(["gamma", "alpha", "beta"])
    operator.page.get_by_label("Search queues by name").fill("bet")
    expect(names).to_have_text(["beta"])
    assert operator.page.url.endswith("#/?sort=visible&search=bet")
    operator.sees("1 queue found")


def test_counts_follow_without_being_asked(world: World, operator: Visit) -> None:
    """The server tells what has changed."""
    orders = world.client.queue("orders")
    orders.create()
    operator.open()
    expect(operator.row("orders")).to_be_visible()
    orders.put_many(["x"] * 5)
    expect(operator.page.get_by_role("link", name="5 visible in orders")).to_be_visible()


def test_new_queue(world: World, operator: Visit) -> None:
    """It is made, and its page is shown."""
    operator.open()
    operator.button("New queue").click()
    operator.page.locator("dialog [name=name]").fill("made-here")
    operator.page.keyboard.press("Enter")
    operator.page.wait_for_url("**/#/queues/made-here")
    assert world.client.queue("made-here").info().name == "made-here"


def test_cards_on_a_narrow_screen(world: World, visitor: Visitor) -> None:
    """Nothing has to be scrolled sideways."""
    world.client.queue("a" * 63).create()
    visit = visitor(world.url, size=NARROW).sign_in().open()
    expect(visit.link("a" * 63)).to_be_visible()
    assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= NARROW["width"]
