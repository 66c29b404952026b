"""Fuzzes one target in this process, which libFuzzer ends: ``python -m proof.fuzz.one TARGET``.

What follows the target goes to libFuzzer. :mod:`proof.fuzz.__main__` starts this.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["leasehold"], enable_loader_override=False):
    from proof.fuzz.targets import TARGETS, Target, Wrong


@atheris.instrument_func  # type: ignore[untyped-decorator]
def planted(data: bytes) -> None:
    """Run a target that is wrong for some inputs, for the control that such are found."""
    TARGETS["xml"](data)
    if data[:1] == b"<" and data[-1:] == b"!":
        raise Wrong("as planted")


def main() -> None:
    """Fuzz until libFuzzer has enough."""
    name = sys.argv.pop(1)
    target: Target = planted if name == "planted" else TARGETS[name]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
