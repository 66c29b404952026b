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
}
LONG: Final = "\n" * tidy.MIN_MODULE_LINES


def found(
    src: Path,
    files: Mapping[str, str],
    allowed: Mapping[str, Mapping[str, Any]] | None = None,
    public: str = "",
) -> list[str]:
    """Write *files* and return what is wrong with them."""
    for name, text in files.items():
        path = src / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(tidy.tree_findings(tidy.read_tree(src), public, {**NOTHING, **(allowed or {})}))


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
def test_columns_by_number_are_counted(taken: str, tmp_path: Path) -> None:
    """As many as are allowed pass, one more does not."""
    files = {"a.py": f"x = {taken}{LONG}"}
    (problem,) = found(tmp_path, files)
    assert problem.startswith("a.py: 1 columns by number, at most 0")
    assert found(tmp_path, {}, {"rows": {"a.py": 1}}) == []


@pytest.mark.parametrize("other", ["row.id", "row[:3]", "row['id']", "rows[3]", "arrow[3]"])
def test_nothing_else_is_a_column_by_number(other: str, tmp_path: Path) -> None:
    """Names, slices, keys, and what is no row."""
    assert found(tmp_path, {"a.py": f"x = {other}{LONG}"}) == []


def test_the_number_of_modules_has_a_bound(tmp_path: Path) -> None:
    """One more than allowed is found."""
    files = {f"m{number}.py": LONG for number in range(tidy.MAX_SHIPPED_MODULES)}
    assert found(tmp_path, files) == []
    assert len(found(tmp_path, {"more.py": LONG})) == 1


def test_what_is_allowed_without_need_is_found_and_taken_out(tmp_path: Path) -> None:
    """So exceptions only get fewer; comments and what is needed stay, and nothing is added."""
    allowed: dict[str, dict[str, Any]] = {
        "ing": {"doing.py": "a reason", "gone.py": "another"},
        "rows": {"a.py": 3, "b.py": 2},
    }
    files = {"doing.py": LONG, "a.py": f"row[0]{LONG}", "c.py": f"row[0]{LONG}"}
    problems = found(tmp_path, files, allowed)
    assert [problem.partition(": ")[2].split()[2] for problem in problems if "tidy" in problem] == [
        "gone.py",
        "a.py",
        "b.py",
    ]
    text = (
        '# Why.\n[ing]\n"doing.py" = "a reason"\n"gone.py" = "another"\n'
        '[small]\n[classes]\n[rows]\n"a.py" = 3\n"b.py" = 2\n'
    )
    assert tidy.lowered(text, tidy.read_tree(tmp_path), "") == (
        '# Why.\n[ing]\n"doing.py" = "a reason"\n[small]\n[classes]\n[rows]\n"a.py" = 1\n'
    )
