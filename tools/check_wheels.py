"""Check that all that an installation brings has wheels: for each Python, on x86-64 and on arm64.

``python tools/check_wheels.py`` goes through Leasehold without extras and with each extra, in the
newest versions that there are, and through all of it in the versions of ``constraints.txt``;
``python tools/check_wheels.py demo`` looks at one extra. A line of each tells what it found. It
asks the package index for metadata, and downloads nothing large but the source of PySpark, once.

uv resolves, as it can do so for a Python and a machine that it does not run on. pip cannot: with
``--python-version`` it still takes environment markers to be about the Python that runs pip.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from itertools import product
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PROJECT: Final = ROOT / "pyproject.toml"
CONSTRAINTS: Final = ROOT / "constraints.txt"
CLASSIFIER: Final = "Programming Language :: Python :: 3."
MACHINES: Final = ("x86_64", "aarch64")
SOURCE_ONLY: Final = ("pyspark", "autograd-gamma")
"""They have no wheels and need no compiler: they are of Python, and of archives of Java."""
OLDEST: Final = "manylinux_2_28"
"""Debian 11, Ubuntu 20.04 and Red Hat 8 have a newer C library, or this one."""
FOR_TESTS: Final = {"test": "manylinux_2_34", "dev": "manylinux_2_34"}
"""The PostgreSQL of the tests asks for that of Debian 12, Ubuntu 22.04 or Red Hat 9."""


def project() -> dict[str, Any]:
    """Return the table of the project in ``pyproject.toml``."""
    with PROJECT.open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
    return table


def pythons(table: dict[str, Any]) -> list[str]:
    """Return the releases of Python that the classifiers name, such as ``3.11``."""
    prefix = CLASSIFIER.removesuffix("3.")
    return [line.removeprefix(prefix) for line in table["classifiers"] if CLASSIFIER in line]


def fault(extra: str, python: str, machine: str, constraints: Path | None) -> str:
    """Return why an installation from wheels cannot be; an empty text if it can.

    The versions are chosen first, as pip does, which prefers the newest to one that has a wheel.

    Args:
        extra: Its name; an empty text for Leasehold alone.
        python: Such as ``3.14``.
        machine: ``x86_64`` or ``aarch64``.
        constraints: A file of versions; None for the newest.
    """
    platform = f"{machine}-{FOR_TESTS.get(extra, OLDEST)}"
    place = ("--python-version", python, "--python-platform", platform)
    given: tuple[str, ...] = ("--extra", extra) if extra else ()
    bounds: tuple[str, ...] = ("--constraints", str(constraints)) if constraints else ()
    chosen = resolve(*place, *given, *bounds)
    if chosen.returncode:
        return " ".join(chosen.stderr.split())
    sources = (word for name in SOURCE_ONLY for word in ("--no-binary", name))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as versions:
        versions.write(chosen.stdout)
        versions.flush()
        wheels = ("--only-binary", ":all:", *sources, "--constraints", versions.name)
        done = resolve(*place, *given, *wheels)
    return " ".join(done.stderr.split()) if done.returncode else ""


def resolve(*options: str) -> subprocess.CompletedProcess[str]:
    """Have uv choose versions of all that the project needs."""
    uv = (sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate")
    command = (*uv, *options, str(PROJECT))
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    """Print a line for each installation; 1 if one of them cannot be had from wheels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extras", nargs="*", help="all of them, and none, if not given")
    names = parser.parse_args().extras
    table = project()
    extras = names or ["", *table["optional-dependencies"]]
    installations: list[tuple[str, Path | None]] = [(extra, None) for extra in extras]
    installations += [(extra, CONSTRAINTS) for extra in names or ["dev"]]
    is_complete = True
    for extra, constraints in installations:
        versions = CONSTRAINTS.name if constraints else "newest versions"
        faults = [
            f"Python {python} on {machine}: {why}"
            for python, machine in product(pythons(table), MACHINES)
            if (why := fault(extra, python, machine, constraints))
        ]
        title = f"{f'.[{extra}]' if extra else '.'}, {versions}"
        print("\n  ".join((f"{title}: {'' if faults else 'complete'}", *faults)), flush=True)
        is_complete = is_complete and not faults
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
