"""Where the store is that many servers share."""

from __future__ import annotations

from dataclasses import dataclass, field

from leasehold.settings.meta import Kind, about
from leasehold.settings.values import AccountStore, StoreUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStoreSettings:
    """Part of :class:`leasehold.settings.fields.Settings`."""

    store_url: StoreUrl | None = field(
        default=None,
        metadata=about(
            Kind.STORE_URL,
            "Storage",
            "PostgreSQL database that many servers share: "
            "`postgresql://user@host:port/database`, with several hosts for one that can fail "
            "over, and `?schema=NAME` for another schema than `leasehold`.",
            special="Empty: SQLite in the folder `data`, for one server. Needs the extra "
            "`postgres`. Command lines can be read by other users: give a password in the "
            "environment, in the file, or in a password file of PostgreSQL's. It is never shown.",
        ),
    )
    account_stores: tuple[AccountStore, ...] = field(
        default=(),
        metadata=about(
            Kind.ACCOUNT_STORES,
            "Storage",
            "PostgreSQL databases, or schemas of one, of accounts that are not kept with the "
            "others. Several accounts may have the same.",
            special="In the file: a table `[account_stores]` with a line for each account, such as "
            '`shop = "postgresql://db/queues?schema=shop"`. In the environment: '
            "`shop=postgresql://db/queues?schema=shop;name2=...`. Each such store has places of "
            "its own, named as those in `bodies` and `events_folder` with a dash and its first "
            "account behind, such as `s3://bucket/bodies-shop`; without `bodies` its large bodies "
            "are kept in the database. There is no option for it: command lines can be read by "
            "other users.",
        ),
    )
