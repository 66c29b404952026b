"""The rules on the tree as a whole, and that the list of exceptions only gets shorter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tools import tidy

NOTHING: Final[Mapping[str, Mapping[str, Any]]] = {
    "ing": {},
    "small": {},
    "classes": {},
    "rows": {},
    "circles": {},
    "phrases": {},
}
LONG: Final = "\n" * tidy.MIN_MODULE_LINES


def found(
    src: Path,
    files: Mapping[str, str],
    allowed: Mapping[str, Mapping[str, Any]] | None = None,
    public: str = "",
    pages: Mapping[str, str] | None = None,
) -> list[str]:
    """Write *files* and return what is wrong with them, and with *pages*."""
    for name, text in files.items():
        path = src / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    rules = {**NOTHING, **(allowed or {})}
    return list(tidy.tree_findings(tidy.read_tree(src), public, rules, pages or {}))


def test_a_small_module_needs_two_importers_or_a_public_name(tmp_path: Path) -> None:
    """One importer is not enough; two are, and so is a page that names it."""
    files = {
        "a/__init__.py": "",
        "a/part.py": "",
        "a/one.py": f"from a import part{LONG}",
    }
    (problem,) = found(tmp_path, files)
    assert problem.startswith("a/part.py: less than 60 lines")
    assert found(tmp_path, {}, public="Use `a.part`.") == []
    assert len(found(tmp_path, {}, public="Use `a.parts`, or `b.a.part`.")) == 1
    assert found(tmp_path, {"a/two.py": f"from a.part import name{LONG}"}) == []


def test_a_module_is_named_with_a_noun(tmp_path: Path) -> None:
    """One that ends in -ing is found, unless it is allowed."""
    (problem,) = found(tmp_path, {"doing.py": LONG})
    assert problem.startswith("doing.py: ")
    assert found(tmp_path, {}, {"ing": {"doing.py": "a reason"}}) == []


def test_a_public_class_name_is_there_once_in_a_folder(tmp_path: Path) -> None:
    """Another folder may have it too, and private ones do not count."""
    text = f"class Call: ...\nclass _Own: ...{LONG}"
    assert found(tmp_path, {"a/one.py": text, "b/two.py": text}) == []
    (problem,) = found(tmp_path, {"a/three.py": text})
    assert problem.startswith("a/Call: ")


@pytest.mark.parametrize("taken", ["row[3]", "self._row[-1]", "old_row[0]", "rows[i][2]"])
def test_columns_by_number_are_found(taken: str, tmp_path: Path) -> None:
    """Unless they are allowed, with a reason."""
    files = {"a.py": f"x = {taken}{LONG}"}
    (problem,) = found(tmp_path, files)
    assert problem.startswith("a.py: columns by number")
    assert found(tmp_path, {}, {"rows": {"a.py": "a reason"}}) == []


@pytest.mark.parametrize("other", ["row.id", "row[:3]", "row['id']", "rows[3]", "arrow[3]"])
def test_nothing_else_is_a_column_by_number(other: str, tmp_path: Path) -> None:
    """Names, slices, keys, and what is no row."""
    assert found(tmp_path, {"a.py": f"x = {other}{LONG}"}) == []


def test_modules_do_not_import_each_other_in_a_circle(tmp_path: Path) -> None:
    """Also not for types alone, nor by way of a third; whoever only imports them is none of it."""
    files = {
        "p/__init__.py": "",
        "p/a.py": f"from p.b import B{LONG}",
        "p/b.py": f"from p import c{LONG}",
        "p/c.py": f"if TYPE_CHECKING:\n    from p.a import A{LONG}",
        "p/user.py": f"import p.a{LONG}",
    }
    problems = found(tmp_path, files)
    assert [problem.partition(":")[0] for problem in problems] == ["p/a.py", "p/b.py", "p/c.py"]
    assert found(tmp_path, {"p/c.py": LONG}) == []


def test_a_package_may_import_its_modules(tmp_path: Path) -> None:
    """They import each other, not the package."""
    files = {
        "p/__init__.py": "from p.a import A\nfrom p.b import B",
        "p/a.py": f"from p import b{LONG}",
        "p/b.py": LONG,
    }
    assert found(tmp_path, files) == []
    assert len(found(tmp_path, {"p/b.py": f"from p import A{LONG}"})) == 3


def test_what_is_allowed_without_need_is_found_and_taken_out(tmp_path: Path) -> None:
    """So exceptions only get fewer; comments and what is needed stay, and nothing is added."""
    allowed: dict[str, dict[str, Any]] = {
        "ing": {"doing.py": "a reason", "gone.py": "another"},
        "rows": {"a.py": "a reason", "b.py": "another"},
    }
    files = {"doing.py": LONG, "a.py": f"row[0]{LONG}", "c.py": f"row[0]{LONG}"}
    problems = found(tmp_path, files, allowed)
    assert [problem.partition(": ")[2].split()[2] for problem in problems if "tidy" in problem] == [
        "gone.py",
        "b.py",
    ]
    text = (
        '# Why.\n[ing]\n"doing.py" = "a reason"\n"gone.py" = "another"\n'
        '[small]\n[classes]\n[rows]\n"a.py" = "a reason"\n"b.py" = "another"\n[circles]\n'
    )
    assert tidy.lowered(text, tidy.read_tree(tmp_path), "", {}) == (
        '# Why.\n[ing]\n"doing.py" = "a reason"\n'
        '[small]\n[classes]\n[rows]\n"a.py" = "a reason"\n[circles]\n'
    )


def test_texts_for_users_have_none_of_the_phrases(tmp_path: Path) -> None:
    """Strings count, also those with values and over two lines of a page; docstrings do not."""
    text = f'"""For those who read it."""\nSAID = f"{{1}} is told, or whoever"{LONG}'
    page = "A message stays for\never."
    assert [
        problem.partition(": not")[0]
        for problem in found(tmp_path, {"a.py": text}, pages={"docs/a.md": page})
    ] == ["docs/a.md: for ever", "src/a.py: is told", "src/a.py: whoever"]
    allowed = {"phrases": dict.fromkeys(["src/a.py: is told", "src/a.py: whoever"], "a reason")}
    assert found(tmp_path, {}, allowed) == []


def test_the_pages_are_those_for_users() -> None:
    """The console's texts and the API's descriptions are among them; decisions are not."""
    pages = tidy.read_pages(tidy.ROOT)
    assert "docs/index.md" in pages
    assert "src/leasehold/http/native/openapi.yaml" in pages
    assert "src/leasehold/http/console/static/ui/settings.js" in pages
    assert not [path for path in pages if "decisions" in path or "vendor" in path]
