"""A pipeline for people: as text, and as a diagram."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from leasehold.worker.queues.protocol import Saved
from leasehold.worker.stages.declared import COMPLETED, Stage
from leasehold.worker.stages.resuming import Layout, split_label


def as_text(stages: Sequence[Stage], version: int) -> str:
    """Return one line for each stage."""
    width = max((len(each.name) for each in stages), default=0)
    lines = [f"{len(stages)} stages, version {version}"]
    for number, each in enumerate(stages, 1):
        lines.append(f"{number:>3}. {each.name:<{width}}  {'; '.join(_facts(each))}".rstrip())
    return "\n".join(lines)


def as_mermaid(stages: Sequence[Stage]) -> str:
    """Return a flowchart in the language of Mermaid; a stage that may be skipped is dashed."""
    lines = ["flowchart LR", "    received([received])"]
    for number, each in enumerate(stages, 1):
        facts = "<br/>".join([each.name, *_facts(each)])
        lines.append(f'    s{number}["{facts}"]')
    lines.append("    completed([completed])")
    places = ["received", *(f"s{number}" for number in range(1, len(stages) + 1)), "completed"]
    lines += [f"    {one} --> {next_}" for one, next_ in pairwise(places)]
    if any(each.when is not None for each in stages):
        lines.append("    classDef optional stroke-dasharray: 4 3")
        names = [f"s{n}" for n, each in enumerate(stages, 1) if each.when is not None]
        lines.append(f"    class {','.join(names)} optional")
    return "\n".join(lines)


def where(layout: Layout, saved: Saved | None) -> str:
    """Return where saved progress is, as in "stage 2 of 3, encode; 41 % of all"."""
    name = layout.names[0] if saved is None or saved.stage is None else split_label(saved.stage)[0]
    name = layout.renamed.get(name, name)
    done = ""
    if saved is not None and saved.fraction is not None:
        done = f"; {saved.fraction * 100:.0f} % of all"
    if name == COMPLETED:
        return "completed"
    if name not in layout.names:
        return f"stage {name}, which is unknown{done}"
    place = layout.names.index(name) + 1
    return f"stage {place} of {len(layout.names)}, {name}{done}"


def _facts(stage: Stage) -> list[str]:
    facts = []
    if stage.when is not None:
        facts.append("may be skipped")
    if stage.retries:
        after = f", {stage.retry_delay_s:g} s apart" if stage.retry_delay_s else ""
        facts.append(f"retries {stage.retries}{after}")
    if stage.exhausted == "poison":
        facts.append("then poison")
    if stage.timeout_s == "learned":
        facts.append("reported when unusually long")
    elif stage.timeout_s is not None:
        facts.append(f"at most {stage.timeout_s:g} s")
    if stage.must_save:
        facts.append("must be saved")
    return facts
