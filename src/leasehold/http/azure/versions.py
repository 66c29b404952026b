"""Protocol versions: which one a request is under, and what that version can do.

A version is a date. Any well-formed date from the oldest supported one on is taken and echoed: a
server that refuses what it does not know breaks with every new client library. A date between two
versions has the features of the earlier.

Source: "Versioning for Azure Storage" and "Previous Azure Storage service versions".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Final

from leasehold.domain.limits import (
    AZURE,
    AZURE_BEFORE_2011_08_18,
    AZURE_BEFORE_2017_07_29,
    Limits,
)
from leasehold.http.azure.errors import Fault, invalid_header, invalid_parameter

OLDEST: Final = "2009-09-19"
"""The string to sign of earlier versions is another one."""
NEWEST: Final = "2026-10-06"

UPDATE_MESSAGE_SINCE: Final = "2011-08-18"
DELAYED_PUT_SINCE: Final = "2011-08-18"
UPDATE_WITHIN_LIFE_SINCE: Final = "2012-02-12"
"""Until then a message may be hidden beyond its expiry, which takes precedence: so the team's
announcement of Update Message. The documentation of the operation refuses it."""
ACL_SINCE: Final = "2012-02-12"
CORS_SINCE: Final = "2013-08-15"
STATS_SINCE: Final = "2013-08-15"
SAS_FORBIDDEN_SINCE: Final = "2015-04-05"
PUT_ANSWER_SINCE: Final = "2016-05-31"
UNLIMITED_TIME_TO_LIVE_SINCE: Final = "2017-07-29"
ERROR_CODE_HEADER_SINCE: Final = "2017-07-29"
CLIENT_REQUEST_ID_SINCE: Final = "2019-02-02"
CHALLENGE_SINCE: Final = "2019-12-12"
DELEGATION_KEY_SINCE: Final = "2026-02-06"
DELEGATED_TENANT_SINCE: Final = "2026-04-06"

_WELL_FORMED: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
HEADER: Final = "x-ms-version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version and its features."""

    text: str
    """As the client wrote it, ``YYYY-MM-DD``."""
    header: tuple[bytes, bytes] | None
    """The echo; None when the client named no version, or none that exists."""
    limits: Limits
    put_answers: bool
    """Put Message answers with the message's id, times and receipt; else with an empty body."""
    delayed_put: bool
    """Put Message takes visibilitytimeout."""
    update_past_expiry: bool
    """Update Message may hide a message until after it expires; it is removed then all the same."""
    cors: bool
    """CORS rules, hour and minute metrics, ServiceEndpoint in the list; else the older forms."""
    error_code_header: bool
    """Errors carry x-ms-error-code."""
    echoes_client_request_id: bool
    challenges: bool
    """A request without credentials gets 401 and a challenge; else 404."""
    sas_forbidden: bool
    """A refused shared access signature gets 403; else 404."""


def _version(text: str, *, echo: bool) -> Version:
    if text < DELAYED_PUT_SINCE:
        limits = AZURE_BEFORE_2011_08_18
    elif text < UNLIMITED_TIME_TO_LIVE_SINCE:
        limits = AZURE_BEFORE_2017_07_29
    else:
        limits = AZURE
    return Version(
        text=text,
        header=(b"x-ms-version", text.encode("ascii")) if echo else None,
        limits=limits,
        put_answers=text >= PUT_ANSWER_SINCE,
        delayed_put=text >= DELAYED_PUT_SINCE,
        update_past_expiry=text < UPDATE_WITHIN_LIFE_SINCE,
        cors=text >= CORS_SINCE,
        error_code_header=text >= ERROR_CODE_HEADER_SINCE,
        echoes_client_request_id=text >= CLIENT_REQUEST_ID_SINCE,
        challenges=text >= CHALLENGE_SINCE,
        sas_forbidden=text >= SAS_FORBIDDEN_SINCE,
    )


UNSTATED: Final = _version(OLDEST, echo=False)
"""For a request that names no version: it can only be an anonymous one."""
UNREADABLE: Final = _version(NEWEST, echo=False)
"""For the error about a version, or an address, that could not be read; and for a preflight, in
which a browser has no way to name one."""


@lru_cache(maxsize=256)
def read_version(text: str) -> Version:
    """Return the version called *text*.

    Raises:
        ValueError: It is not a date, or older than :data:`OLDEST`.
    """
    if _WELL_FORMED.fullmatch(text) is None or text < OLDEST:
        raise ValueError(text)
    date.fromisoformat(text)
    return _version(text, echo=True)


def choose_version(headers: Mapping[str, str], params: Mapping[str, str]) -> Version:
    """Return the version a request is under.

    That is its ``x-ms-version``; with a shared access signature, else its ``api-version``, else
    its ``sv``.

    Raises:
        Fault: The version is not one, or a request with an Authorization header names none.
    """
    text = headers.get(HEADER)
    if text is not None:
        try:
            return read_version(text)
        except ValueError:
            raise invalid_header(HEADER, text) from None
    for name in ("api-version", "sv") if "sig" in params else ():
        text = params.get(name)
        if text:
            try:
                return read_version(text)
            except ValueError:
                raise invalid_parameter(name, text, "This is not a version.") from None
    if "authorization" in headers:
        raise Fault("MissingRequiredHeader", (("HeaderName", HEADER),))
    return UNSTATED
