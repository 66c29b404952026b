"""The console's pure functions: how things are written, and what a search means."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.harness import Visit, World

NOW_MS = 1_764_072_000_000  # 2025-11-25 12:00 UTC


@pytest.fixture
def page(world: World, operator: Visit) -> Visit:
    """Give a page that can import the modules."""
    return operator.open()


def call(page: Visit, module: str, name: str, *arguments: Any) -> Any:
    """Call a function of a module of the pages."""
    return page.page.evaluate(
        """async ([module, name, given]) =>
          (await import(`/console/static/${module}.js`))[name](...given)""",
        [module, name, list(arguments)],
    )


FORMATS: list[tuple[str, list[Any], str | float | None]] = [
    ("count", [1_234_567], "1,234,567"),
    ("count", [None], "\N{EN DASH}"),
    ("short", [12_345], "12.3K"),
    ("plural", [1, "message"], "1 message"),
    ("plural", [2, "match", "matches"], "2 matches"),
    ("rate", [0], "0/s"),
    ("rate", [3.14], "3.1/s"),
    ("rate", [1234.5], "1,235/s"),
    ("duration", [0], "0 s"),
    ("duration", [0.0004], "< 1 ms"),
    ("duration", [0.35], "350 ms"),
    ("duration", [4.2], "4.2 s"),
    ("duration", [200], "3 min 20 s"),
    ("duration", [3_600], "1 h"),
    ("duration", [273_600], "3 d 4 h"),
    ("duration", [-5], "-5.0 s"),
    ("bytes", [0], "0 B"),
    ("bytes", [1_536], "1.5 KiB"),
    ("bytes", [64 * 1024 * 1024], "64 MiB"),
    ("exact", [NOW_MS], "2025-11-25T12:00:00.000Z"),
    ("relative", [NOW_MS - 180_000, NOW_MS], "3 min ago"),
    ("relative", [NOW_MS + 20_000, NOW_MS], "in 20 s"),
    ("relative", [NOW_MS, NOW_MS], "now"),
    ("percent", [0.85], "85 %"),
    ("percent", [0.034], "3.4 %"),
    ("seconds", ["90"], 90),
    ("seconds", ["15m"], 900),
    ("seconds", ["1.5h"], 5_400),
    ("seconds", ["7 d"], 604_800),
    ("seconds", ["soon"], None),
]


def test_how_things_are_written(page: Visit, subtests: pytest.Subtests) -> None:
    """Numbers, lengths, sizes and moments, as people write them."""
    for name, given, expected in FORMATS:
        with subtests.test(f"{name} {given}"):
            assert call(page, "lib/format", name, *given) == expected


ID = "00000000-002e-8418-a508-9e6ebedc98d5"
SEARCHES: list[tuple[str, str]] = [
    ("4711", "#/queues/q?tab=messages&search=4711"),
    ("error:timeout since:12:00", "#/queues/q?tab=messages&error=timeout&since=12%3A00"),
    ('holder:"worker 3" lost', "#/queues/q?tab=messages&holder=worker+3&search=lost"),
    ("http://host/path", "#/queues/q?tab=messages&search=http%3A%2F%2Fhost%2Fpath"),
    ("nothing:known", "#/queues/q?tab=messages&search=nothing%3Aknown"),
    ("property:tenant=acme", "#/queues/q?tab=messages&property=tenant%3Dacme"),
    (f" {ID.upper()} ", f"#/messages/q/{ID}"),
]


def test_what_a_search_means(page: Visit, subtests: pytest.Subtests) -> None:
    """Names of fields are taken for fields, an id for the message, all else for text."""
    for text, expected in SEARCHES:
        with subtests.test(text):
            assert call(page, "ui/filter", "pageOf", "q", text) == expected


def test_moments_of_a_filter(page: Visit) -> None:
    """A time of day is that of today, or of yesterday if it is still to come."""
    assert call(page, "ui/filter", "ageOf", "2h", NOW_MS) == 7_200
    assert call(page, "ui/filter", "ageOf", "11:30", NOW_MS) == 1_800
    assert call(page, "ui/filter", "ageOf", "12:30", NOW_MS) == 23.5 * 3_600
    assert call(page, "ui/filter", "ageOf", "2025-11-25 11:00", NOW_MS) == 3_600
    assert call(page, "ui/filter", "ageOf", "at noon", NOW_MS) is None
