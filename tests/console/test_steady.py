"""Lists keep their rows in place while queues move, and what was done can be undone."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.console.harness import Visit, World


def test_rows_stay_while_messages_come_and_go(world: World, operator: Visit) -> None:
    """What is under the pointer stays there; a button takes the list anew."""
    queue = world.client.queue("orders")
    queue.create()
    queue.put_many(["first", "second", "third"])
    operator.open("#/queues/orders?tab=messages").settle()
    rows = operator.page.locator("tbody tr")
    expect(rows).to_have_count(3)
    queue.complete(queue.receive(1)[0])
    queue.put("fourth")
    refresh = operator.button(re.compile("^Refresh: 1 new, 1 gone"))
    refresh.wait_for()
    expect(rows).to_have_text([re.compile(body) for body in ("first", "second", "third")])
    refresh.click()
    expect(rows).to_have_text([re.compile(body) for body in ("second", "third", "fourth")])


def test_edits_pauses_and_puts_are_undone(world: World, operator: Visit) -> None:
    """By the button of the notice that says what was done."""
    queue = world.client.queue("orders")
    queue.create()
    sent = queue.put("one", priority=8)

    def undo(text: str) -> None:
        operator.sees(text)
        operator.button("Undo").last.click()
        operator.sees("Undone.")

    operator.open(f"#/messages/orders/{sent.id}").settle()
    operator.button("Change priority").click()
    field = operator.page.locator("dialog [name=priority]")
    field.fill("2")
    field.press("Enter")
    undo("The priority is changed.")
    assert queue.get(sent.id).priority == 8
    operator.open("#/queues/orders").settle()
    operator.button("Pause").click()
    operator.page.locator("dialog").get_by_role("button", name="Pause", exact=True).click()
    operator.button("Resume").wait_for()
    operator.button("Undo").last.click()
    operator.button("Pause").wait_for()
    assert queue.info().settings.paused_until_ms is None
    operator.button("Put messages").click()
    operator.page.locator("dialog [name=body]").fill("two")
    operator.page.locator("dialog [type=submit]").press("Enter")
    undo("The message was put")
    assert [message.body for message in queue.peek(9)] == [b"one"]
