"""The files of the console, and which requests are the console's."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from leasehold.http.console import is_of_console
from leasehold.http.console.pages import POLICY, StaticFiles, compact, takes_gzip
from tests.unit.http.console.support import Console

HTML = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder of files, with one outside it."""
    static = tmp_path / "static"
    (static / "vendor").mkdir(parents=True)
    (static / "index.html").write_text("<p>home</p>")
    (static / "app.js").write_text("export const a = 1;\n" * 100)
    (static / "vendor/lib.mjs").write_text("export {};")
    (static / "notes.py").write_text("secret")
    (tmp_path / "secret.js").write_text("secret")
    return static


def test_console_is_a_page_with_a_strict_policy(folder: Path) -> None:
    """The page runs its own scripts and styles only, and is framed by nobody."""
    with Console(folder) as server:
        answer = server.ask("GET", "/console/")
        assert answer.body == b"<p>home</p>"
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"] == POLICY.decode()
        assert "unsafe" not in POLICY.decode()
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/console"])
def test_browsers_are_led_to_the_console(folder: Path, path: str) -> None:
    """The root and the name without a slash lead to the page."""
    with Console(folder) as server:
        answer = server.ask("GET", path, headers=HTML)
        assert (answer.status, answer.headers["location"]) == (302, "/console/")


def test_file_is_named_by_its_content_and_compressed_where_asked(folder: Path) -> None:
    """Each form of a file has a strong name of its own; one that is known is not sent again."""
    with Console(folder) as server:
        plain = server.ask("GET", "/console/static/app.js")
        packed = server.ask("GET", "/console/static/app.js", headers={"accept-encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert plain.headers["etag"] != packed.headers["etag"]
        assert plain.headers["etag"].startswith('"')
        known = {"if-none-match": f'"x", W/{plain.headers["etag"]}'}
        again = server.ask("GET", "/console/static/app.js", headers=known)
        assert (again.status, again.body) == (304, b"")
        assert server.ask("GET", "/console/static/vendor/lib.mjs").body == b"export {};"


@pytest.mark.parametrize(
    "name",
    [
        "../secret.js",
        "%2e%2e/secret.js",
        "..%2fsecret.js",
        "vendor/../../secret.js",
        "//etc/passwd",
        "/etc/passwd",
        "notes.py",
        "vendor",
        "",
    ],
)
def test_nothing_outside_the_folder_is_served(folder: Path, name: str) -> None:
    """What is not the exact name of a file of a known kind is not there."""
    with Console(folder) as server:
        assert server.ask("GET", f"/console/static/{name}").status == 404
    assert StaticFiles(folder).names == {"index.html", "app.js", "vendor/lib.mjs"}


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/", b"", True),
        ("HEAD", "/console/", b"", True),
        ("GET", "/console/static/app.js", b"", True),
        ("POST", "/console/api/session", b"", True),
        ("GET", "/", b"comp=list", False),
        ("POST", "/", b"", False),
        ("GET", "/console/", b"comp=list", False),
        ("PUT", "/console", b"", False),
        ("GET", "/console", b"comp=metadata", False),
        ("GET", "/console/messages", b"", False),
        ("GET", "/console/api/messages", b"", False),
        ("DELETE", "/console/static/messages/id", b"", False),
        ("PUT", "/console/static", b"", False),
        ("GET", "/consoles/orders", b"", False),
    ],
)
def test_addresses_of_azure_stay_its_own(
    method: str, path: str, query: bytes, expected: bool
) -> None:
    """An account or a queue called ``console`` is reached as before."""
    assert is_of_console(method, path, query, HTML) is expected


def test_root_is_the_console_for_browsers_only() -> None:
    """A client that does not ask for a page gets what it got before."""
    assert not is_of_console("GET", "/", b"", {"accept": "application/xml"})
    assert not is_of_console("GET", "/", b"", {})


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [("gzip, br", True), ("br;q=1.0, GZIP;q=0.5", True), ("gzip;q=0", False), ("br", False)],
)
def test_compression_is_agreed(accepted: str, expected: bool) -> None:
    """A weight of nothing is a refusal."""
    assert takes_gzip(accepted) is expected


def test_comments_stay_at_home() -> None:
    """Those with lines of their own; not what only looks like one within a line."""
    script = b"""// What this is.
/** One line. */
export const a = "http://x"; // stays
  // Indented.
  /**
   * Several * lines / of it.
   */
  const b = /* stays */ 1;
"""
    assert compact(script) == (b'export const a = "http://x"; // stays\nconst b = /* stays */ 1;\n')
