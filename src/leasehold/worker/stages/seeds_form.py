"""The form in which the Azure team's video workflow keeps its state: two digits, then the content.

``01clip-7.mp4`` is a message of which stage 1 is to be done next. Whoever works on it replaces the
digits when a stage is done and leaves the content alone. There is no place for a state, for how far
a stage has come, or for the version of a pipeline.

Source: "Windows Azure Queues: Improved Leases, Progress Tracking, and Scheduling of Future Work",
Windows Azure Storage Team, 2011.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from leasehold.worker.queues.protocol import Saved
from leasehold.worker.stages.envelope import UnreadableEnvelope

if TYPE_CHECKING:
    from leasehold.worker.message import Message

_DIGITS: Final = 2
_MOST: Final = 99


def looks_like_digits(message: Message, stages: int) -> bool:
    """Return whether a body that is taken as it is may be of this form.

    Nothing can tell for sure: there are names that begin with two digits.

    Args:
        message: One of which nothing is saved.
        stages: How many stages there are; a state beyond the end of the work is none.
    """
    body = message.delivery.body
    if message.saved is not None or not body[:_DIGITS].isdigit() or len(body) < _DIGITS:
        return False
    return not body[_DIGITS : _DIGITS + 1].isdigit() and int(body[:_DIGITS]) <= stages + 1


class SeedsForm:
    """Reads and writes ``[2 digits of state][content]``.

    Args:
        stages: The name of the stage for each number. The number of finished work, if the workflow
            has one, stands for :data:`leasehold.worker.stages.COMPLETED`.
        first: The number that a new message begins with; None: the smallest.

    Raises:
        ValueError: A number is not within 0 to 99, or a name is there twice.
    """

    def __init__(self, stages: Mapping[int, str], *, first: int | None = None) -> None:
        if not stages:
            raise ValueError("name at least one stage")
        for number in stages:
            if not 0 <= number <= _MOST:
                raise ValueError(f"{number} is not two digits; states are within 0 to {_MOST}")
        self._names = dict(stages)
        self._numbers = {name: number for number, name in stages.items()}
        if len(self._numbers) < len(self._names):
            raise ValueError("two numbers stand for the same stage")
        self._first = min(stages) if first is None else first
        if self._first not in self._names:
            raise ValueError(f"the first number, {self._first}, stands for no stage")

    def fresh(self, body: bytes) -> str:
        """Return the text of a new message: the first stage is to be done.

        Raises:
            ValueError: The body is not UTF-8.
        """
        return self._text(self._first, body)

    def wrap(self, body: bytes, saved: Saved) -> str:
        """Return the text with the number of the stage to be done next. A fraction is not kept.

        Raises:
            ValueError: A state is to be saved, the stage has no number, or the body is not UTF-8.
        """
        if saved.state is not None:
            raise ValueError("two digits have no place for a state; use the envelope for that")
        if saved.stage is None:
            return self.fresh(body)
        number = self._numbers.get(saved.stage)
        if number is None:
            raise ValueError(f"no number stands for the stage {saved.stage!r}")
        return self._text(number, body)

    def unwrap(self, text: str) -> tuple[bytes, Saved | None]:
        """Return the content, and the stage that the digits stand for.

        Raises:
            UnreadableEnvelope: It does not begin with two digits, or they stand for no stage.
        """
        digits = text[:_DIGITS]
        # Other scripts have digits too, and int() would read them.
        if not (len(digits) == _DIGITS and digits.isascii() and digits.isdigit()):
            raise UnreadableEnvelope("the message does not begin with two digits of state")
        name = self._names.get(int(digits))
        if name is None:
            raise UnreadableEnvelope(f"the message is in state {digits}, which stands for no stage")
        return text[_DIGITS:].encode(), Saved(stage=name)

    @staticmethod
    def _text(number: int, body: bytes) -> str:
        try:
            return f"{number:02}{body.decode()}"
        except UnicodeDecodeError as error:
            raise ValueError("two digits of state go before text only; the body is not") from error
