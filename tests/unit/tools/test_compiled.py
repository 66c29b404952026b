"""What is compiled, and when the compiled form is taken."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from tools import compiled_finder, make_compiled
from tools.compiled_finder import CompiledFinder

pytest.importorskip("mypy")  # not among what `make test` installs by itself

_MODULE: Final = "leasehold.some.module"
_OTHER: Final = "leasehold.some.other"
_SUFFIX: Final = EXTENSION_SUFFIXES[0]


@pytest.fixture
def finder(tmp_path: Path) -> CompiledFinder:
    """A finder with two modules, one of them with its source below ``tmp_path/src``."""
    source = tmp_path / "src" / "some" / "module.py"
    source.parent.mkdir(parents=True)
    source.write_text("A = 1\n")
    for name in ("some.module", "some.other"):
        (tmp_path / f"{name}{_SUFFIX}").touch()
    manifest = {"sources": {"some/module.py": hashlib.sha256(b"A = 1\n").hexdigest()}}
    (tmp_path / compiled_finder.MANIFEST).write_text(json.dumps(manifest))
    return CompiledFinder(str(tmp_path), "leasehold", str(tmp_path / "src"))


def test_the_compiled_form_of_these_sources_is_taken(
    finder: CompiledFinder, tmp_path: Path
) -> None:
    """Of modules that are there, and of no others."""
    spec = finder.find_spec(_MODULE)
    assert spec is not None
    assert spec.origin == f"{tmp_path}/some.module{_SUFFIX}"
    assert finder.find_spec(_OTHER) is not None
    assert finder.find_spec("leasehold.some.third") is None
    assert finder.find_spec("some.module") is None


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_after_a_change_the_sources_run(
    finder: CompiledFinder, tmp_path: Path, change: str
) -> None:
    """One source is enough: compiled modules know each other's insides."""
    source = tmp_path / "src" / "some" / "module.py"
    if change == "edited":
        source.write_text("A = 2\n")
    else:
        source.unlink()
    assert finder.find_spec(_MODULE) is None


def test_forms_are_not_mixed(finder: CompiledFinder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one module runs from its source already, the others do, too."""
    monkeypatch.setitem(sys.modules, _OTHER, ModuleType(_OTHER))
    assert finder.find_spec(_MODULE) is None


@pytest.mark.parametrize(("switch", "finders"), [(None, 1), ("1", 1), ("0", 0)])
def test_the_environment_can_refuse_the_compiled_form(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, switch: str | None, finders: int
) -> None:
    """Then imports do not even ask."""
    monkeypatch.delenv(compiled_finder.SWITCH, raising=False)
    if switch is not None:
        monkeypatch.setenv(compiled_finder.SWITCH, switch)
    monkeypatch.setattr(sys, "meta_path", [])
    compiled_finder.install("leasehold", str(tmp_path))
    assert len(sys.meta_path) == finders


# --- without a compiler --------------------------------------------------------------------------


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was compiled before, and there is next to nothing to compile."""
    (tmp_path / "src" / "leasehold").mkdir(parents=True)
    monkeypatch.setattr(make_compiled, "SOURCES", tmp_path / "src")
    monkeypatch.setattr(make_compiled, "MODULES", ())
    monkeypatch.setattr(make_compiled, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(make_compiled, "DIST", tmp_path / "dist")
    monkeypatch.setattr(make_compiled, "installed", lambda: None)


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("words", [["--install"], []])
def test_without_a_c_compiler_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """One line says so, and nothing fails."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert make_compiled.main(words) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "pure Python: there is no C compiler (no-such-compiler)" in line


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize(("words", "code"), [(["--install"], 0), ([], 1)])
def test_a_failure_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    code: int,
) -> None:
    """It spoils no developer's setup, but no wheel is missing unnoticed."""
    monkeypatch.setattr(make_compiled, "check_compiler", lambda: None)
    monkeypatch.setattr(make_compiled, "_SCRIPT", "raise SystemExit('out of luck')")
    assert make_compiled.main(words) == code
    log = tmp_path / "cache" / "failed.log"
    assert str(log) in capsys.readouterr().out
    assert "out of luck" in log.read_text()


def test_another_version_is_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wheel has another name and asks for that version, so none is taken from the cache."""
    before = make_compiled.key_of({})
    monkeypatch.setattr(make_compiled, "source_version", lambda: "9.9.9")
    assert make_compiled.key_of({}) != before


@pytest.mark.usefixtures("no_cache")
def test_a_cache_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It spoils no setup either."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(make_compiled, "CACHE", tmp_path / "file" / "cache")
    monkeypatch.setattr(make_compiled, "check_compiler", lambda: None)
    assert make_compiled.main(["--install"]) == 0
    assert "pure Python: [Errno 20] Not a directory" in capsys.readouterr().out


# --- what mypyc does not do ----------------------------------------------------------------------


def _tree(module: str) -> ast.Module:
    path = make_compiled.file_of(f"leasehold.{module}")
    assert path is not None
    return ast.parse(path.read_text())


@pytest.mark.parametrize("module", make_compiled.MODULES)
def test_compiled_modules_name_no_causes(module: str) -> None:
    """The cause in ``raise ... from cause`` is left out by mypyc."""
    raised = [node for node in ast.walk(_tree(module)) if isinstance(node, ast.Raise)]
    causes = [node.cause for node in raised if node.cause is not None]
    assert all(isinstance(cause, ast.Constant) and cause.value is None for cause in causes)


@pytest.mark.parametrize("module", make_compiled.OPEN_CLASSES)
def test_what_interpreted_subclasses_replace_is_looked_up(module: str) -> None:
    """Methods are. Fields are not: a value of the class is, as a ClassVar. Static methods are not.

    mypyc reads a field where it is in the object, whatever a subclass says of it.
    """
    members = {
        node.name: node.body
        for node in _tree(module).body
        if isinstance(node, ast.ClassDef) and node.name in make_compiled.OPEN_CLASSES[module]
    }
    for name, body in members.items():
        for node in body:
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                assert ast.unparse(node.annotation).startswith("ClassVar"), (name, node.lineno)
            elif isinstance(node, ast.Assign):
                assert ast.unparse(node.targets[0]) == "__slots__", (name, node.lineno)
            elif isinstance(node, ast.FunctionDef):
                static = [ast.unparse(each) for each in node.decorator_list]
                assert not {"staticmethod", "classmethod"} & set(static), (name, node.lineno)


@pytest.mark.parametrize("module", make_compiled.OPEN_CLASSES)
def test_lines_stay_where_they_are_when_classes_are_opened(module: str) -> None:
    """So that tracebacks show the right ones; and only these classes change."""
    path = make_compiled.file_of(f"leasehold.{module}")
    assert path is not None
    source = path.read_text()
    opened = make_compiled.opened(module, source)
    before = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    after = {node.name: node for node in ast.parse(opened).body if isinstance(node, ast.ClassDef)}
    assert {name: node.lineno for name, node in before.items()} == {
        name: node.lineno for name, node in after.items()
    }
    changed = {name for name in after if len(after[name].decorator_list) > 0}
    changed -= {name for name in before if before[name].decorator_list}
    assert changed == set(make_compiled.OPEN_CLASSES[module])


def test_what_is_compiled_hangs_on_all_that_it_imports() -> None:
    """Directly or not: constants of other modules are in what mypyc makes."""
    found = make_compiled.sources()
    assert {f"{module.replace('.', '/')}.py" for module in make_compiled.MODULES} <= set(found)
    assert "domain/limits.py" in found
    assert "worker/__init__.py" not in found
