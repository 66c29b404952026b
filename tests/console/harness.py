"""A browser on the console of a server: what it is told to do, and what it must not do.

Playwright is the client, Debian's Chromium the browser: nothing is downloaded. Whatever a page
writes to the browser's console as an error, raises, asks of another origin or opens as a dialog is
kept in :attr:`Visit.troubles`, and the fixtures fail the test for it.
"""

from __future__ import annotations

import os
import re
import shutil
import urllib.parse
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from types import TracebackType

    from playwright.sync_api import (
        Browser,
        BrowserContext,
        ConsoleMessage,
        Dialog,
        Locator,
        Page,
        Playwright,
        ViewportSize,
    )

    from leasehold.client import Client

CHROMIUM: Final = "TEST_CHROMIUM"
"""Environment variable with the path of another browser."""
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--no-sandbox",  # containers have no user namespaces
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE: Final[ViewportSize] = {"width": 1400, "height": 900}
NARROW: Final[ViewportSize] = {"width": 360, "height": 740}
SHOWN_MS: Final = PATIENCE_S * 1000
"""How long something may take to be seen; the machine may be busy."""

# What counts as a click: a press of a pointer, and a choice in a list. Playwright's own checks of
# whether an element can be pressed are none.
_COUNT_CLICKS: Final = """
window.__clicks = 0;
addEventListener("pointerdown", (event) => { if (event.isTrusted) window.__clicks += 1; }, true);
addEventListener("change", (event) => {
  if (event.target instanceof HTMLSelectElement) window.__clicks += 1;
}, true);
"""


def find_chromium() -> str | None:
    """Return the path of the browser; None if there is none on this machine."""
    given = os.environ.get(CHROMIUM)
    if given:
        return given
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def launch(playwright: Playwright, path: str) -> Browser:
    """Start the browser, without a window."""
    return playwright.chromium.launch(executable_path=path, args=list(_FLAGS))


class Visit:
    """One browser window on a console; a context manager.

    Args:
        browser: The browser; the window shares no cookies with others.
        url: Scheme, host and port of the server.
        size: Width and height of the window.
        theme: ``light`` or ``dark``.
        options: What else Playwright's contexts take.
    """

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        size: ViewportSize | None = None,
        theme: Literal["light", "dark"] = "light",
        **options: Any,
    ) -> None:
        self.url = url
        self.troubles: list[str] = []
        """What the page must not do, and did."""
        self.requests: list[str] = []
        """The addresses that were asked for, in order."""
        self._expected: list[re.Pattern[str]] = []
        self.context: BrowserContext = browser.new_context(
            viewport=size or WIDE,
            color_scheme=theme,
            locale="en-GB",
            timezone_id="UTC",
            reduced_motion="reduce",
            **options,
        )
        self.context.set_default_timeout(SHOWN_MS)
        self.context.add_init_script(_COUNT_CLICKS)
        self.page: Page = self.context.new_page()
        self._watch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.context.close()

    def _watch(self) -> None:
        page = self.page
        page.on("console", self._wrote)
        page.on("pageerror", lambda error: self._note("error", str(error)))
        page.on("dialog", self._opened)
        page.on("request", lambda request: self._asked(request.url))

    def _wrote(self, line: ConsoleMessage) -> None:
        if line.type == "error":
            self._note("console", f"{line.text} {line.location.get('url', '')}")

    def _opened(self, dialog: Dialog) -> None:
        self._note("dialog", dialog.message)
        dialog.dismiss()

    def _asked(self, address: str) -> None:
        self.requests.append(address)
        scheme = urllib.parse.urlsplit(address).scheme
        if scheme not in {"data", "blob"} and not address.startswith(f"{self.url}/"):
            self._note("request", address)

    def _note(self, kind: str, text: str) -> None:
        if not any(pattern.search(text) for pattern in self._expected):
            self.troubles.append(f"{kind}: {text}")

    def expect(self, pattern: str) -> None:
        """Allow what matches *pattern* in what the page writes, from here on."""
        self._expected.append(re.compile(pattern))

    # --- signing in --------------------------------------------------------------------------

    def sign_in(self, role: str = "operator") -> Self:
        """Have the cookie of a session, without the page for it."""
        asked = {"kind": "development", "role": role}
        answer = self.context.request.post(f"{self.url}/console/api/session", data=asked)
        assert answer.ok, answer.text()
        assert answer.json()["role"] == role
        return self

    # --- going somewhere ---------------------------------------------------------------------

    def open(self, address: str = "#/") -> Self:
        """Show a page, and wait until it has its heading."""
        home = f"{self.url}/console/"
        here = self.page.url
        if not here.startswith(home):
            self.page.goto(home + address)
        else:
            place = here.removeprefix(home).partition("?")[0] or "#/"
            if place != address.partition("?")[0]:
                # Its heading must not be taken for that of the page to come.
                self.page.evaluate("() => document.querySelector('h1')?.classList.add('old')")
            self.page.evaluate("(address) => { location.hash = address; }", address)
        self.page.wait_for_selector("h1:not(.old)")
        return self

    def settle(self) -> Self:
        """Wait until nothing is loading any more."""
        self.page.wait_for_function("() => !document.querySelector('.loading')")
        return self

    # --- doing something ---------------------------------------------------------------------

    @property
    def clicks(self) -> int:
        """How often a pointer was pressed, or something chosen in a list, since the page opened."""
        return int(self.page.evaluate("() => window.__clicks"))

    def link(self, name: str | re.Pattern[str], *, within: str = "body") -> Locator:
        """Return a link by what it says."""
        return self.page.locator(within).get_by_role("link", name=name, exact=isinstance(name, str))

    def button(self, name: str | re.Pattern[str], *, within: str = "body") -> Locator:
        """Return a button by what it says."""
        found = self.page.locator(within)
        return found.get_by_role("button", name=name, exact=isinstance(name, str))

    def row(self, text: str) -> Locator:
        """Return the row of a table that has *text* in it."""
        return self.page.get_by_role("row").filter(has_text=text)

    def sees(self, text: str | re.Pattern[str], *, within: str = "body") -> None:
        """Wait until *text* can be seen.

        Raises:
            playwright.sync_api.TimeoutError: It cannot.
        """
        self.page.locator(within).get_by_text(text).filter(visible=True).first.wait_for()

    @property
    def text(self) -> str:
        """All text that can be seen."""
        return self.page.inner_text("body")


class World:
    """A server of its own for a test, and a client that fills it; a context manager.

    Args:
        options: What :class:`InProcessServer` takes; the clock is the system's.
    """

    def __init__(self, **options: Any) -> None:
        given = {"store": "sqlite", "clock": "system", **options}
        self.server = InProcessServer(**given)
        self.client: Client

    def __enter__(self) -> Self:
        self.server.start()
        self.client = self.server.client()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        self.server.stop()

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return self.server.url
