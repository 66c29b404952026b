"""The overview: all queues with their figures, found, sorted and kept fresh."""

from __future__ import annotations

import json
import re
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


def test_trends_begin_with_what_the_server_has_kept(world: World, operator: Visit) -> None:
    """They do not wait for the page to have seen it itself; each interval adds a point."""
    for name in ("moving", "new", "still"):
        world.client.queue(name).create()
    kept = {"moving": [[1, 1], [2, 2], [1, 3]]}
    told = [
        {"full": True, "every_s": 10, "at_ms": 1, "queues": kept},
        {"full": False, "every_s": 10, "at_ms": 2, "queues": {"new": [1, 1]}},
    ]
    events = "".join(f"event: spark\ndata: {json.dumps(each)}\n\n" for each in told)
    operator.page.route(
        "**/console/api/live*",
        lambda route: route.fulfill(content_type="text/event-stream", body=events),
    )
    operator.open()
    for name, points in (("moving", 4), ("new", 4)):
        line = operator.row(name).locator(".sparkline polyline")
        expect(line).to_have_attribute("points", re.compile(rf"^(\S+ ){{{points - 1}}}\S+$"))
    expect(operator.row("still").locator(".sparkline")).to_have_count(0)


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
