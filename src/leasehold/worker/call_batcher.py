"""Calls of many threads that go out together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Asked(Generic[T, R]):
    """What one thread wants, and waits for."""

    __slots__ = ("answer", "following", "item", "leads", "turn")

    def __init__(self, item: T) -> None:
        self.item = item
        self.turn = threading.Lock()
        self.turn.acquire()
        self.leads = False
        """Whether it is to make the next call, for all that wait."""
        self.answer: R | BaseException | None = None
        self.following: _Asked[T, R] | None = None
        """Whom its thread has to wake when it is awake itself."""


class CallBatcher(Generic[T, R]):
    """Lets threads that want the same kind of thing at the same time share one call.

    What comes while a call is under way goes with the next one. There is no thread of its own: one
    of those that wait makes the call for all of them.

    Args:
        serve: Takes the items of several threads, and returns for each an answer, or an exception
            that is raised in its thread. If it raises one itself, that is what all of them get.
        most: Items of one call, 1 or more.
        patience_s: After so long behind a call that does not come back a thread makes one of its
            own; None: it waits.
        linger_s: So long a call waits for more items than there are, unless it has all that it may
            have. 0 for calls that cost little beside what each item costs.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[T]], Sequence[R | BaseException]],
        *,
        most: int,
        patience_s: float | None = None,
        linger_s: float = 0.0,
    ) -> None:
        self._serve = serve
        self._most = most
        self._patience_s = -1.0 if patience_s is None else patience_s
        self._linger_s = linger_s
        self._is_full = threading.Event()
        self._lock = threading.Lock()
        self._waiting: deque[_Asked[T, R]] = deque()
        self._is_under_way = False

    def ask(self, item: T) -> R:
        """Have *item* served, with others if there are any, and return the answer.

        Raises:
            BaseException: What came of it.
        """
        asked: _Asked[T, R] = _Asked(item)
        with self._lock:
            self._waiting.append(asked)
            if len(self._waiting) >= self._most:
                self._is_full.set()
            leads, self._is_under_way = not self._is_under_way, True
        if not leads:
            leads = self._wait(asked)
        if leads:
            self._lead(asked)
        answer = asked.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]  # None only if that is the answer

    def _wait(self, asked: _Asked[T, R]) -> bool:
        """Wait until it was served; return whether it has to make the next call instead."""
        if asked.turn.acquire(timeout=self._patience_s):
            _pass_on(asked)
            return asked.leads
        with self._lock:
            is_alone = not asked.leads and asked in self._waiting
            if is_alone:
                self._waiting.remove(asked)
        if is_alone:
            (asked.answer,) = self._served([asked])
            return False
        asked.turn.acquire()
        _pass_on(asked)
        return asked.leads

    def _lead(self, leader: _Asked[T, R]) -> None:
        """Make a call for those that wait, the longest first, and have another one go on."""
        if self._linger_s:
            self._is_full.wait(self._linger_s)
        with self._lock:
            count = min(self._most, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            if len(self._waiting) < self._most:
                self._is_full.clear()
        try:
            answers = self._served(batch)
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                if following is None:
                    self._is_under_way = False
                else:
                    following.leads = True
            if following is not None:
                following.turn.release()
        # Each wakes the next one. If all were awake at once they would fight for the lock of the
        # interpreter, which costs more than the work of most.
        before = leader
        for asked, answer in zip(batch, answers, strict=True):
            asked.answer = answer
            if asked is not leader:
                before.following = asked
                before = asked
        _pass_on(leader)

    def _served(self, batch: Sequence[_Asked[T, R]]) -> Sequence[R | BaseException]:
        try:
            answers = self._serve([asked.item for asked in batch])
        except BaseException as error:  # noqa: BLE001 - it is raised in the threads that asked
            return [error] * len(batch)
        if len(answers) != len(batch):
            return [RuntimeError(f"{len(batch)} were requested, {len(answers)} answered")] * len(
                batch
            )
        return answers


def _pass_on(asked: _Asked[T, R]) -> None:
    """Wake the thread that comes after this one, if there is one."""
    following = asked.following
    if following is not None:
        following.turn.release()
