"""Reads a program that uses Spark, and finds calls that go badly with a queue. Nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from leasehold.spark.doctor.findings import Finding, Level, fail, ok, warn

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
