"""What remembers that something was done, and the part of a message that it needs."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from leasehold.worker.once.rules import Entry, Holder

DEFAULT_WINDOW_S: Final = 7 * 86_400.0
"""A week: the time that a message of Azure Queue Storage lives unless its sender says otherwise."""
SWEEP_STEP: Final = 256
"""Expired keys that one step removes."""
_LASTING: Final = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class Delivered(Protocol):
    """A delivered message; see :class:`leasehold.worker.message.Message`."""

    @property
    def id(self) -> str:
        """Its id, the same at each delivery."""
        ...

    @property
    def queue(self) -> str:
        """Name of its queue."""
        ...

    @property
    def fence(self) -> int:
        """Rises with each delivery of the message."""
        ...

    def check(self) -> None:
        """Raise LeaseLost if the message is not held any more."""
        ...


class Processed(Protocol):
    """A history table: which keys were done, and by whom the others are being done.

    All methods block, may be called from any thread, and act in one step: of several that call at
    the same time, one is first.
    """

    @property
    def window_s(self) -> float:
        """How long a key is remembered after it was done, in seconds."""
        ...

    def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
        """Enter *holder* as the one that works under *key*.

        Args:
            key: See :func:`~leasehold.worker.once.keys.join_key`.
            holder: Who asks.
            hold_s: How long other messages with that key are kept away, in seconds; None: as long
                as the window.

        Returns:
            None if the holder may go ahead; otherwise what stands in its way, which was left as
            it is (see :func:`~leasehold.worker.once.rules.may_begin`).
        """
        ...

    def finish(self, key: str, holder: Holder, result: str | None) -> None:
        """Record that *holder* has done it, with a result in JSON; the window begins.

        Raises:
            Fenced: Somebody else took over.
        """
        ...

    def abandon(self, key: str, holder: Holder) -> None:
        """Forget that *holder* began, if it is still the one; others may begin at once."""
        ...

    def look(self, key: str) -> Entry | None:
        """Return what is remembered under *key*."""
        ...

    def forget(self, key: str) -> bool:
        """Forget *key*, done or not; return whether there was anything.

        For people, who know that whoever began will never come back.
        """
        ...

    def sweep(self, limit: int = SWEEP_STEP) -> int:
        """Remove up to *limit* expired keys, those that expired first; return how many.

        Stores do it by themselves now and then, so that they do not grow; a store that serves many
        keys in bursts may be helped along.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


@runtime_checkable
class KnowsItsErrors(Protocol):
    """What a history may have besides, to say which of its errors another try may mend.

    Of one that has not, :func:`may_pass` is believed.
    """

    def may_pass(self, error: Exception) -> bool:
        """Tell whether what failed with *error* may succeed a moment later."""
        ...


def may_pass(error: Exception) -> bool:
    """Tell whether an error of the machine or the network may be gone a moment later."""
    return isinstance(error, OSError) and not isinstance(error, _LASTING)


def check_window(window_s: float) -> float:
    """Return *window_s* if it can be one.

    Raises:
        ValueError: It is not above 0.
    """
    if not window_s > 0:
        raise ValueError(f"window_s is {window_s}; it must be above 0")
    return window_s


def milliseconds(seconds: float) -> int:
    """Return *seconds* as whole milliseconds, at least 1."""
    return max(1, round(seconds * 1000))
