"""Asks a server how it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError, ServerProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What is known of a server."""

    url: str
    unreachable: str | None = None
    """Why no Leasehold server answers there; None if one does."""
    report: dict[str, Any] | None = None
    """What ``/readyz`` says; None if it could not be read, as behind a proxy that hides it."""
    clock_ahead_s: tuple[float, float] | None = None
    """By at least and at most how many seconds its clock is ahead of this machine's."""
    refused: str | None = None
    """Why the credentials do not open the account; None if they do."""


def gather(client: Client, web: httpx.Client, now_ms: Callable[[], int]) -> ServerFacts:
    """Return what the server of *client* says; it is asked twice, and nothing is changed.

    Args:
        client: Of the account to look at.
        web: Fetches the server's own pages.
        now_ms: This machine's time of day, Unix milliseconds.
    """
    report: dict[str, Any] | None = None
    ahead_s: tuple[float, float] | None = None
    try:
        before_ms = now_ms()
        answer = web.get(f"{client.url}/readyz")
        after_ms = now_ms()
        told = answer.json()
        report = told if isinstance(told, dict) and "ready" in told else None
        ahead_s = clock_ahead_s(answer.headers.get("Date"), before_ms, after_ms)
    except (httpx.HTTPError, ValueError):
        pass  # the next question decides whether that matters
    try:
        next(iter(client.list_queues()), None)
    except ServerProblem as problem:
        refused = problem.problem.detail or problem.problem.title or problem.problem.code
        return ServerFacts(url=client.url, report=report, clock_ahead_s=ahead_s, refused=refused)
    except LeaseholdClientError as error:
        return ServerFacts(url=client.url, unreachable=str(error))
    return ServerFacts(url=client.url, report=report, clock_ahead_s=ahead_s)


def clock_ahead_s(date: str | None, before_ms: int, after_ms: int) -> tuple[float, float] | None:
    """Return between which bounds the other clock is ahead; None if the header is of no use.

    Args:
        date: The header ``Date`` of an answer, which has whole seconds.
        before_ms: Before the request was sent, by the own clock.
        after_ms: After the answer had come.
    """
    if date is None:
        return None
    try:
        theirs_s = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return theirs_s - after_ms / 1000, theirs_s + 1 - before_ms / 1000
