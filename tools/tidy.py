"""Rules of the house that no linter knows: sizes, names, imports, and who may read a clock.

What is there in spite of a rule stands in ``tidy.toml``, with its reason; an entry that is needed
no longer is a finding too, so that the list only gets shorter. ``--lower`` takes out such entries.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
ALLOWED: Final = ROOT / "tools/tidy.toml"
MAX_FUNCTION_LINES: Final = 70
MAX_MODULE_LINES: Final = 800
MIN_MODULE_LINES: Final = 60
"""What is smaller has a public name, or is used by two modules at least."""
CLOCK_CALLS: Final = {"time", "time_ns", "monotonic", "monotonic_ns", "clock_gettime"}
CLOCK_MODULE: Final = ROOT / "src/leasehold/clock.py"
PYTEST_PLUGIN: Final = ROOT / "src/leasehold/testing/pytest_plugin.py"
"""Only pytest loads it."""
TEST_LIBRARIES: Final = {"pytest", "hypothesis", "_pytest"}
PHRASES: Final = {
    "for ever": "forever, permanently, or without limit",
    "is told": "gets, or: the server answers",
    "are told": "get, or: the server answers",
    "be told": "get; be distinguished; be known",
    "finds no room": "is refused",
    "something to say": "reports",
    "somebody": "another worker, a client, an operator",
    "those who": "callers, operators, workers, clients",
    "who wonder": "what the text is shown with",
    "whoever": "the caller, the operator, the worker, the client",
    "worth nothing": "is invalid",
}
"""What is not to be in texts for users, and what the field says instead."""


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


# --- the tree as a whole -----------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """One module of ``src``."""

    path: str
    """Below ``src``, with slashes."""
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        """As it is imported: a package goes without ``__init__``."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read_tree(src: Path) -> list[Module]:
    """Read all modules below *src*."""
    modules = []
    for path in sorted(src.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(src).as_posix()
        modules.append(Module(where, text.count("\n"), ast.parse(text)))
    return modules


def imported(tree: ast.Module) -> set[str]:
    """Return everything that may be a module and is imported; one of a package names both."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def small_modules(modules: Iterable[Module], public: str) -> Iterator[str]:
    """Yield small modules that should be part of another.

    Args:
        modules: All of ``src``.
        public: Text in which public modules are named: pages, entry points.
    """
    importers = Counter(name for module in modules for name in imported(module.tree))
    for module in modules:
        stem = module.path.rpartition("/")[2]
        named = re.search(rf"(?<![\w.]){re.escape(module.name)}\b", public)
        if (
            module.lines < MIN_MODULE_LINES
            and stem not in {"__init__.py", "__main__.py"}
            and importers[module.name] < 2  # noqa: PLR2004 - with one it is that one's part
            and not named
        ):
            yield module.path


def ing_modules(modules: Iterable[Module]) -> Iterator[str]:
    """Yield the modules whose names say what they are doing."""
    for module in modules:
        if module.path.endswith("ing.py"):
            yield module.path


def repeated_classes(modules: Iterable[Module]) -> Iterator[str]:
    """Yield public classes that are defined twice in one folder, as ``folder/Name``."""
    found: Mapping[str, Counter[str]] = defaultdict(Counter)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[module.path.rpartition("/")[0]][node.name] += 1
    for folder, names in found.items():
        yield from (f"{folder}/{name}" for name, times in names.items() if times > 1)


def numbered_columns(modules: Iterable[Module]) -> Iterator[str]:
    """Yield the modules that take columns of rows by their number."""
    for module in modules:
        if any(map(is_numbered_column, ast.walk(module.tree))):
            yield module.path


def is_numbered_column(node: ast.AST) -> bool:
    """Tell whether *node* is like ``row[3]``, ``old_row[-1]`` or ``rows[0][3]``."""
    if not isinstance(node, ast.Subscript):
        return False
    index, row = node.slice, node.value
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    if not (isinstance(index, ast.Constant) and isinstance(index.value, int)):
        return False
    ending = "row"
    if isinstance(row, ast.Subscript):
        row, ending = row.value, "rows"
    if isinstance(row, ast.Attribute):
        name = row.attr
    else:
        name = row.id if isinstance(row, ast.Name) else ""
    return name == ending or name.endswith("_" + ending)


def circular_modules(modules: list[Module]) -> Iterator[str]:
    """Yield the modules that import themselves by way of others.

    Imports under TYPE_CHECKING and within functions count: whoever reads such a module has to read
    all of its circle.
    """
    names = {module.name for module in modules}
    imports = {module.name: imported_of(names, module.tree) - {module.name} for module in modules}
    for module in modules:
        reached: set[str] = set()
        left = [module.name]
        while left:
            more = imports[left.pop()] - reached
            reached |= more
            left += more
        if module.name in reached:
            yield module.path


def imported_of(names: set[str], tree: ast.Module) -> set[str]:
    """Return which of these modules are imported; a package, only for a name of its own."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                part = f"{node.module}.{alias.name}"
                found.add(part if part in names else node.module)
    return found & names


def read_pages(root: Path) -> dict[str, str]:
    """Return the texts for users that are not strings of a module, by their path below *root*.

    Decisions are for developers, and comments of the console's scripts are no texts for users.
    """
    console = "src/leasehold/http/console/static"
    paths = [
        *(path for path in root.glob("docs/**/*.md") if "decisions" not in path.parts),
        *(path for path in root.glob(f"{console}/**/*.js") if "vendor" not in path.parts),
        root / "src/leasehold/http/native/openapi.yaml",
    ]
    return {
        path.relative_to(root).as_posix(): re.sub(
            r"(?m)^\s*(//|/?\*).*$", "", path.read_text(encoding="utf-8")
        )
        for path in paths
    }


def spoken_texts(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings; of an f-string, the text in it."""
    silent = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in silent
        ):
            yield node.value


def odd_phrases(modules: Iterable[Module], pages: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts for users with one of the phrases: the path, a colon, and the phrase."""
    texts = {f"src/{module.path}": "\n".join(spoken_texts(module.tree)) for module in modules}
    pattern = re.compile(rf"\b({'|'.join(PHRASES)})\b".replace(" ", r"\s+"), re.IGNORECASE)
    for path, text in (texts | dict(pages)).items():
        for phrase in {" ".join(match[0].lower().split()) for match in pattern.finditer(text)}:
            yield f"{path}: {phrase}"


def tree_rules(
    modules: list[Module], public: str, pages: Mapping[str, str]
) -> dict[str, tuple[set[str], str]]:
    """Return what breaks each rule that ``tidy.toml`` has exceptions to, and what is wrong then."""
    return {
        "ing": (set(ing_modules(modules)), "the name of a module is a noun"),
        "small": (
            set(small_modules(modules, public)),
            f"less than {MIN_MODULE_LINES} lines, not public, and not used twice: merge it",
        ),
        "classes": (set(repeated_classes(modules)), "defined more than once in its folder"),
        "rows": (set(numbered_columns(modules)), "columns by number: give the rows names"),
        "circles": (set(circular_modules(modules)), "imports itself by way of others"),
        "phrases": (
            set(odd_phrases(modules, pages)),
            "not how the field says it: PHRASES in tools/tidy.py has other words",
        ),
    }


def tree_findings(
    modules: list[Module],
    public: str,
    allowed: Mapping[str, Mapping[str, Any]],
    pages: Mapping[str, str],
) -> Iterator[str]:
    """Yield what is wrong with the tree as a whole, and what is allowed without need."""
    for rule, (names, problem) in tree_rules(modules, public, pages).items():
        yield from (f"{name}: {problem}" for name in sorted(names - allowed[rule].keys()))
        for name in sorted(allowed[rule].keys() - names):
            yield f"tidy.toml: [{rule}] allows {name} without need; --lower takes it out"


def lowered(text: str, modules: list[Module], public: str, pages: Mapping[str, str]) -> str:
    """Return *text*, that of ``tidy.toml``, without what is not needed. Nothing is added."""
    rules = tree_rules(modules, public, pages)
    lines, rule = [], ""
    for line in text.splitlines():
        entry = re.fullmatch(r'"([^"]+)" = (.+)', line)
        if line.startswith("["):
            rule = line.strip("[]")
        if entry is None or entry[1] in rules[rule][0]:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print every finding; exit code 1 if there are any."""
    files = [
        path
        for folder in ("src", "tests", "benchmarks", "examples", "proof", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "node_modules" not in path.parts
    ]
    modules = read_tree(ROOT / "src")
    names = [ROOT / "pyproject.toml", *sorted((ROOT / "docs").rglob("*.md"))]
    public = "\n".join(page.read_text(encoding="utf-8") for page in names)
    pages = read_pages(ROOT)
    if "--lower" in sys.argv[1:]:
        text = ALLOWED.read_text(encoding="utf-8")
        ALLOWED.write_text(lowered(text, modules, public, pages), encoding="utf-8")
    found = [finding for path in files for finding in findings(path)]
    allowed = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    found += tree_findings(modules, public, allowed, pages)
    print("\n".join(found) or f"{len(files)} files are tidy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
