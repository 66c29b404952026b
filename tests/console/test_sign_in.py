"""Signing in and out, and what a session is not: kept by the page, or good for ever."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable

from azure.storage.queue import QueueSasPermissions, generate_queue_sas
from playwright.sync_api import expect

from tests.console.harness import NARROW, Visit, World

Visitor = Callable[..., Visit]


def test_one_click_on_the_own_machine(world: World, visitor: Visitor) -> None:
    """The root leads to the page; the development account needs no key."""
    visit = visitor(world.url)
    visit.page.goto(f"{world.url}/")
    visit.button("Use the development account").click()
    visit.sees("There are no queues yet")
    assert visit.clicks == 1
    assert visit.page.url == f"{world.url}/console/"


def test_key_is_kept_nowhere(world: World, visitor: Visitor) -> None:
    """Not in the address, in no storage, and in no cookie that a script can read."""
    visit = visitor(world.url)
    visit.page.goto(f"{world.url}/console/")
    visit.page.get_by_label("Key", exact=True).fill(world.server.key)
    visit.button("Sign in").click()
    visit.sees("There are no queues yet")
    page = visit.page
    kept = page.evaluate(
        "() => JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])"
    )
    cookies = visit.context.cookies()
    everything = kept + page.url + str(cookies) + page.content() + "".join(visit.requests)
    assert world.server.key not in everything
    assert urllib.parse.quote(world.server.key, safe="") not in everything
    assert page.evaluate("() => document.cookie") == ""
    assert [(each["httpOnly"], each["sameSite"]) for each in cookies] == [(True, "Strict")]


def test_wrong_key_is_said(world: World, visitor: Visitor) -> None:
    """The page says so, and one can try again."""
    visit = visitor(world.url)
    visit.expect("status of 403|status of 401")
    visit.page.goto(f"{world.url}/console/")
    visit.page.get_by_label("Key", exact=True).fill("bm90IHRoZSBrZXk=")
    visit.button("Sign in").click()
    expect(visit.page.get_by_role("alert")).to_be_visible()
    visit.page.get_by_label("Key", exact=True).fill(world.server.key)
    visit.button("Sign in").click()
    visit.sees("There are no queues yet")


def test_viewer_by_choice(world: World, visitor: Visitor) -> None:
    """Whoever asks to look only gets buttons that cannot be pressed."""
    visit = visitor(world.url)
    visit.page.goto(f"{world.url}/console/")
    visit.page.get_by_label("Read-only").check()
    visit.page.get_by_label("Key", exact=True).fill(world.server.key)
    visit.button("Sign in").click()
    expect(visit.page.locator(".role")).to_have_text("viewer")
    expect(visit.button("New queue")).to_be_disabled()


def test_signature_of_one_queue_shows_that_queue(world: World, visitor: Visitor) -> None:
    """And leads to its page, as there is no overview for it."""
    world.client.queue("orders").create()
    now = world.server.now()
    signature = generate_queue_sas(
        world.server.account,
        "orders",
        world.server.key,
        permission=QueueSasPermissions(read=True, process=True),
        expiry=now.replace(year=now.year + 1, day=1),
    )
    visit = visitor(world.url)
    visit.page.goto(f"{world.url}/console/")
    visit.page.get_by_label("Shared access signature").check()
    visit.page.get_by_label("Signature", exact=True).fill(signature)
    visit.page.get_by_label("Queue, if the signature is for one queue").fill("orders")
    visit.button("Sign in").click()
    visit.page.wait_for_url(re.compile("#/queues/orders"))


def test_signing_out_ends_it(operator: Visit) -> None:
    """The next page that is opened asks to sign in."""
    operator.open()
    operator.page.locator("summary").click()
    operator.button("Sign out").click()
    expect(operator.button("Use the development account")).to_be_visible()
    operator.page.reload()
    expect(operator.button("Use the development account")).to_be_visible()


def test_narrow_page_does_not_scroll_sideways(world: World, visitor: Visitor) -> None:
    """At 360 px the form fits."""
    visit = visitor(world.url, size=NARROW)
    visit.page.goto(f"{world.url}/console/")
    expect(visit.button("Sign in")).to_be_visible()
    assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= NARROW["width"]
