"""What the doctor says."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import IntEnum
from typing import Any, Final

import httpx

from leasehold import __version__
from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError, ServerProblem


class Level(IntEnum):
    """How bad a finding is; the larger, the worse."""

    OK = 0
    WARN = 1
    """It works, and may not go on to."""
    FAIL = 2
    """It does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """Name of the check: small letters and hyphens, the same for ever."""
    level: Level
    found: str
    """What there is."""
    meaning: str = ""
    """What follows from it; empty if all is well."""
    cure: str = ""
    """What to do about it; empty if all is well."""


def ok(check: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(check=check, level=Level.OK, found=found)


def warn(check: str, found: str, meaning: str, cure: str) -> Finding:
    """Return that something works, and may not go on to."""
    return Finding(check=check, level=Level.WARN, found=found, meaning=meaning, cure=cure)


def fail(check: str, found: str, meaning: str, cure: str) -> Finding:
    """Return that something does not work."""
    return Finding(check=check, level=Level.FAIL, found=found, meaning=meaning, cure=cure)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among findings; OK if there are none."""
    return max((each.level for each in findings), default=Level.OK)


# --- programs ----------------------------------------------------------------------------------
#
# Reads a program that uses Spark, and finds calls that go badly with a queue. Nothing is run.


_OURS: Final = "leasehold"
_KINDS: Final = {"continuous", "realTime", "once"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A method call: ``.trigger(once=True)``."""

    line: int
    name: str
    texts: tuple[str, ...]
    """Its arguments that are literals, in order."""
    named: dict[str, str]
    """Those with names."""


def calls(source: str) -> list[Call]:
    """Return all method calls of a program, in the order of its lines.

    Raises:
        SyntaxError: It is not Python.
    """
    return sorted(_calls(ast.parse(source)), key=lambda each: each.line)


def _calls(tree: ast.AST) -> Iterator[Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            texts = (str(each.value) for each in node.args if isinstance(each, ast.Constant))
            named = {
                each.arg: str(each.value.value)
                for each in node.keywords
                if each.arg is not None and isinstance(each.value, ast.Constant)
            }
            line = node.func.end_lineno or node.lineno
            yield Call(line=line, name=node.func.attr, texts=tuple(texts), named=named)


def check_program(name: str, source: str) -> list[Finding]:
    """Return what in a program goes badly with a queue; one finding if nothing does.

    Args:
        name: Of the file, for people.
        source: Its text.
    """
    try:
        found = calls(source)
    except SyntaxError as error:
        return [
            fail(
                "program",
                f"{name}:{error.lineno}: {error.msg}",
                "It is not Python.",
                "Name a file of Python.",
            )
        ]
    findings = [finding for call in found for finding in _check(name, call)]
    findings += _checkpoint(name, found)
    if not any(finding.level is not Level.OK for finding in findings):
        return [ok("program", f"{name}: {len(found)} calls, nothing to say")]
    return findings


def _check(name: str, call: Call) -> Iterator[Finding]:
    where = f"{name}:{call.line}"
    options = dict(zip(call.texts[::2], call.texts[1::2], strict=False)) | call.named
    for option, value in options.items():
        if option.lower() == "asyncprogresstrackingenabled" and value.lower() == "true":
            yield fail(
                "async-progress",
                f"{where}: asyncProgressTrackingEnabled",
                "Spark then asks for the next batch before it has noted that the last is done. "
                "The source takes that for done: a crash loses messages.",
                "Leave it out.",
            )
    if call.name == "trigger" and (kind := next(iter(_KINDS & call.named.keys()), None)):
        if kind == "once":
            yield warn(
                "trigger",
                f"{where}: trigger(once=…)",
                "One batch without a limit, and its messages are only completed by the next run.",
                "Say trigger(availableNow=True).",
            )
        else:
            yield fail(
                "trigger",
                f"{where}: trigger({kind}=…)",
                "Sources in Python are refused in this mode.",
                "Say trigger(processingTime=…) or trigger(availableNow=True).",
            )
    if call.name == "master" and call.texts and _no_retries(call.texts[0]):
        yield warn(
            "task-retries",
            f"{where}: master({call.texts[0]!r})",
            "There a task that fails is not tried again, and ends the query.",
            "Say local[2,4]: two cores, four attempts.",
        )


def _no_retries(master: str) -> bool:
    return master.startswith("local") and "," not in master and "cluster" not in master


def _checkpoint(name: str, found: list[Call]) -> Iterator[Finding]:
    reads = any(each.name == "format" and _OURS in each.texts for each in found)
    starts = [each for each in found if each.name == "start"]
    keeps = any(
        option.lower() == "checkpointlocation"
        for each in found
        for option in (*each.texts, *each.named)
    ) or any("checkpointLocation" in text for each in found for text in each.texts)
    if reads and starts and not keeps:
        yield warn(
            "checkpoint",
            f"{name}:{starts[0].line}: start() without checkpointLocation",
            "Nothing survives the process: a restart cannot finish the batch that was under way.",
            'Give .option("checkpointLocation", …) a folder that stays.',
        )


# --- server checks -----------------------------------------------------------------------------
#
# What the facts about a server mean.


CLOCKS_APART_S: Final = 5.0
"""Clocks that are further apart are worth a word."""
_CLOCKS_TOO_FAR_S: Final = 900.0
"""Signatures that are older are refused, as Azure does it."""


def check_server(facts: ServerFacts) -> list[Finding]:
    """Return everything there is to say about a server."""
    if facts.unreachable is not None:
        return [
            fail(
                "server-reachable",
                f"{facts.url}: {facts.unreachable}",
                "Nothing can be sent or received.",
                "Start a server with leasehold serve, or say where it is: --connection-string, "
                "or the variable AZURE_STORAGE_CONNECTION_STRING.",
            )
        ]
    found = [ok("server-reachable", facts.url), _access(facts)]
    if facts.report is None:
        found.append(
            warn(
                "server-report",
                f"{facts.url}/readyz cannot be read",
                "Whether the server can write is not known.",
                "If a proxy is in front of the server, let /readyz through, or ask the server "
                "directly.",
            )
        )
    else:
        found += [_ready(facts.report), _writable(facts.report), _version(facts.report)]
    found.append(_clock(facts))
    return found


def _access(facts: ServerFacts) -> Finding:
    if facts.refused is None:
        return ok("server-access", "the credentials open the account")
    return fail(
        "server-access",
        facts.refused,
        "The server answers, and refuses this account or its credentials.",
        "Look at account name and key. A signature (SAS) needs the right to list queues for this "
        "check only.",
    )


def _ready(report: dict[str, object]) -> Finding:
    if report.get("ready"):
        return ok("server-ready", "the server takes requests")
    why = "it is stopping" if report.get("draining") else "its store has failed"
    return fail(
        "server-ready",
        f"the server is not ready: {why}",
        "Requests will be refused soon, if they are not already.",
        "Start it again, and read the end of its log.",
    )


def _writable(report: dict[str, object]) -> Finding:
    store = report.get("store")
    if not isinstance(store, dict) or store.get("writable", True):
        durable = isinstance(store, dict) and store.get("durable", True)
        if durable:
            return ok("server-writable", "messages are written, and on disk before the answer")
        return warn(
            "server-writable",
            "the store is not durable",
            "What the server has answered can be lost when the power goes.",
            "See the settings of the store, or keep its data on a local disk.",
        )
    return fail(
        "server-writable",
        "the disk is full",
        "Messages can be received and completed, and not sent.",
        "Make room; the server notices it by itself.",
    )


def _version(report: dict[str, object]) -> Finding:
    theirs = str(report.get("version", "unknown"))
    if theirs == __version__:
        return ok("server-version", theirs)
    return warn(
        "server-version",
        f"the server is {theirs}, this is {__version__}",
        "What one of them can do may be unknown to the other.",
        "Install the same version here, the server first.",
    )


def _clock(facts: ServerFacts) -> Finding:
    if facts.clock_ahead_s is None:
        return warn(
            "clock",
            "the server does not tell its time",
            "Whether the clocks go together is not known.",
            "Let the header Date through if a proxy removes it.",
        )
    least_s, most_s = facts.clock_ahead_s
    apart_s = max(least_s, -most_s, 0.0)
    if apart_s <= CLOCKS_APART_S:
        return ok("clock", f"at most {max(abs(least_s), abs(most_s)):.1f} s apart")
    which = "ahead of" if least_s > 0 else "behind"
    found = f"the server's clock is {apart_s:.0f} s {which} this one"
    cure = "Let both machines follow a time server (NTP)."
    if apart_s > _CLOCKS_TOO_FAR_S:
        meaning = "Signatures are refused that far apart."
        return fail("clock", found, meaning, cure)
    meaning = (
        "Leases do not suffer, as the server's clock alone decides; ages in reports and the time "
        "of signatures are off by as much."
    )
    return warn("clock", found, meaning, cure)


# --- server facts ------------------------------------------------------------------------------
#
# Asks a server how it is.


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
