"""Make the synchronous client from the source of the asynchronous one.

``python tools/make_sync.py`` writes ``leasehold/client/_sync``; with ``--check`` it writes nothing
and fails if a file there is not what it would write. The result goes through ruff, so that it
passes the same checks as what is written by hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src/leasehold/client/_async"
RESULT: Final = ROOT / "src/leasehold/client/_sync"

# Whole sentences first: what is true of one client only. Each must be found in some file.
SENTENCES: Final = {
    '''"""The asynchronous client, and the source that the synchronous one is made from."""''': (
        '''"""The synchronous client, made by tools/make_sync.py from the asynchronous one."""'''
    ),
    """It belongs to the event loop
    that it was first used in. To cancel a call closes its connection; messages that the server
    has leased for a cancelled receive come back when their lease ends.
""": """Threads may share it; a
    process that was forked must make its own.
""",
    "        # Also when the caller is cancelled: a half-read connection cannot be used again.\n": (
        "        # Also after an interrupt: a half-read connection cannot be used again.\n"
    ),
}
TOKENS: Final = (
    (r"Callable\[\[\], Awaitable\[(\w+)\]\]", r"Callable[[], \1]"),
    (r"\bAsyncIterator, Awaitable, Callable\b", "Callable, Iterator"),
    (r"\bAwaitable, Callable\b", "Callable"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\bimport asyncio\b", "import time"),
    (r"\bhandle_async_request\b", "handle_request"),
    (r"\b_async\b", "_sync"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\ba(close|read)\b", r"\1"),
)
# Sorted imports, whether or not the files that they name are there yet, and "yield from", which
# asynchronous generators do not have.
_FIXES: Final = (
    *("--select", "I,UP028,F401", "--fix", "--unsafe-fixes"),
    *("--config", 'lint.isort.known-first-party=["leasehold"]'),
)
LEFT_OVER: Final = re.compile(r"\basync\b|\bawait\b|\basyncio\b|\bAsync|\bAwaitable\b")


def main(arguments: list[str]) -> int:
    """Write the files, or compare; exit code 1 if they differ or cannot be made."""
    made = dict(results())
    for path in RESULT.glob("*.py"):
        if path not in made:
            print(f"{path.relative_to(ROOT)} has no source")
            return 1
    if "--check" not in arguments:
        RESULT.mkdir(exist_ok=True)
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is out of date: run python tools/make_sync.py")
    return 1 if stale else 0


def results() -> Iterator[tuple[Path, str]]:
    """Yield each file to write, and its text."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.glob("*.py"))}
    for sentence in SENTENCES:
        if not any(sentence in text for text in sources.values()):
            raise SystemExit(f"no file has this sentence any more:\n{sentence}")
    for path, text in sources.items():
        yield RESULT / path.name, tidied(synchronous(text), RESULT / path.name)


def synchronous(text: str) -> str:
    """Return the synchronous form of a module.

    Raises:
        SystemExit: Something asynchronous is left that this tool has no rule for.
    """
    for sentence, other in SENTENCES.items():
        text = text.replace(sentence, other)
    for pattern, replacement in TOKENS:
        text = re.sub(pattern, replacement, text)
    left = LEFT_OVER.search(text)
    if left is not None:
        line = text.count("\n", 0, left.start()) + 1
        raise SystemExit(f"no rule for {left[0]!r} in line {line} of:\n{text}")
    return f"# Made by tools/make_sync.py from ../_async: change that, and run the tool.\n{text}"


def tidied(text: str, path: Path) -> str:
    """Return the text with its imports sorted and its lines broken as ruff wants them."""
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(path), "-"]
    for command in (
        [*ruff, "check", "--quiet", *_FIXES, "--exit-zero", *name],
        [*ruff, "format", "--quiet", *name],
    ):
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
