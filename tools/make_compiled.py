"""Compile the modules of the hot path with mypyc, from their sources, into a wheel of their own.

``python tools/make_compiled.py`` writes ``dist/leasehold_compiled-*.whl``; ``--install`` installs
it where it runs instead, as ``make setup`` does. The wheel goes beside that of Leasehold: it holds
the compiled modules, and ``compiled_finder.py``, which has Python take them. What was compiled
before from the same sources is kept in ``~/.cache/leasehold/compiled``.

Where there is no C compiler, or no header of Python, it says so and does nothing.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "src"
DIST: Final = ROOT / "dist"
PACKAGE: Final = "leasehold"
NAME: Final = "leasehold_compiled"
MANIFEST: Final = "manifest.json"
FINDER: Final = Path(__file__).with_name("compiled_finder.py")
CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leasehold" / "compiled"
)
KEPT: Final = 8
"""Wheels in the cache; each has about 1 MB."""

MODULES: Final = (
    "auth.authenticator",
    "auth.sas",
    "engine.batcher",
    "engine.commit_policy",
    "engine.engine",
    "engine.stats",
    "http.app",
    "http.azure.call",
    "http.azure.dialect",
    "http.azure.messages",
    "http.connection",
    "http.request_cycle",
    "http.requests",
    "http.xml",
    "stores.sql.command_handlers",
    "stores.sql.messages",
    "stores.sql.rows",
    "stores.sql.state",
)
"""Those that a profile of the cycle shows: see docs/decisions/0066-compiled-form.md."""

OPEN_CLASSES: Final = {
    "http.app": ("Application", "BaseCall", "BaseDialect"),
    "http.connection": ("HttpConnection",),
    "stores.sql.messages": ("CompleteVerb", "MessageHandlers"),
    "stores.sql.state": ("State",),
}
"""Compiled classes of which modules that are not compiled derive some."""

OPTIMIZE: Final = "2"
# `if MYPY:` is seen by mypy and never runs, so the library is not needed where the wheel is.
_FUTURE: Final = "from __future__ import annotations\n\n"
_IMPORT: Final = (
    "from __future__ import annotations; MYPY = False\n"
    "if MYPY: from mypy_extensions import mypyc_attr\n"
)

_CONFIG: Final = """\
[mypy]
ignore_missing_imports = True
follow_imports = silent
"""
_SCRIPT: Final = """\
import sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from setuptools._distutils.unixccompiler import UnixCCompiler

made = mypycify(
    ['--config-file', 'mypy.ini', *{files}],
    group_name='{package}', opt_level='{optimize}', debug_level='0', multi_file=True,
)
# The files of one extension are compiled at once: nearly all is in one.
pool, waiting = ThreadPoolExecutor(2), []
compile_one, link = UnixCCompiler._compile, UnixCCompiler.link
UnixCCompiler._compile = lambda *given: waiting.append(pool.submit(compile_one, *given))
def finish_and_link(*given, **named):
    while waiting:
        waiting.pop().result()
    link(*given, **named)
UnixCCompiler.link = finish_and_link
sys.argv[1:] = ['--quiet', 'build_ext', '--inplace']
setup(name='{name}', ext_modules=made, packages=[])
"""


class NotHere(Exception):
    """Nothing can be compiled on this machine; the text says why."""


class CompileFailed(Exception):
    """It could be, and went wrong; the text says where to look."""


def file_of(module: str) -> Path | None:
    """Return the source of a module of ours, given by its full name; None if there is none."""
    base = SOURCES.joinpath(*module.split("."))
    found = (path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file())
    return next(found, None)


def imported(path: Path) -> set[str]:
    """Return the names that a source imports from our package, or may mean by it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.partition(".")[0] == PACKAGE}


def sources() -> dict[str, str]:
    """Return the digests of all that the compiled modules are made of, by path in the package.

    Those of imported modules are among them: mypyc writes the values of their constants into what
    it makes.
    """
    waiting = {f"{PACKAGE}.{module}" for module in MODULES}
    seen: set[str] = set()
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        path = file_of(name)
        if path is None:
            continue
        inside = path.relative_to(SOURCES / PACKAGE).as_posix()
        found[inside] = hashlib.sha256(path.read_bytes()).hexdigest()
        waiting |= imported(path) - seen
    return dict(sorted(found.items()))


def source_version() -> str:
    """Return the version of Leasehold that the sources say they are."""
    text = (ROOT / "src" / PACKAGE / "__init__.py").read_text(encoding="utf-8")
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("__version__"))


def key_of(digests: dict[str, str]) -> str:
    """Return what tells one compiled form from another: sources, version, Python, mypyc, and how.

    The version is that in the name of the wheel, which requires the same of Leasehold.
    """
    how = [MODULES, OPEN_CLASSES, OPTIMIZE, _IMPORT, _CONFIG, _SCRIPT, FINDER.read_text()]
    parts = [digests, how, source_version(), sys.version, sysconfig.get_platform(), version("mypy")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def check_compiler() -> None:
    """Raise NotHere if C cannot be compiled for this Python."""
    compiler = os.environ.get("CC") or str(sysconfig.get_config_var("CC")).split()[0]
    if shutil.which(compiler.split()[0]) is None:
        raise NotHere(f"there is no C compiler ({compiler})")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise NotHere(f"{header} is missing")


def opened(module: str, text: str) -> str:
    """Return a source in which interpreted classes may derive from some, line for line the same."""
    if module not in OPEN_CLASSES:
        return text
    assert _FUTURE in text, module
    text = text.replace(_FUTURE, _IMPORT, 1)
    for name in OPEN_CLASSES[module]:
        before = f"\n\nclass {name}"
        assert text.count(f"{before}:") + text.count(f"{before}(") == 1, name
        mark = "\n@mypyc_attr(allow_interpreted_subclasses=True)"
        text = text.replace(before, f"{mark}\nclass {name}", 1)
    return text


def compile_in(folder: Path) -> None:
    """Compile the modules in a copy of the sources, in place."""
    shutil.copytree(SOURCES / PACKAGE, folder / PACKAGE)
    files = []
    for module in MODULES:
        path = folder / PACKAGE / f"{module.replace('.', '/')}.py"
        path.write_text(opened(module, path.read_text()))
        files.append(str(path.relative_to(folder)))
    (folder / "mypy.ini").write_text(_CONFIG)
    script = _SCRIPT.format(package=PACKAGE, name=NAME, files=files, optimize=OPTIMIZE)
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        CACHE.mkdir(parents=True, exist_ok=True)
        log = CACHE / "failed.log"
        log.write_text(f"{ran.stdout}\n{ran.stderr}")
        raise CompileFailed(f"mypyc or the C compiler failed, see {log}")


def build(into: Path, digests: dict[str, str]) -> Path:
    """Compile, and return the wheel, written into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        compile_in(folder)
        strip = shutil.which("strip")
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        names = [f"{PACKAGE}__mypyc{suffix}"]
        names += [f"{PACKAGE}/{module.replace('.', '/')}{suffix}" for module in MODULES]
        if strip is not None:
            subprocess.run([strip, *(folder / name for name in names)], check=True)
        shared, *shims = (folder / name for name in names)
        members = {shared.name: shared.read_bytes()}
        for module, shim in zip(MODULES, shims, strict=True):
            members[f"{NAME}/{module}{suffix}"] = shim.read_bytes()
    manifest = {"key": key_of(digests), "sources": digests}
    members[f"{NAME}/__init__.py"] = FINDER.read_bytes()
    members[f"{NAME}/{MANIFEST}"] = json.dumps(manifest, indent=1).encode()
    return write_wheel(into, members)


def write_wheel(into: Path, members: dict[str, bytes]) -> Path:
    """Write a wheel of these members for this Python and platform."""
    release = source_version()
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"{python}-{python}-{machine}"
    info = f"{NAME}-{release}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {release}\n"
        f"Summary: The hot path of Leasehold, compiled\nRequires-Dist: {PACKAGE}=={release}\n"
    )
    members |= {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\nTag: {tag}\n"
        ).encode(),
    }
    into.mkdir(parents=True, exist_ok=True)
    wheel = into / f"{NAME}-{release}-{tag}.whl"
    record = ""
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            record += f"{name},sha256={digest.rstrip('=')},{len(content)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


def cached(digests: dict[str, str]) -> Path:
    """Return the wheel of these sources, compiled now or before.

    Raises:
        NotHere: It has to be compiled, and cannot be here.
        CompileFailed: Or that went wrong.
    """
    folder = CACHE / key_of(digests)
    found = next(folder.glob("*.whl"), None)
    if found is None:
        check_compiler()
        print(f"compiling {len(MODULES)} modules, about a minute", flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as fresh:
            wheel = build(Path(fresh), digests)
            folder.mkdir(exist_ok=True)
            found = wheel.replace(folder / wheel.name)  # whole, also where two do this at once
        kept = sorted(CACHE.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in kept[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
    else:
        os.utime(folder)
    return found


def installed() -> str | None:
    """Return the key of the form that is installed where this runs; None if none is."""
    try:
        manifest = Path(sysconfig.get_path("platlib"), NAME, MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    return str(json.loads(manifest).get("key"))


def install(digests: dict[str, str]) -> None:
    """Install the wheel of these sources where this runs, if it is not there.

    Raises:
        NotHere: See :func:`cached`.
        CompileFailed: See there.
    """
    if installed() != key_of(digests):
        wheel = cached(digests)
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        options = ("--no-deps", "--no-index", "--force-reinstall")
        subprocess.run([*pip, *options, str(wheel)], check=True)


def main(words: Sequence[str] | None = None) -> int:
    """See the module; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--install", action="store_true", help="install it where this runs")
    is_install = parser.parse_args(words).install
    digests = sources()
    try:
        if is_install:
            install(digests)
        else:
            DIST.mkdir(exist_ok=True)
            print(shutil.copy(cached(digests), DIST))
    except (NotHere, CompileFailed, OSError, subprocess.CalledProcessError) as why:
        print(f"Nothing is compiled, Leasehold runs as pure Python: {why}.")
        # A developer can go on without it; whoever builds a release has to know.
        return 0 if is_install or isinstance(why, NotHere) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
