"""Finds the compiled form of Leasehold's hot path: installed as the module ``leasehold_compiled``.

``leasehold/__init__.py`` calls :func:`install` where this module is there. What is compiled was
made of certain sources, and is taken only for those: after any change to one of them, or with
``COMPILED_LEASEHOLD=0`` in the environment, all modules are the pure ones.

Every program that imports Leasehold imports this, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

SWITCH = "COMPILED_LEASEHOLD"
MANIFEST = "manifest.json"


class CompiledFinder:
    """Answers for the modules that are compiled: for all of them, or for none.

    Args:
        folder: Where they are, named as in the package, with their manifest.
        package: The package's name.
        root: Where its sources are.
    """

    def __init__(self, folder: str, package: str, root: str) -> None:
        self._folder = folder
        self._root = root
        ends = EXTENSION_SUFFIXES[0]
        files = [name for name in os.listdir(folder) if name.endswith(ends)]  # noqa: PTH208
        self._files = {f"{package}.{name.removesuffix(ends)}": name for name in files}
        self._is_usable: bool | None = None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        file = self._files.get(fullname)
        if file is None:
            return None
        if self._is_usable is None:
            self._is_usable = self._check()
        if not self._is_usable:
            return None
        origin = f"{self._folder}/{file}"
        spec = ModuleSpec(fullname, ExtensionFileLoader(fullname, origin), origin=origin)
        spec.has_location = True
        return spec

    def _check(self) -> bool:
        """Tell whether the sources are those that were compiled.

        Compiled modules know each other's insides, so one that is imported already, from its
        source, keeps all others pure.
        """
        import json  # noqa: PLC0415 - not before it is needed
        from hashlib import sha256  # noqa: PLC0415

        if not self._files.keys().isdisjoint(sys.modules):
            return False
        try:
            with open(f"{self._folder}/{MANIFEST}", encoding="utf-8") as manifest:  # noqa: PTH123
                sources: dict[str, str] = json.load(manifest)["sources"]
            for name, digest in sources.items():
                with open(f"{self._root}/{name}", "rb") as source:  # noqa: PTH123
                    if sha256(source.read()).hexdigest() != digest:
                        return False
        except OSError:
            return False
        return True


def install(package: str, root: str) -> None:
    """Have imports of a package look here first, unless the environment says no.

    Args:
        package: Its name.
        root: The folder of its sources.
    """
    if os.environ.get(SWITCH) != "0":
        folder = os.path.dirname(__file__)  # noqa: PTH120
        sys.meta_path.insert(0, CompiledFinder(folder, package, root))
