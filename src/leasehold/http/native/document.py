"""The server's own description: the OpenAPI document, and the pages of the codes."""

from __future__ import annotations

import asyncio
from functools import cache
from importlib import resources

import msgspec

from leasehold import __version__
from leasehold.http.messages import Response
from leasehold.http.native.call import Call
from leasehold.http.native.codes import CODES, PROBLEMS
from leasehold.http.native.problems import Refused, problem


@cache
def openapi_json() -> bytes:
    """Return the document; reading it takes a moment, so it is done once."""
    text = resources.files(__package__ or "").joinpath("openapi.yaml").read_bytes()
    content = msgspec.yaml.decode(text)
    content["info"]["version"] = __version__
    return msgspec.json.encode(content)


async def openapi(call: Call) -> Response:
    """Show the OpenAPI document."""
    return call.reply(msgspec.Raw(await asyncio.to_thread(openapi_json)))


async def explain_code(call: Call) -> Response:
    """Show what a code means."""
    code = CODES.get(call.item)
    if code is None:
        detail = f"There is no code {call.item[:100]!r}."
        raise Refused(problem("no-such-route", detail, remedy=f"The codes are {', '.join(CODES)}."))
    return call.reply({"type": PROBLEMS + call.item, "code": call.item, **code._asdict()})
