"""What goes wrong is said: the server gone, clocks apart, sessions over, and things too large."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.console.harness import Visit, World
from tests.console.scene import addresses, shop
from tests.ports import free_port

Visitor = Callable[..., Visit]

GONE: Final = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
MIB: Final = 1024 * 1024
ACTIONS: Final = re.compile(
    r"^(New queue|Put|Pause|Resume|Halt|Purge|Delete|Take back|Extend|Ask to stop|Delay|Remove|"
    r"Edit|Change priority|End|Stop|Review|Apply|Redrive|Release|Settle|Publish|Discard|Act)\b"
)


def test_server_goes_and_comes_back(visitor: Visitor, tmp_path: Path) -> None:
    """The page says since when, keeps what it shows, and connects again by itself."""
    port = free_port()
    with World(store=tmp_path, port=port) as world:
        world.client.queue("orders").create()
        visit = visitor(world.url).sign_in().open("#/").settle()
        expect(visit.page.locator(".connection")).to_have_text("live")
        visit.expect(GONE)
    visit.sees(re.compile(r"No connection to the server since \d\d:\d\d:\d\d"))
    expect(visit.page.locator(".connection")).to_have_text("no connection")
    expect(visit.link("orders")).to_be_visible()
    with World(store=tmp_path, port=port) as world:
        world.client.queue("orders").put_many(["x"] * 3)
        expect(visit.page.locator(".connection")).to_have_text("live")
        expect(visit.page.get_by_role("link", name="3 visible in orders")).to_be_visible()
        expect(visit.page.get_by_text("has not been reached")).to_have_count(0)
        visit.page.goto("about:blank")


def test_action_without_a_server(visitor: Visitor, tmp_path: Path) -> None:
    """It fails with words, and what was typed is still there."""
    with World(store=tmp_path, port=free_port()) as world:
        world.client.queue("orders").create()
        visit = visitor(world.url).sign_in().open("#/queues/orders").settle()
        visit.button("Pause").click()
        reason = visit.page.locator("dialog [name=reason]")
        reason.fill("a long explanation")
        visit.expect(GONE)
    reason.press("Enter")
    visit.sees("The server cannot be reached.", within="dialog")
    expect(reason).to_have_value("a long explanation")


def test_clocks_apart(visitor: Visitor) -> None:
    """Ages go by the server's clock, and the page says that the clocks differ."""
    with World(clock="virtual") as world:
        orders = world.client.queue("orders")
        orders.create()
        orders.put("x")
        world.server.advance(3_600)
        visit = visitor(world.url).sign_in().open("#/").settle()
        visit.sees(re.compile(r"clock and the server's are \d+ d .*apart"))
        expect(visit.row("orders").first).to_contain_text("1 h")


def test_session_is_over(world: World, visitor: Visitor) -> None:
    """Whoever signs in again is where they were."""
    world.client.queue("orders").create()
    visit = visitor(world.url).sign_in().open("#/queues/orders?tab=settings").settle()
    visit.expect("status of 401")
    visit.context.clear_cookies()
    visit.link(re.compile("^Messages"), within="nav.tabs").click()
    visit.sees("Your session has ended.")
    visit.button("Use the development account").click()
    expect(visit.page.locator("h1")).to_have_text("orders")
    assert "tab=messages" in visit.page.url


def test_ten_thousand_selected(world: World, operator: Visit) -> None:
    """The number is said before; the server does it, not one request for each."""
    queue = world.client.queue("orders")
    queue.create()
    queue.put_many([f"m{number}" for number in range(10_000)])
    operator.open("#/queues/orders?tab=messages").settle()
    operator.button("Select all 10,000 that match").click()
    operator.sees("Selected: all 10,000 that match")
    operator.button("Change priority").click()
    field = operator.page.locator("dialog [name=priority]")
    field.fill("2")
    field.press("Enter")
    operator.sees("10,000 messages", within="dialog")
    asked = len(operator.requests)
    field.press("Enter")
    operator.sees(re.compile("10,000 of 10,000 match"))
    assert len(operator.requests) - asked < 30
    (job,) = [each for each in world.client.list_jobs() if not each.dry_run]
    assert job.moved == 10_000


def test_body_of_64_mib(world: World, operator: Visit) -> None:
    """It is not loaded to show the page, nor in the list; its size and beginning are told."""
    queue = world.client.queue("large")
    queue.create(settings={"max_body_bytes": 64 * MIB})
    sent = queue.put_body(b"begin " + b"x" * (64 * MIB - 6))
    sizes: list[int] = []

    def note(request: Any) -> None:
        sizes.append(request.sizes()["responseBodySize"])

    operator.page.on("requestfinished", note)
    operator.open("#/queues/large?tab=messages").settle()
    operator.sees("64 MiB", within="table")
    operator.open(f"#/messages/large/{sent.id}").settle()
    operator.sees("64 MiB", within="main")
    assert max(sizes) < 2 * MIB


def test_viewer_can_change_nothing(world: World, viewer: Visit, subtests: pytest.Subtests) -> None:
    """No button that changes anything works, on any page."""
    with shop(world.client) as scene:
        for name, address in addresses(scene).items():
            with subtests.test(name):
                viewer.open(address).settle()
                for each in viewer.page.get_by_role("button", name=ACTIONS).all():
                    text = each.inner_text()
                    if text not in {"Pause updates", "Resume updates"}:
                        assert each.is_disabled(), text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "queues/made", {}),
        ("DELETE", "queues/orders", None),
        ("PATCH", "queues/orders", {"settings": {"visibility_timeout_s": 5}}),
        ("POST", "queues/orders/messages", {"messages": [{"body": "x"}]}),
        ("POST", "queues/orders/messages/receive", {"max_messages": 1}),
        ("POST", "queues/orders/pause", {}),
        ("POST", "queues/orders/purge", {}),
        ("POST", "queues/orders/redrive", {}),
        ("POST", "queues/orders/change", {"action": "amend", "delay_s": 0}),
    ],
)
def test_viewer_is_refused_by_the_api(
    world: World, viewer: Visit, method: str, path: str, body: object
) -> None:
    """Whatever the page shows: with the session's own token, too."""
    queue = world.client.queue("orders")
    queue.create()
    queue.put("x")
    viewer.expect("status of 403")
    viewer.open("#/")
    status = viewer.page.evaluate(
        """async ([method, path, body]) => {
          const who = await (await fetch("/console/api/session")).json();
          const headers = {"content-type": "application/json", "x-leasehold-csrf": who.csrf};
          const address = `/v1/accounts/${who.account}/${path}`;
          const sent = body === null ? undefined : JSON.stringify(body);
          return (await fetch(address, {method, headers, body: sent})).status;
        }""",
        [method, path, body],
    )
    assert status == 403
    assert [each.name for each in world.client.list_queues()] == ["orders"]
    assert queue.counts().visible == 1
