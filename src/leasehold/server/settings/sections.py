"""Where the store is that many servers share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leasehold.server.settings.values import AccessKeyPair, AccountStore, Kind, StoreUrl, about


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStoreSettings:
    """Part of :class:`leasehold.server.settings.fields.Settings`."""

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


# --- event log ---------------------------------------------------------------------------------
#
# The settings of the event log; see :mod:`leasehold.server.settings.fields`.


_EVENTS: Final = "Event log"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogSettings(SharedStoreSettings):
    """What becomes of the events that the store records."""

    events_folder: Path | None = field(
        default=None,
        metadata=about(
            Kind.PATH,
            _EVENTS,
            "Folder to export events to, as Parquet files; made if it is missing. Each server "
            "needs one of its own; with `store_url` all of them need the same one.",
            special="Without it nothing is exported. It needs the extra `arrow`.",
        ),
    )
    events_export_interval_s: float = field(
        default=60.0,
        metadata=about(
            Kind.NUMBER,
            _EVENTS,
            "How long after an event it is exported at the latest, and how often old events are "
            "looked for. A longer one makes fewer and larger files.",
            unit="seconds",
            bounds=(1, 86_400),
        ),
    )
    events_retention_s: int = field(
        default=259_200,
        metadata=about(
            Kind.INTEGER,
            _EVENTS,
            "How long the database keeps events, for traces of messages. With `events_folder`, "
            "events that could not be exported yet are kept longer.",
            unit="seconds",
            bounds=(60, 315_360_000),
        ),
    )
    events_max_bytes: int = field(
        default=1_073_741_824,
        metadata=about(
            Kind.INTEGER,
            _EVENTS,
            "Most room for events in the database. Of more, the oldest are forgotten, exported or "
            "not; the log says so if they were not.",
            unit="bytes",
            bounds=(1_048_576, 1_125_899_906_842_624),
        ),
    )
    events_parquet_retention_s: int = field(
        default=0,
        metadata=about(
            Kind.INTEGER,
            _EVENTS,
            "How long exported events are kept. They go by whole days, in UTC.",
            unit="seconds",
            bounds=(0, 3_153_600_000),
            special="0 keeps them for ever.",
        ),
    )


# --- mns ---------------------------------------------------------------------------------------
#
# The settings of the MNS dialect; see :mod:`leasehold.server.settings.fields`.


AUTO: Final = "auto"
OFF: Final = "off"
SHARED: Final = "shared"
MAX_PORT: Final = 65_535

_MNS: Final = "Message Service (MNS)"
MNS_PORT_DISTANCE: Final = 10
"""From ``port`` to that of MNS, unless told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MnsSettings(EventLogSettings):
    """How clients of Alibaba Cloud's Message Service are served."""

    mns_port: str = field(
        default=AUTO,
        metadata=about(
            Kind.TEXT,
            _MNS,
            "TCP port for clients of Alibaba Cloud's Message Service, at the addresses in `host`: "
            "`auto`, `shared`, `off`, or a number from 0 to 65,535.",
            special="`auto`: ten above `port`, so 10011; any free one if `port` is 0. `shared`: no "
            "port of its own. Unless it is `off`, requests to a host `ACCOUNT.mns.ANYTHING` are of "
            "this protocol on `port` as well. 0 takes any free port; the ready line names it.",
        ),
    )
    mns_receipts: str = field(
        default="strict",
        metadata=about(
            Kind.TEXT,
            _MNS,
            "What a receipt handle is worth in queues that are made through this protocol. "
            "`strict`: it dies with its lease, and when a change of visibility replaces it, as is "
            "documented. `same-lease`: a replaced one works too, until the lease ends.",
            choices=("strict", "same-lease"),
            special="For a queue that is there, set `lapsed_receipts` in its settings.",
        ),
    )
    mns_keys: tuple[AccessKeyPair, ...] = field(
        default=(),
        metadata=about(
            Kind.ACCESS_KEYS,
            _MNS,
            "Access keys besides those of the accounts: an AccessKeyId, its AccessKeySecret, and "
            "the account that it opens. Each account has one anyway: its name, and as the secret "
            "one of its keys in base64.",
            special="In the file: a table `[mns_keys.ID]` with `secret` and `account`. In the "
            "environment: `id:secret:account;id2:secret2:account`. "
            "There is no option for it: command lines can be read by other users.",
        ),
    )

    def speaks_mns(self) -> bool:
        """Tell whether requests of MNS are answered at all."""
        return self.mns_port != OFF

    def port_of_mns(self, main_port: int) -> int | None:
        """Return the port for MNS alone, 0 for any free one; None if it has none.

        Args:
            main_port: The port of the other protocols, as it is set.
        """
        if self.mns_port in {OFF, SHARED}:
            return None
        if self.mns_port != AUTO:
            return int(self.mns_port)
        above = main_port + MNS_PORT_DISTANCE
        return above if main_port and above <= MAX_PORT else 0


# --- hosts -------------------------------------------------------------------------------------
#
# The setting of host names; see :mod:`leasehold.server.settings.fields`.


ANY_HOST: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings(MnsSettings):
    """By which names a server is addressed that anybody on its machine may use."""

    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Kind.LIST,
            "Listening",
            "Names that requests may have in their `Host`, besides addresses in figures, "
            "`localhost`, what ends in `.localhost`, and the names in `host`. `*.NAME` stands for "
            "all names under one. Only looked at where anybody can sign, with the development "
            "account or another public key or in test mode, on a loopback address: a web page "
            "whose name was made to mean this machine could otherwise read everything.",
            special="`*` allows all names.",
        ),
    )


# --- leases ------------------------------------------------------------------------------------
#
# The setting of leases; see :mod:`leasehold.server.settings.fields`.


REFUSE: Final = "refuse"
ACCEPT: Final = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings(HostSettings):
    """How leases are renewed."""

    renewals_past_expiry: str = field(
        default=REFUSE,
        metadata=about(
            Kind.TEXT,
            "Leases",
            "What becomes of a renewal that would end after its message expires, in every "
            "protocol. `refuse`: it is an error and changes nothing, as Azure Queue Storage and "
            "MNS document it. `accept`: the lease is renewed.",
            choices=(REFUSE, ACCEPT),
            special="The expiry wins either way: the message is removed then, and its receipt "
            "with it. Version 2011-08-18 of Azure's protocol accepts them whatever is set. It "
            "holds for what renews a lease, not for delays of what is put or given back.",
        ),
    )

    def accepts_late_renewals(self) -> bool:
        """Tell whether a renewal may end after its message expires."""
        return self.renewals_past_expiry == ACCEPT
