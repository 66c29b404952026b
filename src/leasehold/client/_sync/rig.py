# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""What a server in test mode can be told: to let time pass, and to fail."""

from __future__ import annotations

from leasehold.client import _calls as calls
from leasehold.client import _events as events
from leasehold.client._sync.transport import Transport
from leasehold.client.models import Faults


class Rig:
    """Time and failures of a server that was started for tests; see :attr:`Client.test`.

    A server in another mode answers ``no-such-route`` to all of it.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def now_ms(self) -> int:
        """Return the server's time, Unix milliseconds."""
        return events.now_ms(self._transport.call(calls.get(events.CLOCK)))

    def advance(self, seconds: float) -> int:
        """Let time pass on the server, and return its time then, Unix milliseconds.

        Args:
            seconds: How much, 0 to 315,360,000 (ten years).
        """
        return events.now_ms(self._transport.call(events.advance(seconds)))

    def faults(
        self,
        *,
        fail_commits: int = 0,
        delay_answers_s: float = 0,
        drop_answers: int = 0,
    ) -> Faults:
        """Have the server fail from now on, in place of what was said before.

        Args:
            fail_commits: So many commits fail, 0 to 1,000,000.
            delay_answers_s: Every answer is held back so long, 0 to 60 seconds.
            drop_answers: So many requests are carried out and get no answer, 0 to 1,000,000.
        """
        wanted = Faults(fail_commits, delay_answers_s, drop_answers)
        return events.faults(self._transport.call(events.set_faults(wanted)))

    def get_faults(self) -> Faults:
        """Return what is left to fail."""
        return events.faults(self._transport.call(calls.get(events.FAULTS)))

    def clear_faults(self) -> None:
        """Have the server fail no more."""
        self._transport.call(events.clear_faults())
