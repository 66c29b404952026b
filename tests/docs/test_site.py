"""The pages hang together: links lead somewhere, and the built site needs nothing from outside."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import DOCS, FRONT, ROOT, page_id, pages, read, rows

GENERATED: Final = DOCS / "reference" / "settings.md"
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'>\s]+"""
    r"""|<link\b[^>]*\bhref=["']?(?:https?:)?//[^"'>\s]+"""
    r"""|@import\b[^;]*//|url\(["']?(?:https?:)?//[^)]+"""
)
_REGISTRY: Final = re.compile(
    r"\b(?:[\w-]+\.)*(?:pypi|pythonhosted|npmjs|crates|docker|quay|ghcr|mcr|unpkg|jsdelivr)"
    r"\.(?:org|com|io|net|microsoft\.com)\b"
)


@pytest.mark.long
def test_the_site_builds_strictly_and_stands_alone(tmp_path: Path) -> None:
    """No broken link, anchor or page left out; no script, style or font from another host."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = sorted(tmp_path.rglob("*.html"))
    assert len(built) >= len(list(DOCS.rglob("*.md")))
    for page in (*built, *tmp_path.rglob("*.css")):
        assert _LOADED.findall(page.read_text("utf-8")) == [], page
    # The search of pages that are opened from a disk: its index as a script, and a stand-in for the
    # worker that browsers refuse there.
    assert (tmp_path / "search" / "search_index.js").read_text("utf-8").startswith("var __index")
    assert 'src="assets/iframe-worker.js"' in (tmp_path / "index.html").read_text("utf-8")
    chromium = shutil.which("chromium")
    if chromium is not None:
        assert _found(chromium, tmp_path / "howto" / "claims.html", "poison") > 0


def _found(chromium: str, page: Path, word: str) -> int:
    """Search from a page that is opened from the disk; return how many results are listed."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000")
    done = subprocess.run(
        [chromium, *options, "--dump-dom", f"{page.as_uri()}?q={word}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout.count("md-search-result__item")


@pytest.mark.parametrize("page", FRONT, ids=page_id)
def test_links_of_pages_outside_of_the_site(page: Path) -> None:
    """Each leads to a file, and to a heading in it if it names one."""
    for target in _LINK.findall(page.read_text("utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = ROOT / name
        assert file.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
            assert anchor in slugs, target


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_no_page_names_a_registry(page: Path) -> None:
    """Where packages come from is the business of whoever installs them."""
    assert _REGISTRY.findall(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_pages_are_plain_text(page: Path) -> None:
    """No emoji, no tabs, one title, and lines that can be read in a terminal."""
    text = page.read_text("utf-8")
    assert re.findall("[\u2600-\u27bf\U0001f000-\U0001faff\t]", text) == []
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1
    if page != GENERATED:
        assert [line for line in text.splitlines() if len(line) > 100 and line[0] != "|"] == []


def test_the_table_of_expectations_is_filled() -> None:
    """No cell is empty, a dash has a note, and every note is there and used."""
    text = read("explanation/first-day.md")
    cells = [cell for row in rows(text) for cell in row]
    assert len(cells) % 6 == 0
    assert [cell for cell in cells if cell.strip("- ") == ""] == []
    assert [cell for cell in cells if cell.endswith("-")] == []
    defined = re.findall(r"^\[\^(\w+)\]:", text, re.MULTILINE)
    assert set(defined) == set(re.findall(r"\[\^(\w+)\](?!:)", text))
