"""``leasehold spark``: what helps with Spark on one machine."""

from __future__ import annotations

import sys

import click

from leasehold.cli.lazy import OrderedGroup


@click.group("spark", cls=OrderedGroup)
def group() -> None:
    """Run a small Spark cluster on this machine, to try things."""


@group.command()
@click.option(
    "--workers",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="Workers; each is a process, with an address of its own where the system allows it.",
)
@click.option(
    "--cores",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Tasks that each worker runs at the same time.",
)
@click.option(
    "--memory",
    default="1g",
    show_default=True,
    metavar="SIZE",
    help="Memory of each worker, for its executors.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=7077,
    show_default=True,
    help="Of the master; 0 takes a free one.",
)
@click.option(
    "--web-port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default=True,
    help="Of the master's web page; 0 takes a free one.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="For logs, and for the files of applications. Default: one that is removed in the end.",
)
def cluster(folder: str | None, **numbers: int | str) -> None:
    """Run a Spark master and workers on this machine, until Ctrl+C.

    They come from PySpark's own package and listen on this machine only. Whoever can reach them can
    run programs as you, so it is for trying things.
    """
    # Late: --help needs nothing of Spark.
    from leasehold.spark import cluster as clusters  # noqa: PLC0415

    arguments = [
        word
        for name, value in numbers.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    if folder is not None:
        arguments += ["--folder", folder]
    sys.exit(clusters.main(arguments))
