"""``leasehold pipeline``: stages on Spark executors."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import Length, Pair
from leasehold.cli.worker import LocalCommand, RunCommand

_PIPELINE: Final = click.argument("pipeline", metavar="MODULE:PIPELINE")
_RUN_EPILOG: Final = """\b
Exit codes:
  0    the queue is empty, or the run was stopped by SIGTERM or Ctrl+C
  1    there is no such queue, or the run could not go on
  2    a mistake in the command line
  3    no Leasehold server, or no other service, answers at the address
  130  a second Ctrl+C or SIGTERM: messages in work were not waited for
"""


class PipelineCommand(RunCommand):
    """The same as for workers, with other ends."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.epilog = _RUN_EPILOG


@click.group("pipeline", cls=OrderedGroup)
def pipeline() -> None:
    """Run stages on Spark executors, each message on a lease of its own."""


@pipeline.command("run", cls=PipelineCommand)
@_PIPELINE
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="MASTER",
    help="Of Spark: local[2], spark://host:7077 and so on.",
)
@click.option(
    "--conf",
    "conf",
    multiple=True,
    type=Pair(),
    metavar="NAME=VALUE",
    help="Setting of Spark. May be given several times.",
)
@click.option(
    "--queue",
    metavar="QUEUE",
    help="Name of the queue, or an address such as azure:///orders. Default: that of the pipeline.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many tasks of Spark. Default: as many as it runs at once.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1, max=10_000),
    metavar="N",
    help="Messages that each task works on at once. Default: 8, and more while they take next to "
    "no time.",
)
@click.option(
    "--lease",
    "lease_s",
    type=Length(),
    default="30s",
    show_default=True,
    help="Length of each lease; it is renewed as long as a stage works.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Failures that a message gets; the last one buries it.",
)
@click.option("--continuous", is_flag=True, help="Go on until stopped, also when nothing is left.")
@click.option(
    "--grace",
    "grace_s",
    type=Length(),
    default="30s",
    show_default=True,
    help="How long messages in work may go on after the first signal.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write what became of each message there: .parquet, .json, .jsonl or .ndjson.",
)
@click.option(
    "--each",
    type=click.Choice(["message", "delivery", "expired"]),
    default="message",
    show_default=True,
    help="What the report has a row for.",
)
@click.option(
    "--progress/--no-progress",
    default=True,
    help="Show how it is going: bars on a terminal, a line every ten seconds elsewhere. On unless "
    "told.",
)
def run_pipeline(given: dict[str, Any], **wishes: Any) -> None:
    """Work a queue off on the executors of Spark, and say what was done.

    The pipeline is a leasehold.spark.pipeline.Pipeline. Its module is looked for in the current
    directory first, and is brought to the executors with the other modules there that it uses.

    With --json each line of the output is an object that says how it is going, the last one how it
    has ended.

    Example: leasehold pipeline run video:pipeline --master 'local[2]'

    Example: leasehold pipeline run video:pipeline --master spark://cluster:7077 --report all.json
    """
    # Late: Spark takes a while to load, and --help needs none of it.
    from leasehold.cli.pipeline_run import Wishes, run  # noqa: PLC0415

    sys.exit(run(Wishes(**wishes), given))


@pipeline.command("describe", cls=LocalCommand)
@_PIPELINE
@click.option("--mermaid", is_flag=True, help="Write a flowchart in the language of Mermaid.")
def describe_pipeline(pipeline: str, mermaid: bool, as_json: bool, no_color: bool) -> None:
    """Describe the stages of a pipeline.

    Example: leasehold pipeline describe video:pipeline
    """
    from leasehold.cli.output import Screen  # noqa: PLC0415
    from leasehold.cli.pipeline_run import describe  # noqa: PLC0415 - as above

    sys.exit(describe(Screen(as_json=as_json, no_color=no_color), pipeline, mermaid=mermaid))
