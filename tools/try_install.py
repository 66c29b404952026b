"""Try what the README says a new user does, in Debians that have only what it asks for.

``python -m tools.try_install`` goes through all places in ``PLACES``; given names, through those.
In each it runs, word for word: ``make`` alone, the commands and the Python of the first message,
and ``make demo``. It asks for root and debootstrap; see ``bare_root.py``. It prints a line for each
place, and ends with 1 if anything failed in one of them.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.pages import Block, blocks
from tools.bare_root import BareRoot, bare_root, network_environment

ROOT: Final = Path(__file__).resolve().parent.parent
ASKED_FOR: Final = ("python3-venv", "make", "ca-certificates")
"""What the README asks for, and the certificates that downloads are checked with."""
COMPILER: Final = ("gcc", "libc6-dev", "python3-dev")
TMP: Final = "512m"
USER: Final = "1000"
CHECKOUT: Final = "/home/user/leasehold"
SERVE: Final = "leasehold serve"

SCRIPT: Final = """\
set -eu
{serve} 2>serve.log &
server=$!
trap 'kill $server; wait $server || true' EXIT
until grep -q server.ready serve.log; do kill -0 $server; sleep 0.2; done
env/bin/python -c "$MESSAGE"
env/bin/python -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1]).read()' {console}
"""
"""Another terminal opens when the server has said that it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A machine of a new user."""

    suite: str
    has_compiler: bool = False
    is_root: bool = False
    has_small_tmp: bool = False
    """Whether ``/tmp`` is a part of the memory, of 512 MB."""

    @property
    def packages(self) -> tuple[str, ...]:
        """What is installed beside the packages that every Debian has."""
        return (*ASKED_FOR, *(COMPILER if self.has_compiler else ()))

    def __str__(self) -> str:
        """Describe it for people."""
        compiler = "a C compiler" if self.has_compiler else "no compiler"
        tmp = f", /tmp of {TMP}" if self.has_small_tmp else ""
        return f"{self.suite}, {'root' if self.is_root else 'a user'}, {compiler}{tmp}"


PLACES: Final[Mapping[str, Place]] = {
    "trixie": Place(suite="trixie", has_small_tmp=True),
    "trixie-gcc": Place(suite="trixie", has_compiler=True, is_root=True),
    "bookworm": Place(suite="bookworm", is_root=True),
    "bookworm-gcc": Place(suite="bookworm", has_compiler=True, has_small_tmp=True),
    "sid": Place(suite="sid", has_small_tmp=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMessage:
    """What the README says under its heading of that name."""

    setup: str
    serve: str
    program: str
    output: str
    console: str


def first_message() -> FirstMessage:
    """Read the first screen of the README."""
    page = ROOT / "README.md"
    shell, python, text = blocks(page)[:3]
    assert [block.language for block in (shell, python, text)] == ["sh", "python", "text"]
    setup, serve = _commands(shell)
    console = re.search(r"<(http://[^>]+/console/)>", page.read_text(encoding="utf-8"))
    assert console is not None
    return FirstMessage(
        setup=setup, serve=serve, program=python.text, output=text.text, console=console[1]
    )


def _commands(block: Block) -> tuple[str, str]:
    """Return the commands that end by themselves, and the one that serves."""
    *setup, serve = block.text.splitlines()
    assert SERVE in serve
    return "\n".join(setup), serve.partition("#")[0].strip()


@contextmanager
def place_to_try(place: Place) -> Iterator[BareRoot]:
    """Make a root with a user and this checkout, and with the ``/tmp`` that it is to have."""
    with bare_root(place.suite, place.packages) as root, ExitStack() as stack:
        root.run("useradd", "--uid", USER, "--create-home", "user")
        listing = subprocess.run(
            ("git", "ls-files", "-z"), cwd=ROOT, capture_output=True, check=True
        )
        names = [name for name in listing.stdout.decode().split("\0") if (ROOT / name).is_file()]
        folder = root.path(CHECKOUT)
        folder.mkdir()
        packed = subprocess.Popen(("tar", "--create", *names), cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(("tar", "--extract"), cwd=folder, stdin=packed.stdout, check=True)
        assert packed.stdout is not None
        packed.stdout.close()
        assert packed.wait() == 0
        root.run("chown", "-R", f"{USER}:{USER}", CHECKOUT)
        if place.is_root:
            root.run("chown", "-R", "0:0", CHECKOUT)
        if place.has_small_tmp:
            tmp = root.path("/tmp")
            small = ("mount", "-t", "tmpfs", "-o", f"size={TMP},mode=1777", "tmpfs", tmp)
            subprocess.run(small, check=True)
            stack.callback(subprocess.run, ("umount", "--lazy", tmp), check=True)
        yield root


class Trial:
    """Runs commands of the README in a place."""

    def __init__(self, root: BareRoot, place: Place) -> None:
        self._root = root
        self._user = "0:0" if place.is_root else f"{USER}:{USER}"
        home = "/root" if place.is_root else "/home/user"
        self._environment = {**network_environment(), "HOME": home}

    def shell(self, script: str, *, has_network: bool = True, **variables: str) -> str:
        """Run a script in the checkout; return what it prints, and print that too.

        Args:
            script: For ``sh``.
            has_network: Whether it shares this machine's network, or has one of its own, in which
                every port is free.
            variables: Of the environment.

        Raises:
            subprocess.CalledProcessError: It failed.
        """
        command = self._root.command("sh", "-ec", script, user=self._user, workdir=CHECKOUT)
        if not has_network:
            up = 'ip link set lo up && exec "$@"'
            command = ("unshare", "--net", "sh", "-c", up, "sh", *command)
        process = subprocess.Popen(
            command,
            env={**self._environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print("  |", line, end="", flush=True)
            lines.append(line)
        if process.wait() != 0:
            raise subprocess.CalledProcessError(process.returncode, script)
        return "".join(lines)

    def disk_mb(self, folder: str) -> int:
        """Return the size of a folder of the checkout, megabytes as ``du -sm`` counts."""
        done = self._root.run("du", "-sm", f"{CHECKOUT}/{folder}", stdout=subprocess.PIPE)
        return int(done.stdout.split()[0])


def processor_s() -> float:
    """Return the processor time of all programs that have run here and ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def try_place(place: Place, message: FirstMessage) -> str:
    """Do all that the README says; return what it took.

    Raises:
        subprocess.CalledProcessError: A command failed.
        AssertionError: One did not print what the README says.
    """
    with place_to_try(place) as root:
        trial = Trial(root, place)
        python = trial.shell("python3 --version").strip()
        listing = trial.shell("make")
        assert "make demo" in listing, listing
        began_s = processor_s()
        trial.shell(message.setup)
        script = SCRIPT.format(serve=message.serve, console=message.console)
        output = trial.shell(script, has_network=False, MESSAGE=message.program)
        assert message.output in output, output
        first_s, began_s = processor_s() - began_s, processor_s()
        trial.shell("make demo")
        demo_s = processor_s() - began_s
        return (
            f"{python}: first message {first_s:.0f} s of processor, {trial.disk_mb('env')} MB; "
            f"make demo {demo_s:.0f} s, {trial.disk_mb('.venv-demo')} MB"
        )


def main() -> int:
    """Go through the places; 1 if the README did not hold in one of them."""
    parser = argparse.ArgumentParser(description="Try the README in bare Debians")
    parser.add_argument("places", nargs="*", help=f"of {', '.join(PLACES)}; default: all")
    names = parser.parse_args().places or list(PLACES)
    if unknown := set(names) - set(PLACES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    message = first_message()
    lines, has_failed = [], False
    for name in names:
        place = PLACES[name]
        print(f"--- {name}: {place}", flush=True)
        began_s = time.monotonic()
        try:
            outcome = try_place(place, message)
        except (subprocess.CalledProcessError, AssertionError) as error:
            outcome, has_failed = f"failed: {error}", True
        lines.append(f"{place}: {outcome} ({time.monotonic() - began_s:.0f} s)")
        print(lines[-1], flush=True)
    print("\n".join(("---", *lines)))
    return 1 if has_failed else 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
