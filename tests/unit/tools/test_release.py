"""What a release is called, and what it must be before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from leasehold import __version__

release = pytest.importorskip("tools.release", reason="the extra release is not installed")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.2.3", "1.2.3"),
        ("1.2", "1.2.0"),
        ("0.2.0.dev0", "0.2.0-dev.0"),
        ("1.0rc2", "1.0.0-rc.2"),
        ("1.0b1.dev3", "1.0.0-b.1.dev.3"),
    ],
)
def test_the_version_of_the_chart(version: str, expected: str) -> None:
    """It is that of the package in the form that Helm asks for."""
    assert release.chart_version(version) == expected


def test_the_chart_has_this_version() -> None:
    """As its own, and as that of its application."""
    chart = yaml.safe_load((release.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == release.chart_version(__version__)
    assert chart["appVersion"] == __version__


def test_a_tag_is_that_of_the_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the change log has a section for it, with a date."""
    changes = tmp_path / "CHANGELOG.md"
    monkeypatch.setattr(release, "CHANGES", changes)
    changes.write_text(f"## [{__version__}] - 2026-12-01\n")
    release.check_tag(f"v{__version__}")
    with pytest.raises(ValueError, match=r"v9\.9\.9"):
        release.check_tag("v9.9.9")
    changes.write_text(f"## [{__version__}] - unreleased\n")
    with pytest.raises(ValueError, match="no section with a date"):
        release.check_tag(f"v{__version__}")
