"""JSON objects that stand in for a body, told from bodies by a marker with a version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def marked(body: bytes, marker: str, version: int, members: Mapping[str, type]) -> Any:
    """Return the members of *body* if it is exactly such an object, otherwise None.

    Args:
        body: Any body.
        marker: The member that holds the version.
        version: The highest that can be read.
        members: The others, all of which must be there, with their types.

    Raises:
        ValueError: It is of a higher version.
    """
    # Nearly all bodies end here: a search costs less than to parse each as JSON.
    if marker.encode() not in body:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or type(found.get(marker)) is not int or found[marker] < 1:
        return None
    if found[marker] > version:
        raise ValueError(
            f"the body is in version {found[marker]} of {marker!r}; this reads up to {version}"
        )
    if found.keys() != {marker, *members}:
        return None
    # bool is an int as well, and never what is meant.
    right = all(type(found[name]) is kind for name, kind in members.items())
    return found if right else None
