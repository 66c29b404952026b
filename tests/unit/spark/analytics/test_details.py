"""What users tell of messages beside the log."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from leasehold.advisor.tables.derive import BadDetails, with_details


@pytest.mark.parametrize(
    "columns", [["message_type"], ["id", "message_type"], ["message_id"], ["message_id", "kind"]]
)
def test_details_that_tell_nothing_are_refused(columns: list[str]) -> None:
    """Without the key, or with nothing else, they would pass for details and change nothing."""
    with pytest.raises(BadDetails, match="need message_id, and one or more of message_type"):
        with_details(MagicMock(), MagicMock(columns=columns))


def test_no_details_are_fine() -> None:
    """Rows stay as they are."""
    rows = MagicMock()
    assert with_details(rows, None) is rows
