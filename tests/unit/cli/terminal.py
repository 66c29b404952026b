"""Commands in a terminal of their own, whose screen is looked at."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from collections.abc import Callable

import pyte


class Terminal:
    """A command in a terminal of its own, and what stands on its screen."""

    def __init__(self, *words: str, columns: int, lines: int) -> None:
        self.screen = pyte.Screen(columns, lines)
        self.sent = b""
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            env = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
            env |= {"TERM": "xterm-256color"}
            os.execve(sys.executable, [sys.executable, "-m", "leasehold.cli", *words], env)
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        """Give it another size."""
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._file, text.encode())

    def until(self, shown: Callable[[list[str]], bool]) -> list[str]:
        """Return the lines once they show something; the test's time limit ends a vain wait."""
        while not shown(lines := [line.rstrip() for line in self.screen.display]):
            self._read()
        return lines

    def ended(self) -> int:
        """Return the exit code."""
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        select.select([self._file], (), ())
        try:
            part = os.read(self._file, 65_536)
        except OSError:  # the other end is closed
            return False
        self.sent += part
        self._stream.feed(part)
        return bool(part)
