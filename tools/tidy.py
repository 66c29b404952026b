"""Rules of the house that no linter knows: sizes, and who may read a clock."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MAX_FUNCTION_LINES: Final = 70
MAX_MODULE_LINES: Final = 800
CLOCK_CALLS: Final = {"time", "time_ns", "monotonic", "monotonic_ns", "clock_gettime"}
CLOCK_MODULE: Final = ROOT / "src/leasehold/clock.py"
PYTEST_PLUGIN: Final = ROOT / "src/leasehold/testing/pytest_plugin.py"
"""Only pytest loads it."""
TEST_LIBRARIES: Final = {"pytest", "hypothesis", "_pytest"}


def findings(path: Path) -> Iterator[str]:
    """Yield what is wrong with one Python file."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    name = path.relative_to(ROOT)
    if lines > MAX_MODULE_LINES:
        yield f"{name}: {lines} lines, at most {MAX_MODULE_LINES}"
    shipped = "src" in name.parts and path != PYTEST_PLUGIN
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines"
        elif shipped:
            yield from (f"{name}: {problem}" for problem in shipped_findings(node, path))


def shipped_findings(node: ast.AST, path: Path) -> Iterator[str]:
    """Yield what shipped code may not do at one node."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] in TEST_LIBRARIES:
                yield f"line {node.lineno}: shipped code imports {alias.name}"
    elif isinstance(node, ast.ImportFrom):
        if (node.module or "").split(".")[0] in TEST_LIBRARIES:
            yield f"line {node.lineno}: shipped code imports {node.module}"
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "time"
        and node.func.attr in CLOCK_CALLS
        and path != CLOCK_MODULE
    ):
        yield f"line {node.lineno}: only leasehold.clock reads the system clock"


def main() -> int:
    """Print every finding; exit code 1 if there are any."""
    files = [
        path
        for folder in ("src", "tests", "benchmarks", "examples", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "node_modules" not in path.parts
    ]
    found = [finding for path in files for finding in findings(path)]
    print("\n".join(found) or f"{len(files)} files are tidy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
