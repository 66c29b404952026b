"""Build the wheel into ``dist`` and try it in an environment that holds nothing else.

Without extras the command must serve a message, and see it in the queue. That catches files left
out of the wheel and libraries that only the developers have. Tells how large the environment is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
MIB: Final = 1 << 20

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


def environment(folder: Path, wheel: str) -> Path:
    """Make an environment with the wheel in it and return its programs' folder."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    pip = (programs / "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "-c", ROOT / "constraints.txt", wheel)
    return programs


def size_of(folder: Path) -> int:
    """Return the bytes of the libraries in an environment, without pip and its like."""
    site = next(folder.glob("lib/python3*/site-packages"))
    tools = ("pip", "setuptools", "wheel", "_distutils_hack", "pkg_resources")
    return sum(
        file.stat().st_size
        for part in site.iterdir()
        if not part.name.startswith(tools)
        for file in ([part] if part.is_file() else part.rglob("*"))
        if file.is_file()
    )


def serve_and_talk(programs: Path, folder: Path) -> None:
    """Start a server, exchange a message with it, and look at it from the command line."""
    server = subprocess.Popen(
        [programs / "leasehold", "serve", "--port", "0", "--data", folder / "data"],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "LEASEHOLD_LOG_FORMAT": "json"},
    )
    try:
        assert server.stderr is not None
        ready = next(line for line in server.stderr if "server.ready" in line)
        found = re.search(r"http://[\d.]+:\d+", ready)
        assert found, ready
        run(programs / "python", "-c", TALK, found.group())
        account = ("--url", found.group(), "--account", "devstoreaccount1")
        run(programs / "leasehold", "queue", "list", *account)
        run(programs / "leasehold", "inspect", "wheel", *account)
        run(programs / "leasehold", "help", "exit-codes")
    finally:
        server.terminate()
        code = server.wait(timeout=30)
    assert code == 0, f"the server ended with {code}"


def main() -> int:
    """Build, install, try."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        DIST.mkdir(exist_ok=True)
        for old in DIST.glob("leasehold-*.whl"):
            old.unlink()
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", DIST, ROOT)
        (wheel,) = DIST.glob("leasehold-*.whl")
        bare = environment(folder / "bare", str(wheel))
        serve_and_talk(bare, folder)
        print(f"{wheel.relative_to(ROOT)} with its libraries: {size_of(bare.parent) / MIB:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
