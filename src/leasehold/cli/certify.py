"""``leasehold certify``: what a worker does wrong with its leases."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Final

import click

from leasehold.clock import SystemClock
from leasehold.testing.certify.judge import RULES
from leasehold.testing.certify.run import Played, play_all, scenarios_for
from leasehold.testing.certify.scenarios import SCENARIOS, Scenario
from leasehold.testing.certify.trial import Options

_OUTPUT_LINES: Final = 15
_LINE: Final = 160

Show = Callable[[Played, bool], None]


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--scenario", "names", multiple=True, help="Run this scenario only. Can be repeated.")
@click.option(
    "--visibility-timeout",
    "lease_s",
    type=click.IntRange(2, 60),
    default=4,
    show_default=True,
    help="Visibility timeout that the worker is to use, in seconds.",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(1, 300),
    default=10.0,
    show_default=True,
    help="Seconds that the worker has to stop after SIGTERM.",
)
@click.option(
    "--at-once",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Number of scenarios run at the same time.",
)
@click.option("--progress", "saves", is_flag=True, help="Expect the worker to save its progress.")
@click.option("--mns", "speaks_mns", is_flag=True, help="Use MNS to speak with the worker.")
@click.option("--base64", "reads_base64", is_flag=True, help="Send bodies in base64.")
@click.option("--output", "shows_output", is_flag=True, help="Show the worker's output.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per scenario.")
@click.option("--list", "lists", is_flag=True, help="List the scenarios and the rules.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def certify(  # noqa: PLR0913 - each is an option of its own
    names: tuple[str, ...],
    command: tuple[str, ...],
    *,
    lease_s: int,
    grace_s: float,
    at_once: int,
    saves: bool,
    speaks_mns: bool,
    reads_base64: bool,
    shows_output: bool,
    as_json: bool,
    lists: bool,
) -> None:
    """Test whether a worker handles its leases correctly.

    COMMAND starts the worker, in any language, once per scenario. Its environment names the queue:
    CERTIFY_CONNECTION_STRING, or CERTIFY_MNS_ENDPOINT with --mns, CERTIFY_QUEUE,
    CERTIFY_VISIBILITY_TIMEOUT_S and others. The worker does the work of a message by a POST of its
    text to CERTIFY_WORK_URL: status 200 means success, any other status failure. The exit code is 1
    if a rule is broken.
    """
    if lists:
        _list()
        return
    if not command:
        raise click.UsageError(
            "leasehold certify needs COMMAND. Type: leasehold certify "
            "COMMAND, which starts the worker"
        )
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise click.UsageError(f"There is no scenario {unknown[0]!r}; --list shows them.")
    options = Options(
        command,
        lease_s=lease_s,
        grace_s=grace_s,
        saves_progress=saves,
        speaks_mns=speaks_mns,
        reads_base64=reads_base64,
    )
    scenarios = scenarios_for(names, options)
    show = _show_json if as_json else _show
    try:
        found = asyncio.run(_play(scenarios, options, at_once, show, shows_output=shows_output))
    except FileNotFoundError as error:
        raise click.ClickException(f"{command[0]!r} cannot be started: {error.strerror}.") from None
    if not names and not as_json:
        for each in SCENARIOS.values():
            if each not in scenarios:
                click.echo(f"Not played without {each.option}: {each.name}.")
    sys.exit(1 if found else 0)


async def _play(
    scenarios: list[Scenario],
    options: Options,
    at_once: int,
    show: Show,
    *,
    shows_output: bool,
) -> int:
    found = faulty = 0
    rules: set[str] = set()
    async for played in play_all(scenarios, options, SystemClock(), at_once=at_once):
        show(played, shows_output)
        found += len(played.findings)
        faulty += bool(played.findings)
        rules.update(each.rule for each in played.findings)
    if show is _show:
        total = len(scenarios)
        click.echo(f"\n{total - faulty} of {total} scenarios without a finding.")
        for rule in sorted(rules):
            click.echo(f"  {rule}: {RULES[rule]}")
    return found


def _show(played: Played, shows_output: bool) -> None:
    mark = "FOUND" if played.findings else "ok"
    click.echo(f"{mark:6}{played.scenario.name} ({played.took_s:.1f} s)")
    for each in played.findings:
        click.echo(f"      {each.rule}: {shorten(each.told)}")
    if played.findings:
        click.echo(f"      what happens in it: {played.scenario.told}")
    if shows_output and played.output:
        for line in played.output.splitlines()[-_OUTPUT_LINES:]:
            click.echo(f"      | {line}")


def shorten(told: str) -> str:
    """Return a sentence without most of a long text that it names."""
    if len(told) <= _LINE:
        return told
    return f"{told[: _LINE // 2]} ... {told[-_LINE // 2 :]}"


def _show_json(played: Played, shows_output: bool) -> None:
    told = {
        "scenario": played.scenario.name,
        "took_s": round(played.took_s, 3),
        "findings": [{"rule": each.rule, "told": each.told} for each in played.findings],
    }
    if shows_output:
        told["output"] = played.output
    click.echo(json.dumps(told))


def _list() -> None:
    click.echo("Scenarios:")
    for scenario in SCENARIOS.values():
        needs = f" ({scenario.option})" if scenario.option else ""
        click.echo(f"  {scenario.name}{needs}: {scenario.told}")
    click.echo("\nRules:")
    for rule, told in RULES.items():
        click.echo(f"  {rule}: {told}")
