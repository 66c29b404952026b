"""Rules about queues as such."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from leasehold.domain.queue_settings import QueueSettings
from leasehold.domain.types import Queue


def same_metadata(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Tell whether two sets of metadata are the same: names without regard to case, values with.

    Source: Azure Queue Storage, "Create Queue": creating a queue again with the same metadata is
    harmless, with other metadata a conflict.
    """
    return {name.lower(): value for name, value in one.items()} == {
        name.lower(): value for name, value in other.items()
    }


def same_where_given(
    one: QueueSettings, other: QueueSettings, given: Iterable[Sequence[str]]
) -> bool:
    """Tell whether two settings are the same in what some paths of names lead to."""
    return all(_at(one, path) == _at(other, path) for path in given)


def _at(settings: QueueSettings, path: Sequence[str]) -> object:
    found: object = settings
    for name in path:
        found = getattr(found, name, None)  # of a part that is not set nothing is
    return found


def with_settings(queue: Queue, settings: QueueSettings) -> Queue:
    """Return *queue* with other settings.

    What the server has adapted is its own business and stays, as long as it is asked to adapt.
    """
    adapted = queue.settings.adapted if settings.adaptive is not None else None
    return replace(queue, settings=replace(settings, adapted=adapted))
