"""Results for people: tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.figures import Bar, Row, Spread, rows
from benchmarks.records import Run
from benchmarks.summary import CYCLE, bars, warnings

_GIGABYTE = 1_000_000_000
_MEGABYTE = 1_000_000
_BAR_WIDTH = 20
_PLAIN_WIDTH = 150
"""Width of tables that go into a file."""


def make_console() -> Console:
    """Return a console on the standard output that does not squeeze tables into a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def show_run(run: Run, console: Console) -> None:
    """Print everything that *run* has measured."""
    console.print(_heading(run))
    console.print(_subjects_table(run))
    found = rows(run)
    for case in run.cases:
        kept = [row for row in found if row.case == case.name]
        console.print(case_table(case.name, kept) if kept else f"{case.name}: nothing measured")
    if run.restarts:
        console.print(_restart_table(run))
    for name, per_s in run.crosschecks.items():
        console.print(f"{name}: {per_s:,.0f} requests per second")
    for row in found:
        if (row.case, row.subject) == (CYCLE, "noop"):
            console.print(
                f"The generator took {row.generator_us.median:.1f} us of CPU per request to the "
                f"no-op, {row.generator_kernel_us.median:.1f} of it in the kernel"
            )
    for failure in run.failures:
        console.print(Text(f"FAILED {failure.subject}, {failure.case}: {failure.reason}", "red"))
    console.print(bars_table(bars(run)))
    for warning in warnings(run):
        console.print(Text(f"Careful: {warning}", "yellow"))
    if run.aborted:
        console.print(Text(f"The run was aborted: {run.aborted}", "red"))


def _heading(run: Run) -> RenderableType:
    machine, source = run.machine, run.source
    commit = (source.get("commit") or "no commit")[:12]
    dirty = ", with changes" if source.get("dirty") else ""
    fsync = machine["fsync_us"]
    return Group(
        Text(f"Suite {run.suite}, {run.started}, Leasehold {source['version']} ({commit}{dirty})"),
        Text(
            f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
            f"Python {machine['python']}, SQLite {machine['sqlite']}; "
            f"fsync p50 {fsync['p50']:.0f} us, p99 {fsync['p99']:.0f} us; "
            f"load at start {machine['load_average']}"
        ),
        Text("Figures are medians over the rounds; a max is the highest of all rounds."),
    )


def _subjects_table(run: Run) -> Table:
    table = Table("subject", "version", "resident, peak MB", "on disk", title="Subjects")
    for info in run.subjects:
        if info.absent:
            table.add_row(info.title, "absent", "", info.absent.splitlines()[-1], style="yellow")
            continue
        taken = [sample for sample in run.samples if sample.subject == info.name]
        peaks = [one.measured.memory.peak for one in taken if one.measured.memory]
        peak = f"{max(peaks) / _MEGABYTE:.0f}" if peaks else "-"
        disk = max((sample.disk_bytes for sample in taken), default=0)
        on_disk = f"{disk / _GIGABYTE:.2f} GB"
        if info.fill:
            each = info.fill["disk_bytes"] / info.fill["messages"]
            on_disk += f"; as filled {each:,.0f} bytes per message"
        table.add_row(info.title, info.version, peak, on_disk)
    return table


def case_table(name: str, found: Iterable[Row]) -> Table:
    """Return the table of one case; the bars compare the speeds within it."""
    kept = list(found)
    table = Table(title=name, title_justify="left")
    table.add_column("subject", no_wrap=True)
    table.add_column("phase")
    for column in ("operations/s", "lowest", "highest"):
        table.add_column(column, justify="right")
    table.add_column("", min_width=_BAR_WIDTH, no_wrap=True)
    table.add_column("CPU us/op", justify="right")
    for column in ("p50 ms", "p90", "p99", "max", "generator us"):
        table.add_column(column, justify="right")
    fastest: dict[str, float] = {}
    for row in kept:
        fastest[row.phase] = max(row.per_s.median, fastest.get(row.phase, 0))
    for row in kept:
        length = round(_BAR_WIDTH * row.per_s.median / fastest[row.phase])
        table.add_row(
            row.subject,
            row.phase,
            *(f"{value:,.0f}" for value in (row.per_s.median, row.per_s.low, row.per_s.high)),
            Text("█" * length or "▏", "cyan"),
            f"{row.server_us.median:.1f}",
            *_latency(row.latency_us[row.phase]),
            f"{row.generator_us.median:.1f}",
        )
        for verb, latency in row.latency_us.items():
            if verb != row.phase:
                table.add_row("", f"  {verb}", *[""] * 5, *_latency(latency), style="dim")
    return table


def _latency(at: Mapping[str, float]) -> list[str]:
    return [f"{at[key] / 1000:.2f}" for key in ("p50", "p90", "p99", "max")]


def _restart_table(run: Run) -> Table:
    table = Table(title="Start after kill -9 under load, seconds", title_justify="left")
    for column in ("subject", "files", "ready", "first message", "low to high"):
        table.add_column(column)
    keys = dict.fromkeys((one.subject, one.cold) for one in run.restarts)
    for subject, cold in keys:
        taken = [one for one in run.restarts if (one.subject, one.cold) == (subject, cold)]
        ready = Spread.of(one.ready_s for one in taken)
        answer = Spread.of(one.answer_s for one in taken)
        table.add_row(
            subject,
            "cold" if cold else "warm",
            f"{ready.median:.2f}",
            f"{answer.median:.2f}",
            f"{answer.low:.2f} to {answer.high:.2f}",
        )
    return table


def bars_table(found: Iterable[Bar], title: str = "Bars") -> Table:
    """Return the promises and whether they were kept."""
    table = Table("bar", "promised", "measured", "", "figures", title=title)
    verdicts = {True: ("pass", "green"), False: ("FALLS SHORT", "red"), None: ("-", "yellow")}
    for bar in found:
        word, colour = verdicts[bar.passed]
        value = "" if bar.value is None else f"{bar.value:,.2f}"
        table.add_row(bar.name, bar.bound, value, Text(word, colour), bar.detail)
    return table


def show_comparison(before: Run, after: Run, console: Console) -> None:
    """Print two runs side by side.

    The last column divides by what happened to the no-op in the same case: a machine that was
    slower that day slows the no-op too.
    """
    old = {(row.case, row.subject, row.phase): row for row in rows(before)}
    new = {(row.case, row.subject, row.phase): row for row in rows(after)}
    table = Table(title=f"{before.started} to {after.started}", title_justify="left")
    for column in ("case", "subject", "phase"):
        table.add_column(column)
    for column in ("operations/s", "ratio", "against the no-op", "CPU us/op", "ratio"):
        table.add_column(column, justify="right")
    for key, now in new.items():
        then = old.get(key)
        if then is None:
            continue
        ratio = now.per_s.median / then.per_s.median
        noop = (key[0], "noop", key[2])
        relative = ""
        if noop in old and noop in new:
            machine = new[noop].per_s.median / old[noop].per_s.median
            relative = f"{ratio / machine:.2f}"
        cpu = now.server_us.median / then.server_us.median if then.server_us.median else 0.0
        table.add_row(
            *key,
            f"{then.per_s.median:,.0f} to {now.per_s.median:,.0f}",
            f"{ratio:.2f}",
            relative,
            f"{then.server_us.median:.1f} to {now.server_us.median:.1f}",
            f"{cpu:.2f}" if cpu else "",
        )
    console.print(table)
    only = sorted({"/".join(key) for key in old.keys() ^ new.keys()})
    if only:
        console.print(f"In one of the two only: {', '.join(only)}")
