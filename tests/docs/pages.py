"""Reading the documentation: pages, fenced blocks, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
FRONT: Final = (ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md")
"""Pages that are not part of the site."""

_FENCE: Final = re.compile(
    r"^( *)```(\w*)(?: title=\"([\w.-]+)\")?[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    language: str
    text: str
    line: int
    """Line of the page on which the fence opens."""
    adjacent: bool
    """Whether nothing but blank lines stands between the block before and this one."""
    title: str | None = None
    """Name of the file that it is."""

    def __str__(self) -> str:
        return f"line {self.line}"


def pages() -> list[Path]:
    """Return every page, those outside of the site included."""
    return [*FRONT, *sorted(DOCS.rglob("*.md"))]


def page_id(page: Path) -> str:
    """Return a short name of a page, for the names of tests."""
    return str(page.relative_to(ROOT))


def read(name: str) -> str:
    """Return the text of a page below ``docs``."""
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        indent, language, title, body = match.groups()
        lines = (line.removeprefix(indent) for line in body.splitlines(keepends=True))
        found.append(
            Block(
                language=language,
                text="".join(lines),
                line=text.count("\n", 0, match.start()) + 1,
                adjacent=bool(found) and not text[end : match.start()].strip(),
                title=title,
            )
        )
        end = match.end()
    return found


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one of the same rank or above.

    A heading in *text* may have an anchor of its own, as in ``## Title { #anchor }``.
    """
    rank, text = heading.index(" "), f"\n{text}"
    found = re.search(rf"\n{re.escape(heading)}(?: {{ #[\w-]+ }})?\n", text)
    if found is None:
        message = f"no heading {heading!r}"
        raise ValueError(message)
    start = found.end()
    following = re.compile(rf"^#{{1,{rank}}} ", re.MULTILINE).search(text, start)
    return text[start : following.start() if following else len(text)]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every row of the tables in *text*, heads included."""
    for line in text.splitlines():
        if line.startswith("|") and not set(line) <= set("|- :"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def code(text: str) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
