"""The report: one page that needs nothing else, and all of it as JSON and CSV."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from leasehold.advisor.findings import Findings, analyze
from leasehold.advisor.plots import Ink, rows_for
from leasehold.advisor.report import count, render, seconds, write_report
from leasehold.advisor.summaries import LogSummary
from tests.unit.advisor.support import UNTIL_MS, full_log, full_queue


@pytest.fixture(scope="module")
def findings() -> Findings:
    """Return something of everything."""
    return analyze(full_log())


@pytest.fixture(scope="module")
def written(findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write a report of it into a folder that is not there yet; return its files."""
    folder = tmp_path_factory.mktemp("report") / "new" / "report"
    return write_report(findings, folder, UNTIL_MS)


@pytest.fixture(scope="module")
def page(written: list[Path]) -> str:
    """Return the page of it."""
    return written[0].read_text(encoding="utf-8")


class _Reader(HTMLParser):
    """Notes what is open, what has an id, and what is loaded."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in {"src", "href", "xlink:href"} and value and not value.startswith("#"):
                self.loads.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> _Reader:
    """Read a page; every tag has to be closed."""
    reader = _Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_stands_alone(page: str) -> None:
    """No script, nothing that is loaded, no id twice."""
    reader = read(page)
    assert reader.loads == []
    assert "script" not in reader.tags
    assert len(reader.ids) == len(set(reader.ids))
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_every_plot_is_there(page: str) -> None:
    """Cost and survival of the queue and of both types, a backlog, timelines; each with a name.

    A queue in which nothing waits, or of which nothing can be forecast, has no plot of that.
    """
    labels = re.findall(r'<svg [^>]*aria-label="([^"]+)"', page)
    assert labels == [
        "Cost of visibility timeouts for media",
        "Share of the work of media that takes longer",
        "Cost of visibility timeouts for media, thumbnail",
        "Share of the work of media, thumbnail that takes longer",
        "Cost of visibility timeouts for media, video",
        "Share of the work of media, video that takes longer",
        "Backlog of media, with a forecast of two days",
        "Timelines of messages received more than once",
    ]
    for word in ("glue point", "today = default", "advice", "messages expire", "now"):
        assert f">{word}</text>" in page


def test_colours_follow_the_page(page: str) -> None:
    """Every colour of a plot is a variable, and both palettes have all of them."""
    light, dark = page.partition("prefers-color-scheme: dark")[::2]
    for ink in Ink:
        assert ink.value not in page
        assert f"{ink.variable}:" in light
        assert f"{ink.variable}:" in dark
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert not re.search(r"(fill|stroke): ?#", "".join(plots))


def test_nothing_is_wider_than_the_screen_of_a_phone(page: str, tmp_path: Path) -> None:
    """Legends wrap, and what is wider by nature, such as tables, scrolls by itself."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium")
    told = (
        "const root = this.contentDocument.documentElement;"
        "document.title = `over by ${root.scrollWidth - root.clientWidth}`"
    )
    frame = f'<iframe style="width: 390px; border: 0" srcdoc="{escape(page)}" onload="{told}">'
    (tmp_path / "phone.html").write_text(f"<title></title>{frame}</iframe>", encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000")
    shown = subprocess.run(
        [chromium, *options, "--dump-dom", (tmp_path / "phone.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "<title>over by 0</title>" in shown.stdout


def test_few_data_are_said_on_the_page(page: str) -> None:
    """The queue that hardly anybody uses has a rough start, and no curve."""
    rare = page.partition("<h2>rare</h2>")[2]
    assert "Rough start" in rare
    assert "not enough data yet" in rare.lower()


def test_names_from_senders_are_only_text() -> None:
    """Types, errors and workers can hold anything; none of it becomes markup or a formula."""
    nasty = '<script>alert("$x^2$")</script>&amp;'
    queue = full_queue()
    queue = replace(
        queue,
        queue="a",
        works=tuple(replace(each, message_type=nasty) for each in queue.works[1:])
        + queue.works[:1],
        poison=tuple(replace(each, error_type=nasty) for each in queue.poison),
        workers=tuple(replace(each, holder=nasty) for each in queue.workers),
        timelines=tuple(replace(each, message_type=nasty) for each in queue.timelines),
    )
    found = analyze(LogSummary(since_ms=0, until_ms=UNTIL_MS, events=1, queues=(queue,)))
    reader = read(render(found, UNTIL_MS))
    assert "script" not in reader.tags


def test_all_of_it_is_in_files(findings: Findings, written: list[Path]) -> None:
    """JSON has every member; each table is a CSV file with as many rows."""
    assert written[0].name == "report.html"
    told = json.loads((written[0].parent / "findings.json").read_text())
    whole = told["queues"][0]["whole"]
    assert whole["timeout_s"] == findings.queues[0].whole.timeout_s

    def rows(name: str) -> list[dict[str, str]]:
        with (written[0].parent / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    assert {each.stem for each in written[2:]} == {
        "findings", "recommendations", "choices", "cost_curve", "survival", "splits", "hours",
        "forecast", "drains", "poison", "workers", "groups", "timelines",
    }  # fmt: skip
    assert len(rows("recommendations")) == 4
    assert [row["group_id"] for row in rows("groups")] == ["large", "small", "none yet"]
    assert len(rows("survival")) == sum(
        len(each.survival) for queue in findings.queues for each in (queue.whole, *queue.types)
    )
    assert len(rows("timelines")) == 24
    assert {row["attempt_outcome"] for row in rows("timelines")} >= {"lapsed", "completed_late"}
    assert len(rows("forecast")) == 96


def test_a_spreadsheet_runs_no_formula(findings: Findings, tmp_path: Path) -> None:
    """A worker that calls itself a formula stays a text, and so does a list that begins as one."""
    queue = findings.queues[0]
    worker = replace(queue.workers[0], worker=replace(queue.workers[0].worker, holder="=1+1"))
    poison = replace(queue.poison[0], sample_ids=("=cmd|' /C calc'!A0", "m2"))
    plain = replace(queue, workers=(worker,), poison=(poison,), types=(), timelines=())
    found = replace(findings, queues=(plain,))  # with few plots, which take most of the time
    write_report(found, tmp_path, UNTIL_MS)
    assert "'=1+1" in (tmp_path / "workers.csv").read_text()
    assert "'=cmd|' /C calc'!A0 m2" in (tmp_path / "poison.csv").read_text()


def test_an_empty_log_has_a_page() -> None:
    """It says that nothing is in it."""
    found = analyze(LogSummary(since_ms=0, until_ms=UNTIL_MS, events=0))
    page = render(found, UNTIL_MS)
    read(page)
    assert "no queues" in page


def test_names_of_near_marks_stand_below_each_other() -> None:
    """A name begins in the first row that is free where it stands."""
    assert rows_for([0.0, 0.1, 0.2, 0.5], [0.3, 0.05, 0.3, 0.1]) == [0, 1, 1, 0]


def test_lengths_and_counts_for_people() -> None:
    """In units that are easy to read."""
    lengths = [seconds(each) for each in (None, 0.42, 95, 600, 9_000, 200_000)]
    assert lengths == ["", "0.42 s", "95 s", "10 min", "2.5 h", "2.31 d"]
    assert [count(each) for each in (None, 0, 0.25, 3, 1_234.6)] == ["", "0", "0.25", "3", "1,235"]
