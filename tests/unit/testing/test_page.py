"""The tests that the how-to page shows are tests, and pass; its other examples run elsewhere."""

from __future__ import annotations

import pytest

from tests.docs.pages import DOCS, blocks

pytest_plugins = "pytester"

PAGE = DOCS / "howto" / "test-with-a-virtual-clock.md"


def test_the_tests_of_the_page(pytester: pytest.Pytester) -> None:
    """Whoever copies them has tests that pass."""
    shown = [block.text for block in blocks(PAGE) if block.language == "py"]
    pytester.makeconftest('pytest_plugins = ["leasehold.testing.pytest_plugin"]')
    pytester.makepyfile(**{f"test_{number}": text for number, text in enumerate(shown)})
    result = pytester.runpytest_inprocess("--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=sum(text.count("def test_") for text in shown))
    assert len(shown) > 1
