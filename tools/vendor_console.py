"""Bring the libraries of the console's pages into the tree, from the npm registry.

    python tools/vendor_console.py            # write them
    python tools/vendor_console.py --check    # tell whether the tree has exactly these

The console has no build step: browsers load the files as they lie in the package. So its three
libraries lie there too, in the versions below, with their licences. The only changes are those that
``_patched`` makes: browsers cannot find a module by a bare name, and uPlot ships its small form as
a script.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_FOLDER: Final = Path("src/leasehold/http/console/static/vendor")
_NOTICE: Final = "LICENSES.txt"


class _Package(NamedTuple):
    name: str
    version: str
    sha256: str
    """Of the package as the registry gives it."""
    files: tuple[tuple[str, str], ...]
    """Where each file is in the package, and what it is called here."""


_PACKAGES: Final = (
    _Package(
        "preact",
        "11.2.0",
        "3c4456766bd32b6b534d52bf4e9c2a29b33e7eedf6e96ed479300ba1a7888ebf",
        (("dist/preact.mjs", "preact.js"), ("hooks/dist/hooks.mjs", "hooks.js")),
    ),
    _Package(
        "htm",
        "3.1.1",
        "2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90",
        (("dist/htm.module.js", "htm.js"),),
    ),
    _Package(
        "uplot",
        "1.6.32",
        "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        (("dist/uPlot.iife.min.js", "uplot.js"), ("dist/uPlot.min.css", "uplot.css")),
    ),
)


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 on a difference"
    )
    checks = parser.parse_args().check
    differs = False
    for name, content in _files():
        path = _FOLDER / name
        if checks:
            if not path.exists() or path.read_bytes() != content:
                print(f"{path} is not what the package has")
                differs = True
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            print(f"{path}: {len(content):,} bytes")
    return int(differs)


def _files() -> Iterator[tuple[str, bytes]]:
    notices: list[str] = []
    for package in _PACKAGES:
        members = _download(package)
        for inside, here in package.files:
            yield here, _patched(here, members[inside])
        licence = members["LICENSE"].decode("utf-8").strip()
        notices.append(f"{package.name} {package.version}\n\n{licence}\n")
    yield _NOTICE, ("\n" + "-" * 72 + "\n\n").join(notices).encode("utf-8")


def _download(package: _Package) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
        content = (Path(folder) / packed.stdout.strip().splitlines()[-1]).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != package.sha256:
        sys.exit(f"{package.name} {package.version} has the hash {found}, not {package.sha256}")
    members: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                members[member.name.partition("/")[2]] = file.read()
    return members


def _patched(name: str, content: bytes) -> bytes:
    text = content.decode("utf-8")
    text = text.replace('from"preact"', 'from"./preact.js"')
    # Maps of the sources are not shipped.
    kept = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL=")]
    if name == "uplot.js":
        kept.append("export default uPlot;")
    return ("\n".join(kept) + "\n").encode("utf-8")


if __name__ == "__main__":
    sys.exit(main())
