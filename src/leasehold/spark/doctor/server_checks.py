"""What the facts about a server mean."""

from __future__ import annotations

from typing import Final

from leasehold import __version__
from leasehold.spark.doctor.findings import Finding, fail, ok, warn
from leasehold.spark.doctor.server_facts import ServerFacts

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
