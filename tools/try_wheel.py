"""Build the wheel into ``dist`` and try it in an environment that holds nothing else.

Without extras the command must serve a message, and see it in the queue. That catches files left
out of the wheel and libraries that only the developers have. Tells how long it was from the wheel
to that message, and how large the libraries are; fails if they are larger than they may be.

Where C can be compiled, the wheel of the compiled hot path is built as well (``make_compiled.py``),
added to that environment, and must serve a message too.

``python -m tools.try_wheel --bare`` does the same in a Debian 12 that has Python 3.11 and nothing
else (``bare_root.py``): it asks for root. ``--wheel FILE`` tries a wheel that is
there, as is done inside of that folder, where only the standard library is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
COMPILED: Final = "leasehold_compiled-*.whl"
CONSTRAINTS: Final = "constraints.txt"
MB: Final = 1_000_000
MAX_MB: Final = 61
"""What an installation without extras may bring, with the modules that pip compiles."""
NOT_OURS: Final = {"pip", "setuptools", "wheel"}
SHOWN: Final = 6
BARE_SUITE: Final = "bookworm"
BARE_PACKAGES: Final = ("python3-venv", "ca-certificates")

TALK: Final = """
import base64, sys, urllib.request
from leasehold.auth.sas import SasTerms, make_account_sas
from leasehold.server.settings import DEV_ACCOUNT
from leasehold.server.settings.values import DEV_KEY
url = sys.argv[1] + "/" + DEV_ACCOUNT
text = b"<QueueMessage><MessageText>hi</MessageText></QueueMessage>"
terms = SasTerms(permission="rwdlacup", expiry="2099-01-01")
key = base64.b64decode(DEV_KEY)
sas = make_account_sas(DEV_ACCOUNT, key, terms, resource_types="sco", services="q")
def call(method, path, data=None):
    request = urllib.request.Request(f"{url}{path}?{sas}", data, method=method)
    with urllib.request.urlopen(request) as answer:
        return answer.status, answer.read()
assert call("PUT", "/wheel")[0] == 201
assert call("POST", "/wheel/messages", text)[0] == 201
assert b"<MessageText>hi</MessageText>" in call("GET", "/wheel/messages")[1]
print("a server from the wheel has served a message")
"""


def run(*command: str | Path) -> None:
    """Run a command of ours; its failure is ours."""
    subprocess.run([str(part) for part in command], check=True)


def environment(folder: Path, wheel: Path) -> Path:
    """Make an environment with the wheel in it and return its programs' folder."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    pip = (programs / "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-cache-dir", "-c", Path(__file__).parents[1] / CONSTRAINTS, wheel)
    return programs


def sizes(folder: Path) -> Counter[str]:
    """Return the bytes that each distribution in an environment takes, without pip and its like.

    The folders of distributions are counted, so that what was compiled is.
    """
    site = next(folder.glob("lib/python3*/site-packages"))
    found: Counter[str] = Counter()
    for distribution in distributions(path=[str(site)]):
        name = distribution.metadata["Name"]
        if name not in NOT_OURS:
            inside = [file for file in distribution.files or () if not str(file).startswith("..")]
            found[name] = sum(Path(str(file.locate())).stat().st_size for file in inside)
    return found


def serve_and_talk(programs: Path, folder: Path) -> str:
    """Start a server, exchange a message with it, and look at it from the command line.

    Returns:
        What the server says of its form: "compiled" or "pure".
    """
    server = subprocess.Popen(
        [programs / "leasehold", "serve", "--port", "0", "--data", folder / "data"],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "LEASEHOLD_LOG_FORMAT": "json"},
    )
    assert server.stderr is not None
    try:
        started = next(line for line in server.stderr if "server.started" in line)
        ready = next(line for line in server.stderr if "server.ready" in line)
        found = re.search(r"http://[\d.]+:\d+", ready)
        assert found, ready
        run(programs / "python", "-c", TALK, found.group())
        account = ("--url", found.group(), "--account", "devstoreaccount1")
        run(programs / "leasehold", "queue", "list", *account)
        run(programs / "leasehold", "inspect", "wheel", *account)
    finally:
        server.terminate()
        code = server.wait(timeout=30)
        server.stderr.close()
    assert code == 0, f"the server ended with {code}"
    return str(json.loads(started)["form"])


def spent_s() -> float:
    """Return the seconds of processors that programs we started have taken so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def try_it(wheel: Path, compiled: Path | None) -> int:
    """Install a wheel, exchange a message, and tell what that took; 1 if it is too large.

    Args:
        wheel: Leasehold's.
        compiled: That of its hot path, tried afterwards; None for none.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        began_s, before_s = time.monotonic(), spent_s()
        programs = environment(folder / "bare", wheel)
        form = serve_and_talk(programs, folder)
        assert form == "pure", form
        took_s, worked_s = time.monotonic() - began_s, spent_s() - before_s
        found = sizes(programs.parent)
        if compiled is not None:
            run(programs / "pip", "install", "--quiet", "--no-deps", "--no-index", compiled)
            form = serve_and_talk(programs, folder / "compiled")
            assert form == "compiled", form
            more_mb = (sizes(programs.parent).total() - found.total()) / MB
            print(f"the compiled hot path takes {more_mb:.1f} MB more")
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {python}: {took_s:.1f} s from wheel to message, {worked_s:.1f} s of processors")
    largest = ", ".join(f"{name} {size / MB:.1f}" for name, size in found.most_common(SHOWN))
    whole_mb = found.total() / MB
    print(f"{whole_mb:.2f} MB with its {len(found) - 1} libraries ({largest})")
    if whole_mb >= MAX_MB:
        print(f"That is more than {MAX_MB} MB.")
        return 1
    return 0


def try_in_bare_debian(wheel: Path) -> int:
    """Run this file in a Debian that has Python and nothing else."""
    # Late: inside of that Debian there is this file only.
    from tools.bare_root import bare_root  # noqa: PLC0415

    with bare_root(BARE_SUITE, BARE_PACKAGES) as root:
        tools = root.path("/try/tools")
        tools.mkdir(parents=True)
        shutil.copy(wheel, tools.parent)
        shutil.copy(ROOT / CONSTRAINTS, tools.parent)
        shutil.copy(__file__, tools)
        inside = ("python3", f"/try/tools/{Path(__file__).name}", "--wheel", f"/try/{wheel.name}")
        return root.run(*inside, check=False).returncode


def build() -> Path:
    """Build the wheel."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("leasehold-*.whl"):
        old.unlink()
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", DIST, ROOT)
    (wheel,) = DIST.glob("leasehold-*.whl")
    return wheel


def build_compiled() -> Path | None:
    """Build the wheel of the compiled hot path; None where that cannot be."""
    for old in DIST.glob(COMPILED):
        old.unlink()
    run(sys.executable, Path(__file__).with_name("make_compiled.py"))
    return next(DIST.glob(COMPILED), None)


def main() -> int:
    """Build, install, try."""
    parser = argparse.ArgumentParser(description="Try the wheel")
    parser.add_argument("--bare", action="store_true", help="in a Debian with Python only")
    parser.add_argument("--wheel", type=Path, help="one that is there already")
    given = parser.parse_args()
    wheel: Path = given.wheel or build()
    if given.bare:
        return try_in_bare_debian(wheel)
    return try_it(wheel, None if given.wheel else build_compiled())


if __name__ == "__main__":
    sys.exit(main())
