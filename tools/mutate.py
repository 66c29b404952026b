"""Find out how many small mistakes in some modules the tests notice, and which they do not.

Each mutant has one node of the syntax tree changed: an operator, a bound, a condition, a statement
that is left out. All are made in memory. The tests are collected once; for each mutant a process of
its own exchanges the code of one function, and runs those tests that call it. A mutant that no test
fails for has survived. Only functions that run in the process of the tests can be judged, and only
if they are called after the modules were imported.

    python tools/mutate.py -m src/leasehold/advisor -n 150 --label advisor tests/unit/advisor
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import importlib
import json
import os
import random
import resource
import select
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, TypeAlias

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "benchmarks/results/mutation.json"
MAX_MEMORY_BYTES: Final = 8 << 30
"""Of a process of tests: a loop that never ends may well collect something."""
MAX_TEXT: Final = 70
"""Characters of source that are told of a mutant."""
OPERATORS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
"""What takes the place of each."""
UNCHANGED: Final = {"decorator_list", "returns", "args", "annotation", "type_params"}
"""Members of a function or an assignment that are not part of what it does when it is called."""
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Mutant:
    """One change, and what came of it."""

    module: str
    number: int
    """Which of the mutants of its module it is, from 0."""
    line: int
    function: str
    change: str
    """The source before and after."""
    outcome: str = "survived"
    """Or killed; timeout, which is as good; unreached, as no test calls the function; invalid."""
    killers: Sequence[str] = ()
    """Tests that failed; only the first unless all were asked for."""


# --- making mutants ----------------------------------------------------------------------------


@dataclass
class _Place:
    """A node within a function, and where it hangs."""

    function: str
    parent: ast.AST
    member: str
    index: int | None
    """In a member that is a list."""
    node: ast.AST

    def put(self, node: ast.AST) -> None:
        """Hang another node there."""
        if self.index is None:
            setattr(self.parent, self.member, node)
        else:
            getattr(self.parent, self.member)[self.index] = node


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of the functions of a module, in the order of its text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = path.relative_to(ROOT).as_posix()
    return [
        Mutant(
            module,
            number,
            getattr(place.node, "lineno", 0),
            place.function,
            f"{_text(place.node)} -> {_text(changed)}",
        )
        for number, (place, changed) in enumerate(_changes(tree))
    ]


def code_of(mutant: Mutant) -> CodeType:
    """Compile the function of a mutant with its change.

    Raises:
        SyntaxError, ValueError, LookupError: It cannot be changed so.
    """
    path = ROOT / mutant.module
    tree = ast.parse(path.read_text(encoding="utf-8"))
    place, changed = list(_changes(tree))[mutant.number]
    place.put(ast.copy_location(changed, place.node))
    whole = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    found = [whole]
    for name in mutant.function.split("."):
        found = [each for code in found for each in code.co_consts if _is_code(each, name)]
    if len(found) != 1:  # a property and its setter have one name
        raise LookupError(mutant.function)
    return found[0]


def _is_code(value: object, name: str) -> bool:
    return isinstance(value, CodeType) and value.co_name == name


def _changes(tree: ast.Module) -> Iterator[tuple[_Place, ast.AST]]:
    for place in list(_places(tree, "", inside=False)):
        for changed in _instead_of(place.node):
            yield place, changed


def _places(node: ast.AST, function: str, *, inside: bool) -> Iterator[_Place]:
    """Yield all nodes that are executed when a function of a module or of a class is called."""
    for member, value in ast.iter_fields(node):
        if member in UNCHANGED and not isinstance(node, ast.Call):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST):
                continue
            if inside:
                at = index if isinstance(value, list) else None
                yield _Place(function, node, member, at, child)
                yield from _places(child, function, inside=True)
            elif isinstance(child, Function | ast.ClassDef):
                name = f"{function}.{child.name}".lstrip(".")
                yield from _places(child, name, inside=isinstance(child, Function))


def _instead_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node is exchanged for."""
    match node:
        case ast.Compare(ops=[first, *others]) if type(first) in OPERATORS:
            yield _with(node, ops=[OPERATORS[type(first)](), *others])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            yield _with(node, op=OPERATORS[type(op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.If() | ast.While() | ast.IfExp():
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Constant() | ast.Yield()):
            return
        case ast.Raise() | ast.Expr() | ast.AugAssign():
            yield ast.Pass()


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _with(node: ast.AST, **members: object) -> ast.AST:
    """Return a copy of a node with other members."""
    changed = copy.copy(node)
    for name, value in members.items():
        setattr(changed, name, value)
    return changed


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


# --- running tests on them ---------------------------------------------------------------------


class Runner:
    """A plugin of pytest that runs what was collected once for each mutant.

    Args:
        limit_s: How long the tests of one mutant may take.
        whole: Whether to run all of them, and not just up to the first that fails.
    """

    def __init__(self, mutants: list[Mutant], *, limit_s: float, whole: bool) -> None:
        self._mutants = mutants
        self._limit_s = limit_s
        self._whole = whole
        self._failed: list[str] = []
        self._functions: dict[tuple[str, str], list[FunctionType]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        if report.failed:
            self._failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests on the code as it is, then on each mutant those that call its function.

        Files that take the least time come first, as one test that fails is mostly enough.

        Raises:
            pytest.UsageError: They fail without a mutant.
        """
        self._functions = functions_of({each.module for each in self._mutants})
        gc.collect()
        gc.freeze()
        told = _apart(lambda: self._observed(session.items), limit_s=None) or {}
        if told["failed"]:
            raise pytest.UsageError(f"failed without a mutant: {told['failed']}")
        calls = {(path, name): set(tests) for path, name, tests in told["calls"]}
        session.items.sort(key=lambda item: (told["seconds"][str(item.path)], str(item.path)))
        for number, mutant in enumerate(self._mutants, start=1):
            tests = calls.get((str(ROOT / mutant.module), mutant.function), set())
            items = [item for item in session.items if item.nodeid in tests]
            self._judge(mutant, items)
            print(f"{number}/{len(self._mutants)} {mutant.outcome}", flush=True)
        return True

    def _judge(self, mutant: Mutant, items: Sequence[pytest.Item]) -> None:
        """Note what came of a mutant."""
        if not items:
            mutant.outcome = "unreached"
            return
        told = _apart(lambda: self._tried(mutant, items), limit_s=self._limit_s)
        if told is None:
            mutant.outcome = "timeout"
        elif told["failed"] is None:
            mutant.outcome = "invalid"
        elif told["failed"]:
            mutant.outcome, mutant.killers = "killed", told["failed"]

    def _observed(self, items: Sequence[pytest.Item]) -> dict[str, Any]:
        """Run the tests, and note which function is called by which."""
        modules = {str(ROOT / each.module) for each in self._mutants}
        now: set[tuple[str, str]] = set()
        calls: dict[tuple[str, str], list[str]] = defaultdict(list)

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename in modules:
                now.add((frame.f_code.co_filename, frame.f_code.co_qualname))

        seconds: dict[str, float] = defaultdict(float)
        threading.setprofile(note)
        for item, following in zip(items, [*items[1:], None], strict=True):
            now.clear()
            began = time.monotonic()
            sys.setprofile(note)
            _run(item, following)
            sys.setprofile(None)
            seconds[str(item.path)] += time.monotonic() - began
            for key in set(now):
                calls[key].append(item.nodeid)
        named = [(*key, names) for key, names in calls.items()]
        return {"failed": self._failed, "calls": named, "seconds": seconds}

    def _tried(self, mutant: Mutant, items: Sequence[pytest.Item]) -> dict[str, Any]:
        """Run tests on a mutant; None in the place of those that failed if it cannot be made."""
        try:
            code = code_of(mutant)
            for each in self._functions[mutant.module, mutant.function]:
                each.__code__ = code
        except (SyntaxError, ValueError, LookupError):
            return {"failed": None}
        for item, following in zip(items, [*items[1:], None], strict=True):
            _run(item, following)
            if self._failed and not self._whole:
                break
        return {"failed": sorted(set(self._failed))}


def functions_of(modules: set[str]) -> dict[tuple[str, str], list[FunctionType]]:
    """Import modules, and find what is to be exchanged in them, by module and qualified name."""
    for module in modules:
        name = module.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
        importlib.import_module(name.replace("/", "."))
    found = defaultdict(list)
    paths = {str(ROOT / module): module for module in modules}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in paths:
            found[paths[each.__code__.co_filename], each.__code__.co_qualname].append(each)
    return dict(found)


def _run(item: pytest.Item, following: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _apart(task: Callable[[], dict[str, Any]], limit_s: float | None) -> dict[str, Any] | None:
    """Do something in a process of its own; None if it took too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        try:
            told = task()
        except BaseException as error:  # noqa: BLE001 - the mutant broke the run itself
            told = {"failed": [repr(error)]}
        with os.fdopen(writing, "w") as out:
            json.dump(told, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as out:
        in_time, _, _ = select.select([out], [], [], limit_s)
        text = out.read() if in_time else ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with it what the tests have left
    os.waitpid(child, 0)
    return json.loads(text) if text else None


# --- the command -------------------------------------------------------------------------------


def main() -> int:
    """Run the command."""
    os.environ["COMPILED_LEASEHOLD"] = "0"  # compiled functions have no code to exchange
    options = _options()
    files = [file for path in options.modules for file in sorted(_files(path.resolve()))]
    mutants = [each for path in files for each in mutants_of(path)]
    draw = random.Random(options.seed)
    sample = draw.sample(mutants, min(options.sample, len(mutants)))
    sample.sort(key=lambda each: (each.module, each.number))
    print(f"{len(sample)} of {len(mutants)} mutants of {len(files)} modules")
    runner = Runner(sample, limit_s=options.limit_s, whole=options.whole)
    quiet = ["-q", "--capture=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main([*quiet, *options.tests], plugins=[runner])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return int(code)
    _report(sample, options)
    return 0


def _report(sample: list[Mutant], options: argparse.Namespace) -> None:
    """Print what survived and a table by module, and put all of it into the file of results."""
    sample = [each for each in sample if each.outcome != "invalid"]
    for each in sample:
        if each.outcome == "survived":
            print(f"survived: {each.module}:{each.line} {each.function}: {each.change}")
    by_module: dict[str, Counter[str]] = defaultdict(Counter)
    for each in sample:
        by_module[each.module][each.outcome] += 1
    for module, counts in by_module.items():
        print(f"{module}: {dict(counts)}")
    counts = Counter(each.outcome for each in sample)
    killed = counts["killed"] + counts["timeout"]
    print(f"{killed} of {len(sample)} killed: {dict(counts)}")
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    known[options.label] = {
        "tests": options.tests,
        "seed": options.seed,
        "killed": killed,
        "of": len(sample),
        "modules": by_module,
        "left": [asdict(each) for each in sample if each.outcome in {"survived", "unreached"}],
    }
    options.out.write_text(json.dumps(known, indent=1) + "\n")


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from path.rglob("*.py")
    else:
        yield path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="+", help="what pytest runs; its options after --")
    parser.add_argument(
        "-m", "--modules", nargs="+", type=Path, required=True, help="files or folders to change"
    )
    parser.add_argument("-n", "--sample", type=int, default=100, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=60, help="for the tests of one mutant")
    parser.add_argument("--whole", action="store_true", help="note all tests that fail for each")
    parser.add_argument("--label", default="run", help="what the run is called in the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
