"""``leasehold worker prove-fencing`` and ``leasehold worker stages``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rich.text import Text

from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.rendering import Screen
from leasehold.cli.texts import clean, clean_lines
from leasehold.cli.worker_finding import NotFound, find_function, find_stages, find_target, told
from leasehold.worker.once import proving
from leasehold.worker.payloads import codec_named

_GOOD: Final = tuple(each.value for each in proving.Verdict if each.is_good)
_BAD: Final = tuple(each.value for each in proving.Verdict if not each.is_good)
_NEEDS_RESET: Final = (
    "Without --reset nobody can tell one effect from two: name a function that puts the effects "
    "back to the start."
)


def prove(screen: Screen, handler: str, **wishes: Any) -> int:
    """Prove that a handler bears late workers; print the table and return the exit code.

    Args:
        screen: Where to write.
        handler: Which one, as ``module:name``.
        **wishes: The options of the command; see its help.
    """
    has_reset = wishes["reset"] is not None
    screen.hint(f"Playing late and dying workers against {handler} …")
    try:
        report = _report(handler, wishes)
    except NotFound as error:
        return _refuse(screen, str(error))
    except (proving.CannotProve, ValueError) as error:
        return _refuse(screen, f"nothing can be proven of {handler}: {error}")
    except Exception as error:  # noqa: BLE001 - what the user's probe, reset and later raise
        return _refuse(screen, f"nothing can be proven of {handler}: {told(error)}")
    if screen.as_json:
        screen.document(report.to_json())
        return ExitCode.DONE if report.holds else ExitCode.REFUSED
    for line in clean_lines(report.table()).splitlines():
        text = Text(line)
        if not text.highlight_words(_BAD, "bold red"):
            text.highlight_words(_GOOD, "green")
        screen.row(text)
    screen.row(Text())
    if report.holds:
        screen.row(Text("Proven: no late worker did any harm.", "bold green"))
        return ExitCode.DONE
    screen.row(Text("Not proven.", "bold red"))
    if not has_reset:
        screen.hint(_NEEDS_RESET)
    return ExitCode.REFUSED


def _report(handler: str, wishes: dict[str, Any]) -> proving.ProofReport:
    target = find_target(handler, None)
    if isinstance(target.handler, Mapping):
        raise NotFound(f"{handler} has a handler for each queue: name one of them")
    functions: dict[str, Any] = {
        name: None if text is None else find_function(text)
        for name, text in ((name, wishes.pop(name)) for name in ("probe", "reset", "later"))
    }
    body, body_file = wishes.pop("body"), wishes.pop("body_file")
    codec, files = wishes.pop("codec"), wishes.pop("files")
    if target.stages is not None and not files:
        # The lines to stop at are not those of the library's pipeline.
        files = (str(sys.modules[handler.partition(":")[0]].__file__),)
    report = proving.prove(
        target.handler,
        body=body.encode() if body_file is None else body_file.read(),
        decode=None if codec is None else codec_named(codec).decode,
        properties=dict(wishes.pop("properties")),
        files=files,
        **functions,
        **wishes,
    )
    return replace(report, handler=handler)


def describe(screen: Screen, pipeline: str, *, mermaid: bool) -> int:
    """Print the stages of a pipeline and return the exit code."""
    try:
        found = find_stages(pipeline)
        layout = found.layout
    except (NotFound, ValueError) as error:
        return _refuse(screen, str(error))
    if screen.as_json:
        stages = [
            {"name": name, "weight": weight}
            for name, weight in zip(layout.names, layout.weights, strict=True)
        ]
        screen.document({"pipeline": pipeline, "version": layout.version, "stages": stages})
    else:
        for line in found.describe("mermaid" if mermaid else "text").splitlines():
            screen.row(Text(line))
    return ExitCode.DONE


def _refuse(screen: Screen, text: str) -> int:
    if screen.as_json:
        screen.error_line({"error": {"code": "usage", "detail": text}})
    else:
        screen.error(Text.assemble(("Error: ", "bold red"), clean(text)))
    return ExitCode.USAGE
