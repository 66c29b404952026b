"""What is printed when a call to the server does not succeed."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from rich.text import Text

from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.rendering import Screen
from leasehold.cli.texts import clean
from leasehold.client.errors import (
    ConnectionFailed,
    LeaseholdClientError,
    ServerProblem,
    UnexpectedAnswer,
)

_SERVER_ERROR: Final = 500
_REMEDIES: Final = {
    "queue-not-found": "Look at the names with leasehold queue list, or create it with leasehold "
    "queue create.",
    "queue-exists": "Leave --metadata out to take it as it is, or change it with leasehold queue "
    "set.",
    "settings-differ": "Leave the settings out to take it as it is, or change them with leasehold "
    "queue set.",
    "message-not-found": "Look at what is there with leasehold message list.",
    "message-leased": "Wait until then, or add --force to end the lease as well.",
    "job-not-found": "Look at what is there with leasehold job list.",
    "session-not-found": "Look at what is there with leasehold session list.",
    "stream-not-found": "Look at what is there with leasehold stream list.",
    "claim-not-found": "Look at what is there with leasehold stream show.",
    "claim-lapsed": "Its consumer can open it again with the same number; leasehold stream show "
    "tells how many members it has lost.",
    "claim-broken": "Its consumer can open it with what remains. To give it up: leasehold stream "
    "give-back.",
    "claim-out-of-turn": "Look at the claims that there are with leasehold stream show.",
    "claim-settled": "Look at the claims that there are with leasehold stream show.",
    "body-unreadable": "Put the body back from a backup; or give the message a new one with "
    "leasehold message amend, or remove it with leasehold message remove.",
    "body-too-large": "Split it, or let the queue take larger ones: leasehold queue set "
    "--max-body-bytes.",
    "staged-not-found": "Look at what is there with leasehold transaction list.",
    "stale-token": "A consumer has attached meanwhile: look at the stream, then try again.",
}
"""By code: what to do, where the server speaks of requests and a person here of commands."""


def report(error: LeaseholdClientError, screen: Screen) -> ExitCode:
    """Print why a call did not succeed, to standard error, and return the exit code."""
    if screen.as_json:
        screen.error_line({"error": error_members(error)})
    elif isinstance(error, ServerProblem):
        print_problem(error, screen)
    else:
        screen.error(Text.assemble(("Error: ", "bold red"), clean(str(error))))
    unreachable = isinstance(error, ConnectionFailed | UnexpectedAnswer)
    return ExitCode.NO_CONNECTION if unreachable else ExitCode.REFUSED


def error_members(error: LeaseholdClientError) -> dict[str, Any]:
    """Return an error as JSON has it; those that are not the server's have codes of our own."""
    if isinstance(error, ServerProblem):
        members: dict[str, Any] = msgspec.to_builtins(error.problem)
        return {name: value for name, value in members.items() if value not in {None, "", False}}
    code = "no-connection" if isinstance(error, ConnectionFailed) else "unexpected-answer"
    return {"code": code, "detail": str(error)}


def print_problem(error: ServerProblem, screen: Screen) -> None:
    """Print a refusal: its code, what is wrong, what to do about it."""
    problem = error.problem
    head = Text.assemble(("Refused: ", "bold red"), (problem.code, "bold"))
    if problem.status:
        head.append(f" ({problem.status})")
    detail = problem.detail or problem.title
    lines = [head, Text(clean(detail))]
    if problem.field is not None and problem.field not in detail:
        lines.append(Text(f"At {clean(problem.field)}."))
    remedy = _REMEDIES.get(problem.code, problem.remedy)
    if remedy:
        lines.append(Text.assemble(("What to do: ", "bold"), clean(remedy)))
    if problem.repeated:
        lines.append(Text("An earlier try had no clear answer and may have succeeded."))
    if problem.request_id and problem.status >= _SERVER_ERROR:
        lines.append(Text(f"The server's log has it as request {clean(problem.request_id)}."))
    for line in lines:
        screen.error(line)
