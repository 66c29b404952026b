"""What operators do every day, each in at most three clicks from the overview.

A click is a press of the pointer on a link, a button or a box, or a choice in a list; the page
itself counts them. Typing into a field is none, nor is the key that sends what was typed or
confirms a dialog (Enter; Tab leads to the button).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest
from playwright.sync_api import Locator, expect

from leasehold.client.models import Job
from tests.console.harness import Visit, World
from tests.console.scene import Scene, shop

MOST_CLICKS: Final = 3
ME: Final = "console:development"
"""Who the log says has done it."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What an operator has before them: the overview is open."""

    visit: Visit
    world: World
    scene: Scene

    def count(self, state: str, queue: str) -> None:
        """Click the number of a queue's messages in a state."""
        self.visit.link(re.compile(rf"\d {state} in {queue}$")).click()

    def queue(self, name: str) -> None:
        """Click the name of a queue."""
        self.visit.link(name).click()

    def place(self, name: str) -> None:
        """Click a page in the bar."""
        self.visit.link(name, within="header.bar").click()

    def tab(self, name: str) -> None:
        """Click a part of a queue's page."""
        self.visit.link(re.compile(f"^{name}"), within="nav.tabs").click()

    def search(self, text: str) -> None:
        """Look for messages."""
        self.visit.page.get_by_label("Search messages").fill(text)
        self.visit.page.keyboard.press("Enter")

    def button(self, name: str | re.Pattern[str]) -> None:
        """Click a button of the page or of a dialog."""
        self.visit.button(name).click()

    def dialog(self, label: str) -> Locator:
        """Return a field of the dialog that is open."""
        return self.visit.page.locator("dialog").get_by_label(label)

    def confirm(self, *, after: str | re.Pattern[str] | None = None) -> None:
        """Have the open dialog do what it says, by the keyboard.

        Args:
            after: What it shows first of what it would do; None if it shows nothing.
        """
        submit = self.visit.page.locator("dialog [type=submit]")
        submit.wait_for()
        submit.press("Enter")
        if after is not None:
            self.visit.sees(after, within="dialog")
            submit.press("Enter")
        expect(self.visit.page.locator("dialog")).to_have_count(0)


def who_holds_an_order(desk: Desk) -> None:
    desk.count("leased", "orders")
    desk.search("4711")
    row = desk.visit.row("4711")
    expect(row).to_contain_text("worker-eu-1")
    expect(row).to_contain_text(re.compile(r"for [\d.]+ (ms|s), lease ends in 9 min"))


def put_back_what_timed_out(desk: Desk) -> None:
    desk.count("poisoned", "orders")
    desk.search("error:timeout failed:12:00")
    desk.button(re.compile("^Select all"))
    desk.button("Redrive")
    desk.dialog("Canary messages").fill("10")
    desk.confirm(after="14 messages")
    desk.visit.sees(re.compile("10 of 10 match"))
    job = job_of(desk, "redrive")
    assert (job.state, job.moved) == ("canary", 10)


def who_paused_a_queue(desk: Desk) -> None:
    desk.queue("refunds")
    desk.visit.sees("the bank is closed until Monday")
    desk.tab("Events")
    expect(desk.visit.row("queue-paused").first).to_contain_text("key:devstoreaccount1/1")


def where_the_oldest_message_is(desk: Desk) -> None:
    desk.button("Oldest")
    expect(desk.visit.page.locator("tbody td.main a").first).to_have_text("exports")


def take_a_message_from_a_hung_worker(desk: Desk) -> None:
    desk.place("Workers")
    desk.visit.link(re.compile(desk.scene.ids["stuck"])).click()
    desk.button("End lease")
    desk.dialog("Reason").fill("it hangs")
    desk.confirm()
    desk.visit.sees("The lease was ended.")
    view = desk.world.client.queue("videos").get(desk.scene.ids["stuck"])
    assert view.state == "visible"


def raise_the_visibility_timeout(desk: Desk) -> None:
    desk.queue("orders")
    desk.tab("Settings")
    field = desk.visit.page.get_by_label("Visibility timeout, seconds")
    field.fill("900")
    field.press("Enter")
    shown = desk.visit.page.locator("dialog")
    expect(shown).to_contain_text("600")
    expect(shown).to_contain_text("900")
    desk.confirm()
    assert desk.world.client.queue("orders").info().settings.visibility_timeout_s == 900


def purge_a_queue(desk: Desk) -> None:
    desk.queue("thumbnails")
    desk.button(re.compile("^Purge"))
    desk.visit.page.locator("dialog [name=typed]").fill("thumbnails")
    desk.confirm(after="15 messages")
    assert job_of(desk, "purge").moved == 15
    assert desk.world.client.queue("thumbnails").counts().total == 0


def what_a_claim_still_has(desk: Desk) -> None:
    desk.place("Streams")
    desk.visit.link("hourly-counts").click()
    row = desk.visit.page.get_by_role("row").filter(has_text="executor-1")
    expect(row).to_contain_text("150")


def which_tenant_is_noisy(desk: Desk) -> None:
    desk.queue("reports")
    desk.tab("Groups")
    first = desk.visit.page.locator("tbody tr").first
    expect(first).to_contain_text("acme")
    expect(first).to_contain_text("120")


def when_it_is_tried_again(desk: Desk) -> None:
    desk.count("deferred", "orders")
    row = desk.visit.row("503 from stock").first
    expect(row).to_contain_text(re.compile("visible in 14 min"))


def remove_a_message_and_see_who_did(desk: Desk) -> None:
    desk.count("visible", "invoices")
    desk.visit.page.locator("tbody td.main a").first.click()
    desk.button("Remove")
    desk.confirm()
    desk.visit.sees("The message does not exist any more")
    desk.visit.sees(ME)
    assert desk.world.client.queue("invoices").counts().total == 5


def pause_a_queue(desk: Desk) -> None:
    desk.queue("emails")
    desk.button("Pause")
    desk.dialog("For").first.fill("15m")
    desk.dialog("Reason").fill("the mail server moves")
    desk.confirm()
    desk.visit.sees("Reason: the mail server moves")
    assert desk.world.client.queue("emails").info().settings.paused_until_ms


def resume_a_queue(desk: Desk) -> None:
    desk.queue("refunds")
    desk.button("Resume")
    desk.visit.sees("The queue is resumed.")
    assert len(desk.world.client.queue("refunds").receive(9)) == 9


def put_a_message(desk: Desk) -> None:
    desk.queue("emails")
    desk.button("Put messages")
    desk.dialog("Body").fill("dear customer")
    desk.confirm()
    desk.visit.sees("The message was put")
    (message,) = desk.world.client.queue("emails").peek()
    assert message.body == b"dear customer"


def give_a_worker_more_time(desk: Desk) -> None:
    desk.count("leased", "orders")
    desk.search("4711")
    desk.visit.row("4711").get_by_role("button").click()
    desk.button("Extend lease")
    desk.dialog("Lease length from now").fill("2h")
    desk.confirm()
    view = desk.world.client.queue("orders").get(desk.scene.ids["order 4711"])
    assert view.lease is not None
    assert view.lease.until_ms > desk.world.server.now_ms() + 7_000_000


def have_a_message_go_first(desk: Desk) -> None:
    desk.count("visible", "orders")
    desk.search("4759")
    desk.visit.row("4759").get_by_role("button").click()
    desk.button("Change priority")
    desk.dialog("Priority").fill("1")
    desk.confirm()
    desk.visit.sees("The priority is changed.")
    assert desk.world.client.queue("orders").get(desk.scene.ids["order 4759"]).priority == 1


def have_it_tried_now(desk: Desk) -> None:
    desk.count("deferred", "orders")
    desk.button(re.compile("^Select all"))
    desk.button("Make visible")
    desk.confirm(after="4 messages")
    desk.visit.sees(re.compile("4 of 4"))
    assert desk.world.client.queue("orders").counts().deferred == 0


def why_a_tenant_stands_still(desk: Desk) -> None:
    desk.queue("reports")
    desk.tab("Groups")
    row = desk.visit.row("umbrella").first
    expect(row).to_contain_text("halted")
    expect(row).to_contain_text("asked for by the customer")


def have_a_tenant_go_on(desk: Desk) -> None:
    desk.queue("reports")
    desk.tab("Groups")
    desk.button(re.compile("^Resume *umbrella"))
    desk.confirm()
    group = desk.world.client.queue("reports").group("umbrella").group
    assert group.halt is None


def whether_the_server_is_well(desk: Desk) -> None:
    desk.place("Server")
    desk.visit.sees(re.compile("accepts messages", re.IGNORECASE))
    desk.visit.sees(re.compile("commit", re.IGNORECASE))


def what_is_not_published(desk: Desk) -> None:
    desk.place("Transactions")
    expect(desk.visit.row("nightly-export")).to_contain_text("20")


def how_far_a_worker_is(desk: Desk) -> None:
    desk.place("Workers")
    expect(desk.visit.row("encoder-7")).to_contain_text("pass 1 of 2")
    expect(desk.visit.row("encoder-7")).to_contain_text("35 %")


def what_is_in_a_message(desk: Desk) -> None:
    desk.count("visible", "orders")
    desk.search("4758")
    desk.visit.page.locator("tbody td.main a").first.click()
    desk.visit.sees("4758", within="main")
    desk.visit.sees("customer", within="main")


def take_back_all_of_a_worker(desk: Desk) -> None:
    desk.place("Workers")
    desk.visit.link("worker-us-1").click()
    desk.button("End all leases")
    desk.confirm(after="5 messages")
    desk.visit.sees("5 messages released from worker-us-1")
    assert desk.world.client.queue("orders").counts().leased == 15


def limit_what_is_received(desk: Desk) -> None:
    desk.queue("orders")
    desk.tab("Settings")
    field = desk.visit.page.get_by_label("Receive rate limit")
    field.fill("5")
    field.press("Enter")
    desk.confirm()
    assert desk.world.client.queue("orders").info().settings.max_receives_per_s == 5


def remove_what_a_customer_asked_for(desk: Desk) -> None:
    desk.queue("orders")
    desk.visit.page.get_by_label("Find a message").fill("property:tenant=umbrella state:visible")
    desk.visit.page.keyboard.press("Enter")
    desk.button(re.compile("^Select all"))
    desk.button("Remove")
    desk.confirm(after=re.compile(r"\d messages?"))
    desk.visit.sees(re.compile(r"(\d+) of \1 match"))
    left = desk.world.client.queue("orders").inspect()
    waiting = [each for each in left if each.state == "visible"]
    assert waiting
    assert not [each for each in waiting if (each.properties or {}).get("tenant") == "umbrella"]


def who_did_what_today(desk: Desk) -> None:
    desk.place("Events")
    desk.visit.page.get_by_label("Only with an actor").check()
    expect(desk.visit.row("queue-created").first).to_contain_text("key:devstoreaccount1/1")
    expect(desk.visit.row("queue-paused").first).to_contain_text("refunds")


def job_of(desk: Desk, kind: str) -> Job:
    """Return the latest job of a kind that was no dry run."""
    jobs = desk.world.client.list_jobs()
    return next(job for job in jobs if job.kind == kind and not job.dry_run)


TASKS: Final[dict[str, Callable[[Desk], None]]] = {
    "Which worker holds order 4711, and for how long?": who_holds_an_order,
    "Put back all that failed with timeout since noon, but try ten first": put_back_what_timed_out,
    "Who paused this queue, and why?": who_paused_a_queue,
    "Which queue has the oldest message?": where_the_oldest_message_is,
    "Take a message from a worker that hangs": take_a_message_from_a_hung_worker,
    "Take back everything that a worker holds": take_back_all_of_a_worker,
    "Raise the visibility timeout, and see what changes": raise_the_visibility_timeout,
    "Purge a queue (it asks for the name)": purge_a_queue,
    "What does this claim still have?": what_a_claim_still_has,
    "Which tenant is noisy?": which_tenant_is_noisy,
    "Why does nothing of this tenant go on?": why_a_tenant_stands_still,
    "Have a halted tenant go on": have_a_tenant_go_on,
    "When will this message be tried again?": when_it_is_tried_again,
    "Have what waits for another try be tried now": have_it_tried_now,
    "Remove one message, and see in the log who did it": remove_a_message_and_see_who_did,
    "Remove all messages of one customer": remove_what_a_customer_asked_for,
    "Pause a queue for a quarter of an hour, and say why": pause_a_queue,
    "Resume a queue": resume_a_queue,
    "Put a message": put_a_message,
    "Give a worker more time for a message": give_a_worker_more_time,
    "Have one message be received before all others": have_a_message_go_first,
    "Limit how many messages a second workers get": limit_what_is_received,
    "How far is this worker?": how_far_a_worker_is,
    "What is in this message?": what_is_in_a_message,
    "What is staged, and not published?": what_is_not_published,
    "Can the server write, and how long do commits take?": whether_the_server_is_well,
    "Who changed what today?": who_did_what_today,
}


@pytest.mark.parametrize("task", TASKS.values(), ids=[name.__name__ for name in TASKS.values()])
def test_task(world: World, operator: Visit, task: Callable[[Desk], None]) -> None:
    """The answer is seen, or the server did it, after at most three clicks."""
    with shop(world.client) as scene:
        operator.open("#/").settle()
        assert operator.clicks == 0
        task(Desk(operator, world, scene))
        assert operator.clicks <= MOST_CLICKS


def test_there_are_twenty() -> None:
    """As many as the console was asked to make easy, at least."""
    assert len(TASKS) >= 20


def test_clicks_are_counted(world: World, operator: Visit) -> None:
    """A control: links, buttons, boxes and lists count; keys do not."""
    world.client.queue("orders").create()
    operator.open("#/").settle()
    operator.link("orders").click()
    operator.button("Pause").click()
    operator.page.keyboard.press("Escape")
    operator.page.locator(".theme").select_option("dark")
    operator.page.keyboard.press("Tab")
    assert operator.clicks == 3
