"""Brings modules of the user's folder to executors that would not find them."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

_NOT_OURS: Final = ("site-packages", "dist-packages")
_LEFT_OUT: Final = frozenset({"__pycache__"})


def own_modules(folder: Path, modules: Mapping[str, ModuleType] | None = None) -> list[Path]:
    """Return the files and packages of *folder* that are imported, without what is installed.

    Args:
        folder: Whose modules are the user's own.
        modules: Those that are imported; None: of this process.
    """
    root = folder.resolve()
    found: dict[Path, None] = {}
    for name, module in list((sys.modules if modules is None else modules).items()):
        top = name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if not file or top in {"leasehold", "__main__"}:
            continue
        path = Path(file).resolve()
        if not path.is_relative_to(root) or any(part in _NOT_OURS for part in path.parts):
            continue
        package, alone = root / top, root / f"{top}.py"
        if package.is_dir() and path.is_relative_to(package):
            found[package] = None
        elif path == alone:
            found[alone] = None
    return list(found)


def packed(paths: Iterable[Path], target: Path) -> Path:
    """Write files and packages into an archive that Python can import from, and return it."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            files = [path] if path.is_file() else sorted(path.rglob("*"))
            for file in files:
                if file.is_file() and not _LEFT_OUT.intersection(file.parts):
                    archive.write(file, file.relative_to(path.parent))
    return target
