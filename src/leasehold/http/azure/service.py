"""Service properties, with the CORS rules in force, and service statistics.

Source: "Operations on the account (Queue Storage)".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from leasehold.domain.commands import (
    AccountDocument,
    Command,
    GetAccountDocument,
    Result,
    SetAccountDocument,
)
from leasehold.domain.errors import LeaseholdError
from leasehold.http.azure import properties
from leasehold.http.azure.call import Call
from leasehold.http.azure.cors import CorsRule, rules_of
from leasehold.http.azure.dates import rfc1123
from leasehold.http.azure.errors import invalid_parameter
from leasehold.http.azure.xml_in import parse_tree
from leasehold.http.azure.xml_out import element, parent
from leasehold.http.messages import Response

Perform: TypeAlias = Callable[[Command], Awaitable[Result]]

_FRESH_MS: Final = 30_000
"""Another server may have changed the properties; the service itself takes as long to tell."""


class AccountService:
    """The properties of all accounts; remembers their CORS rules, which every answer needs."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._rules: dict[str, tuple[tuple[CorsRule, ...], int]] = {}
        self._fetching = asyncio.Lock()
        self._setting = asyncio.Lock()

    async def get_properties(self, call: Call) -> Response:
        """Answer Get Queue Service Properties."""
        document = await self._load(call.account)
        root = properties.write_properties(document, cors=call.version.cors)
        return call.reply_xml(200, root)

    async def set_properties(self, call: Call) -> Response:
        """Answer Set Queue Service Properties; what the request leaves out stays as it is."""
        sections = properties.read_properties(parse_tree(call.request.body), cors=call.version.cors)
        # Reading and writing are two commands; a second writer must not come between them.
        async with self._setting:
            document = await self._load(call.account) | sections
            content = properties.dump(document)
            kind = properties.DOCUMENT_KIND
            await self._perform(SetAccountDocument(call.account, kind, content))
        self._rules[call.account] = rules_of(document), call.now_ms + _FRESH_MS
        return call.reply(202)

    async def get_stats(self, call: Call) -> Response:
        """Answer Get Queue Service Stats: the secondary address serves the same store."""
        if not call.route.place.secondary:
            raise invalid_parameter(
                "comp", call.params["comp"], "Only the secondary endpoint has statistics."
            )
        replication = parent(
            "GeoReplication",
            element("Status", "live"),
            element("LastSyncTime", rfc1123(call.now_ms).decode()),
        )
        return call.reply_xml(200, parent("StorageServiceStats", replication))

    def current_rules(self, account: str, now_ms: int) -> tuple[CorsRule, ...] | None:
        """Return the CORS rules of an account as known, or None when they must be fetched."""
        entry = self._rules.get(account)
        return entry[0] if entry is not None and now_ms < entry[1] else None

    async def fetch_rules(self, account: str, now_ms: int) -> tuple[CorsRule, ...]:
        """Fetch the CORS rules of an account; the last known ones if the store cannot tell.

        Of many requests at a time one asks. The others go by the rules known so far, or wait if
        none are.
        """
        known = self._rules.get(account)
        if known is not None and self._fetching.locked():
            return known[0]
        async with self._fetching:
            fresh = self.current_rules(account, now_ms)
            if fresh is not None:
                return fresh
            try:
                rules = rules_of(await self._load(account))
            except LeaseholdError:
                if known is None:
                    return ()
                rules = known[0]
            if self._rules.get(account) is known:  # else they were set meanwhile
                self._rules[account] = rules, now_ms + _FRESH_MS
            return rules

    async def _load(self, account: str) -> properties.Document:
        result = await self._perform(GetAccountDocument(account, properties.DOCUMENT_KIND))
        assert isinstance(result, AccountDocument)
        return properties.load(result.content)
