"""The JSON in which a Leasehold server keeps progress beside the body.

One object, for any client to read; each member but the first may be left out::

    {"leasehold.saved": 1, "stage": "encode", "state": {"frame": 1200}, "fraction": 0.4}
"""

from __future__ import annotations

import json
from typing import Any, Final

from leasehold.worker.queues.protocol import Saved
from leasehold.worker.stages.envelope import UnreadableEnvelope, members_of

MARKER: Final = "leasehold.saved"
VERSION: Final = 1
_MEMBERS: Final = {MARKER, "stage", "state", "fraction"}


def saved_members(saved: Saved) -> dict[str, Any]:
    """Return what is kept of *saved*.

    Raises:
        TypeError: The state is not what JSON can say.
        ValueError: The fraction is not within 0 to 1.
    """
    members = {MARKER: VERSION, **members_of(saved)}
    try:
        text = json.dumps(members, ensure_ascii=False, allow_nan=False)
        text.encode()  # half of a character is no text
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a state must be what JSON can say: {error}") from error
    plain: dict[str, Any] = json.loads(text)
    return plain


def read_saved(plain: Any) -> Saved:
    """Return what :func:`saved_members` has made; what is not of that form is all state.

    Raises:
        UnreadableEnvelope: It is of a version above :data:`VERSION`.
    """
    if not isinstance(plain, dict) or type(plain.get(MARKER)) is not int:
        return Saved(state=plain)
    version = plain[MARKER]
    if version > VERSION:
        raise UnreadableEnvelope(
            f"progress is saved in version {version} of its form; "
            f"this worker reads up to version {VERSION}"
        )
    stage, fraction = plain.get("stage"), plain.get("fraction")
    if plain.keys() <= _MEMBERS and _is_stage(stage) and _is_fraction(fraction):
        return Saved(stage=stage, state=plain.get("state"), fraction=fraction)
    return Saved(state=plain)


def _is_stage(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_fraction(value: Any) -> bool:
    return value is None or (type(value) in {int, float} and 0 <= value <= 1)
