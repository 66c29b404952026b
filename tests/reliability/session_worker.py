"""A worker in a process of its own, which holds messages in a session: to be killed, or stopped.

Run as ``python -m tests.reliability.session_worker URL QUEUE COUNT``. It leases so many messages
for an hour and prints ``held COUNT``. Then it does what its standard input says, line by line:
``beat`` sends a heartbeat beside those that it sends by itself, and prints ``beaten`` or ``lost``;
``complete`` completes all messages, and prints ``completed`` with how many that were.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from leasehold.client import Client
from leasehold.client.errors import SessionOver
from leasehold.client.models import ReceivedMessage
from tests.e2e.server import DEV_ACCOUNT

HOUR_S: Final = 3_600
_ROOT: Final = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """Starts the process, and talks with it.

    Args:
        url: Address of the server.
        queue: Where it receives.
        count: How many messages it holds.
    """

    def __init__(self, url: str, queue: str, count: int) -> None:
        command = [sys.executable, "-m", "tests.reliability.session_worker", url, queue, str(count)]
        self.process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect(f"held {count}")

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def ask(self, command: str) -> str:
        """Return what it answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self._line()

    def _expect(self, line: str) -> None:
        found = self._line()
        assert found == line, f"the worker says {found!r} and not {line!r}"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def main(url: str, queue: str, count: int) -> None:
    """Hold messages, and do as the standard input says."""
    with Client(url, DEV_ACCOUNT) as client, client.session("worker") as session:
        handle = client.queue(queue)
        held: list[ReceivedMessage] = []
        while len(held) < count:
            limit = count - len(held)
            held += handle.receive(limit, visibility_timeout_s=HOUR_S, session=session, wait_s=5)
        _say(f"held {len(held)}")
        for command in sys.stdin:
            if command.strip() == "beat":
                try:
                    session.beat()
                except SessionOver:
                    _say("lost")
                else:
                    _say("beaten")
            else:
                done = [problem for problem in handle.complete_many(held) if problem is None]
                _say(f"completed {len(done)}")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - told to the test


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
