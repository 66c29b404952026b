"""Make the pictures of the console and of the demonstration in README and documentation.

``make screenshots`` starts a server with the scene of the tests, at a fixed time that moves on by a
virtual clock, and takes the pictures with the tests' browser. They are PNG files with few colours,
so that a change of one page changes one small file.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal

from PIL import Image
from playwright.sync_api import FloatRect, ViewportSize, sync_playwright
from tests.console.harness import NARROW, Visit, World, find_chromium, launch
from tests.console.scene import ORDERS, addresses, order, shop

from leasehold.client import Client
from leasehold.testing import InProcessServer

ROOT: Final = Path(__file__).resolve().parents[1]
OUT: Final = ROOT / "docs" / "assets" / "console"
DEMO: Final = ROOT / "demo-data" / "index.html"
"""What ``make demo`` leaves behind; without it its picture stays as it is."""
TIMELINE: Final = OUT.with_name("demo-timeline.png")
START: Final = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
_COLOURS: Final = 128
_WIDTH: Final = 1280
_HEIGHT: Final = 800
_MARGIN: Final = 20
_MINUTES: Final = 45
"""So long the shop has been open when the pictures are taken."""
_USUAL: Final = 6
_RUSH: Final = 10
_RUSH_HOUR: Final = range(18, 27)
_FAILING: Final = 0.04
_ROUNDS: Final = 24
_STEPS: Final = 10
_STEPS_OF_PLOTS: Final = 30
"""The server's page draws what it is told while it is open."""
_SPEED: Final = 2
"""How much faster than the machine's the server's clock goes before the first picture, so that
sparklines have more than a point or two."""
_STEP_MS: Final = 300

# Name of the file, page of the scene, dark or light, height; that of a phone is narrow.
PICTURES: Final[tuple[tuple[str, str, Literal["light", "dark"], int], ...]] = (
    ("overview", "overview", "light", 800),
    ("overview-dark", "overview", "dark", 800),
    ("queue", "queue", "light", 1000),
    ("messages", "queue-messages", "light", 800),
    ("message", "message-held", "light", 900),
    ("settings", "queue-settings", "light", 700),
    ("groups", "queue-groups", "light", 620),
    ("workers", "workers", "light", 700),
    ("stream", "stream", "light", 620),
    ("events", "events", "light", 800),
    ("server", "server", "light", 900),
    ("phone", "queue", "dark", 740),
)


def trade(server: InProcessServer, client: Client, chance: random.Random) -> None:
    """Let the shop be open for a while: orders come, and most of them are completed."""
    client.queue("orders").create(settings=ORDERS)
    client.queue("emails").create()
    for minute in range(_MINUTES):
        bustle(server, client, chance, orders=_USUAL + (_RUSH if minute in _RUSH_HOUR else 0))
        server.advance(60 - (server.now_ms() / 1000) % 60)


def bustle(server: InProcessServer, client: Client, chance: random.Random, orders: int) -> None:
    """Have some orders come and go, within ten seconds to a minute."""
    queue, emails = client.queue("orders"), client.queue("emails")
    wanted = orders + round(4 * chance.random())
    queue.put_many([order(chance.randrange(5_000, 9_000)) for _ in range(wanted)])
    emails.put_many([f"receipt {number}" for number in range(wanted)])
    server.advance(1 + 2 * chance.random())
    done = queue.receive(wanted, holder="worker-eu-3")
    server.advance(3 + 4 * chance.random())
    for message in done:
        if chance.random() < _FAILING:
            queue.release(message, outcome="failed", delay_s=600, error="503 from stock")
        else:
            queue.complete(message)
    emails.complete_many(emails.receive(wanted - 1, holder="mailer"))


def trickle(  # noqa: PLR0913 - two are keyword-only
    server: InProcessServer,
    client: Client,
    chance: random.Random,
    visit: Visit,
    *,
    steps: int = _STEPS,
    speed: float = 1,
) -> None:
    """Let some seconds pass in which work goes on, by the server's clock as by the browser's."""
    orders, emails = client.queue("orders"), client.queue("emails")
    for _ in range(steps):
        for queue in (orders, emails):
            wanted = chance.randrange(3)
            queue.put_many([order(chance.randrange(5_000, 9_000)) for _ in range(wanted)])
            queue.complete_many(queue.receive(wanted or 1, holder="worker-eu-3"))
        began_s = time.perf_counter()
        visit.page.wait_for_timeout(_STEP_MS)
        server.advance(speed * (time.perf_counter() - began_s))


def take(visit: Visit, address: str, file: Path, meanwhile: Callable[[], None]) -> None:
    """Open a page and take its picture."""
    visit.open(address).settle()
    meanwhile()  # plots, and figures that come once in a while
    visit.page.evaluate("() => document.activeElement.blur()")
    save(visit.page.screenshot(), file)


def save(screenshot: bytes, file: Path) -> None:
    """Write a screenshot with few colours."""
    picture = Image.open(io.BytesIO(screenshot))
    picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size / 1024:.0f} KiB", flush=True)


def take_timeline(chromium: str) -> None:
    """Take the picture of the chart on the page that the last ``make demo`` has written."""
    with sync_playwright() as playwright:
        browser = launch(playwright, chromium)
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        page.goto(DEMO.as_uri())
        heading, chart = (page.locator(name).first.bounding_box() for name in ("h2", "svg"))
        assert heading is not None
        assert chart is not None
        top, end = heading["y"] - _MARGIN, chart["y"] + chart["height"]
        clip: FloatRect = {"x": 0, "y": top, "width": _WIDTH, "height": end - top}
        save(page.screenshot(clip=clip, full_page=True), TIMELINE)
        browser.close()


def main(is_wanted: Callable[[str], bool]) -> int:
    """Take the pictures whose names are wanted."""
    path = find_chromium()
    if path is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 1
    if is_wanted(TIMELINE.stem) and DEMO.exists():
        take_timeline(path)
    pictures = [picture for picture in PICTURES if is_wanted(picture[0])]
    if not pictures:
        return 0
    OUT.mkdir(parents=True, exist_ok=True)
    start_ms = round(START.timestamp() * 1000)
    with World(clock="virtual", start_ms=start_ms) as world, sync_playwright() as playwright:
        server, client = world.server, world.client
        chance = random.Random(7)
        trade(server, client, chance)
        with shop(client, pause=lambda: _pass(server)) as scene:
            browser = launch(playwright, path)
            # While one is open the server keeps figures of how queues move.
            with Visit(browser, world.url).sign_in().open() as watching:
                for _ in range(_ROUNDS):
                    trickle(server, client, chance, watching, speed=_SPEED)
                for name, page, theme, height in pictures:
                    steps = _STEPS_OF_PLOTS if page == "server" else _STEPS
                    size: ViewportSize = {"width": _WIDTH, "height": height}
                    with Visit(
                        browser, world.url, theme=theme, size=NARROW if name == "phone" else size
                    ) as visit:
                        visit.page.clock.install(time=server.now())
                        take(
                            visit.sign_in(),
                            addresses(scene)[page],
                            OUT / f"{name}.png",
                            partial(trickle, server, client, chance, visit, steps=steps),
                        )
            browser.close()
    return 0


def _pass(server: InProcessServer) -> None:
    server.advance(20)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of pictures; all without any")
    wanted = parser.parse_args().names
    sys.exit(main(lambda name: not wanted or name in wanted))
