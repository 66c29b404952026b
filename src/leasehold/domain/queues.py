"""Rules about queues as such."""

from __future__ import annotations

from collections.abc import Mapping


def same_metadata(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Tell whether two sets of metadata are the same: names without regard to case, values with.

    Source: Azure Queue Storage, "Create Queue": creating a queue again with the same metadata is
    harmless, with other metadata a conflict.
    """
    return {name.lower(): value for name, value in one.items()} == {
        name.lower(): value for name, value in other.items()
    }
