"""Build the wheel and try it in environments that hold nothing else.

Without extras the pure parts must import; with ``server`` the command must serve a message, and
with ``cli`` it must see that message from another environment. That catches files left out of the
wheel and libraries that only the developers have.
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

PURE: Final = """
import leasehold.auth.authenticator, leasehold.domain.visibility, leasehold.stores.memory
import leasehold.testing
print("leasehold", leasehold.__version__, "imports without extras")
"""

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


def serve_and_talk(programs: Path, callers: Path, folder: Path) -> None:
    """Start the server of one environment; exchange a message with it, and look from the other."""
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
        run(callers / "leasehold", "queue", "list", *account)
        run(callers / "leasehold", "inspect", "wheel", *account)
    finally:
        server.terminate()
        code = server.wait(timeout=30)
    assert code == 0, f"the server ended with {code}"


def main() -> int:
    """Build, install, try."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        bare = environment(folder / "bare", str(wheel))
        run(bare / "python", "-c", PURE)
        callers = environment(folder / "cli", f"{wheel}[cli]")
        serve_and_talk(environment(folder / "server", f"{wheel}[server]"), callers, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
