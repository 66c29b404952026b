"""The settings: one frozen dataclass whose fields describe themselves.

A field is declared once, with its default, how it is written, its heading in the reference, its
help text, unit and bounds. From that follow its option (``--max-connections``), its variable of
the environment (``LEASEHOLD_MAX_CONNECTIONS``), its line in the TOML file (``max_connections``),
the help of the command line, and ``docs/reference/settings.md``. The order here is that of the
reference.
"""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from leasehold.server.settings.values import (
    DEV_ACCOUNT,
    DEV_KEY,
    AccessKeyPair,
    AccountKeys,
    AccountStore,
    Kind,
    Meta,
    Secret,
    StoreUrl,
    meta_of,
    setting,
)

LISTENING: Final = "Listening"
STORAGE: Final = "Storage"
ACCOUNTS: Final = "Accounts and keys"
TOKENS: Final = "Bearer tokens"
CONSOLE: Final = "Console"
LOAD: Final = "Load"
CONNECTIONS: Final = "Connections"
OBSERVATION: Final = "Observation"
TEST: Final = "Test mode"
EVENTS: Final = "Event log"
MNS: Final = "Message Service (MNS)"
LEASES: Final = "Leases"

AUTO: Final = "auto"
OFF: Final = "off"
SHARED: Final = "shared"
MAX_PORT: Final = 65_535
MNS_PORT_DISTANCE: Final = 10
"""From ``port`` to that of MNS, unless told."""
REFUSE: Final = "refuse"
ACCEPT: Final = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set about a server.

    Build it, then call :func:`leasehold.server.settings.validate`.
    """

    # --- listening -------------------------------------------------------------------------------

    host: str = setting(
        "127.0.0.1",
        Kind.TEXT,
        LISTENING,
        "Addresses or host names to listen on, separated by commas.",
        special="`0.0.0.0` and `::` listen on every interface.",
    )

    port: int = setting(
        10001,
        Kind.INTEGER,
        LISTENING,
        "TCP port.",
        bounds=(0, 65_535),
        special="0 takes any free port; the ready line in the log names it.",
    )

    tls_cert: Path | None = setting(
        None,
        Kind.PATH,
        LISTENING,
        "Certificate chain in PEM form. With it the server only speaks https.",
        special="Needs `tls_key`.",
    )

    tls_key: Path | None = setting(
        None,
        Kind.PATH,
        LISTENING,
        "Private key of the certificate in PEM form, without a passphrase.",
        special="Needs `tls_cert`.",
    )

    tls_terminated: bool = setting(
        False,
        Kind.SWITCH,
        LISTENING,
        "A proxy in front terminates TLS: treat every request as if it had arrived over https.",
        special="Not together with `tls_cert`. Only the proxy may then reach the port.",
    )

    allowed_hosts: tuple[str, ...] = setting(
        (),
        Kind.LIST,
        LISTENING,
        "Names that requests may have in their `Host`, besides IP addresses, `localhost`, names "
        "that end in `.localhost`, and the names in `host`. `*.NAME` means all names below one. "
        "Only checked where any client can sign, with the development account or another public "
        "key or in test mode, on a loopback address: otherwise a web page could read everything "
        "through DNS rebinding.",
        special="`*` allows all names.",
    )

    # --- storage ---------------------------------------------------------------------------------

    data: Path = setting(
        Path("data"),
        Kind.PATH,
        STORAGE,
        "Folder of the database; created if it is missing. One server at a time can use it.",
        special="Not used with `store_url`, and refused as an option or in one file with it.",
    )

    disk_reserve_mib: int = setting(
        64,
        Kind.INTEGER,
        STORAGE,
        "Disk space kept in reserve so that consumers can continue while the disk is full.",
        unit="MiB",
        bounds=(0, 1_048_576),
        special="0 keeps none; a full disk then stops consumers too.",
    )

    sqlite_cache_mib: int = setting(
        32,
        Kind.INTEGER,
        STORAGE,
        "Page cache of the database. It bounds memory, whatever the backlog.",
        unit="MiB",
        bounds=(1, 65_536),
    )

    expiry_grace_s: int = setting(
        86_400,
        Kind.INTEGER,
        STORAGE,
        "How long an expired message stays on disk, hidden, before it is removed.",
        unit="seconds",
        bounds=(0, 31_536_000),
        special="0 removes it in the next round of maintenance.",
    )

    bodies: str = setting(
        "",
        Kind.TEXT,
        STORAGE,
        "Where large bodies are stored: a folder, or the URL of an object store: "
        "`s3://bucket/prefix`, `az://container/prefix` or `gs://bucket/prefix`.",
        special="Empty: the folder `bodies` in `data`; with `store_url` the database. A folder "
        "must then be one that all servers share. An object store needs the extra "
        "`objects`, and takes its credentials from the environment.",
    )

    inline_body_bytes: int = setting(
        65_536,
        Kind.INTEGER,
        STORAGE,
        "Bodies up to this size are stored in the database, larger ones in `bodies`.",
        unit="bytes",
        bounds=(1_024, 67_108_864),
    )

    store_url: StoreUrl | None = setting(
        None,
        Kind.STORE_URL,
        STORAGE,
        "PostgreSQL database that many servers share: "
        "`postgresql://user@host:port/database`, with several hosts for one that can fail "
        "over, and `?schema=NAME` for another schema than `leasehold`.",
        special="Empty: SQLite in the folder `data`, for one server. Needs the extra "
        "`postgres`. Command lines can be read by other users: give a password in the "
        "environment, in the file, or in a password file of PostgreSQL's. It is never shown.",
    )

    account_stores: tuple[AccountStore, ...] = setting(
        (),
        Kind.ACCOUNT_STORES,
        STORAGE,
        "PostgreSQL databases, or schemas of one, of accounts that are not kept with the "
        "others. Several accounts may have the same.",
        special="In the file: a table `[account_stores]` with a line for each account, such as "
        '`shop = "postgresql://db/queues?schema=shop"`. In the environment: '
        "`shop=postgresql://db/queues?schema=shop;name2=...`. Each such store has places of "
        "its own, named as those in `bodies` and `events_folder` with a dash and its first "
        "account behind, such as `s3://bucket/bodies-shop`; without `bodies` its large bodies "
        "are kept in the database. There is no option for it: command lines can be read by "
        "other users.",
    )

    # --- accounts and keys -----------------------------------------------------------------------

    accounts: tuple[AccountKeys, ...] = setting(
        (),
        Kind.ACCOUNTS,
        ACCOUNTS,
        "Accounts by name, each with one or two base64 keys of at least 32 bytes. "
        "A name is 3 to 24 of a-z and 0-9.",
        special="In the file: a table `[accounts.NAME]` with `key1` and, for rotation, `key2`. "
        "In the environment: `name:key1:key2;name2:key1`. "
        "There is no option for it: command lines can be read by other users.",
    )

    dev_account: str = setting(
        "auto",
        Kind.TEXT,
        ACCOUNTS,
        f"Whether the emulators' account `{DEV_ACCOUNT}`, whose key is public, may sign in.",
        choices=("auto", "on", "off", "insecure"),
        special="`auto`: on if every address in `host` is a loopback address, "
        "`tls_terminated` is false, and `accounts` has no account of that name. `on` is "
        "refused where others could connect. The server cannot see a proxy that does not end "
        "TLS: behind one, say `off`. `insecure` is for containers whose port is published on "
        "a loopback address: the account may sign in from wherever the server can be reached, so "
        "whoever can connect may read and change everything in it.",
    )

    inspectors: tuple[AccountKeys, ...] = setting(
        (),
        Kind.ACCOUNTS,
        ACCOUNTS,
        "Read-only keys, by account: one or two base64 keys of at least 32 bytes each. "
        "They are sent as bearer tokens to the native API and cannot sign.",
        special="In the file: a table `[inspectors.NAME]` with `key1` and, for rotation, "
        "`key2`; NAME is an account. In the environment: `name:key1:key2;name2:key1`. "
        "There is no option for it: command lines can be read by other users.",
    )

    # --- bearer tokens ---------------------------------------------------------------------------

    oidc_issuer: tuple[str, ...] = setting(
        (),
        Kind.LIST,
        TOKENS,
        "Issuers whose bearer tokens are accepted, exactly as in the token's `iss`.",
        special="Empty: no tokens. Needs `oidc_audience` and `oidc_jwks`. Over https only.",
    )

    oidc_audience: tuple[str, ...] = setting(
        (),
        Kind.LIST,
        TOKENS,
        "Accepted values of a token's `aud`. Clients of Azure Queue Storage request "
        "`https://storage.azure.com`; `{account}` in a value stands for the account's name.",
    )

    oidc_jwks: tuple[str, ...] = setting(
        (),
        Kind.LIST,
        TOKENS,
        "Public keys of the issuers, in the order of `oidc_issuer`: path of a JSON file, or a URL "
        "that begins with `https://`.",
    )

    oidc_roles_claim: str = setting(
        "roles",
        Kind.TEXT,
        TOKENS,
        "Name of the claim that lists the roles of the bearer.",
    )

    oidc_default_roles: tuple[str, ...] = setting(
        (),
        Kind.LIST,
        TOKENS,
        "Roles of a bearer whose token has no such claim.",
        special="Empty: such a bearer may do nothing.",
    )

    oidc_leeway_s: int = setting(
        0,
        Kind.INTEGER,
        TOKENS,
        "How far the issuer's clock may be off.",
        unit="seconds",
        bounds=(0, 300),
    )

    oidc_accounts: tuple[str, ...] = setting(
        (),
        Kind.LIST,
        TOKENS,
        "Accounts that bearers of tokens may use.",
        special="Empty: all accounts.",
    )

    # --- console ---------------------------------------------------------------------------------

    console: bool = setting(
        True,
        Kind.SWITCH,
        CONSOLE,
        "Whether the console is served at `/console/`, and the native API accepts the sessions of "
        "users who have signed in there.",
    )

    console_oidc_client_id: str = setting(
        "",
        Kind.TEXT,
        CONSOLE,
        "Client id of the console at the first issuer of `oidc_issuer`: a public client that may "
        "use the authorization code flow with PKCE, with the redirect URI "
        "`/console/api/oidc/callback`.",
        special="Empty: nobody signs in to the console by an issuer. Needs `oidc_issuer`.",
    )

    # --- load ------------------------------------------------------------------------------------

    max_pending_requests: int = setting(
        1_000,
        Kind.INTEGER,
        LOAD,
        "Requests that may wait for a response at the same time; more get a 503. Updates and "
        "deletes of messages, which finish work, may exceed it by a quarter.",
        unit="requests",
        bounds=(1, 1_000_000),
    )

    max_connections: int = setting(
        4_096,
        Kind.INTEGER,
        LOAD,
        "Open connections; one more closes the oldest without credentials, or gets a 503.",
        unit="connections",
        bounds=(1, 1_000_000),
        special="The limit on open files must be higher; the server raises it where it may.",
    )

    max_buffered_mib: int = setting(
        128,
        Kind.INTEGER,
        LOAD,
        "Memory for bodies of requests that wait for a response or are still arriving, and for "
        "large responses from before they are built until they are sent, for all connections "
        "together. Beyond it the slowest requests get a 503 and their connections are closed. "
        "Responses use half of it at most; requests without credentials a quarter of it, and from "
        "one address a quarter of that.",
        unit="MiB",
        bounds=(1, 65_536),
    )

    max_request_line_bytes: int = setting(
        8_192,
        Kind.INTEGER,
        LOAD,
        "Longest path and query of a request together; a longer one gets a 414.",
        unit="bytes",
        bounds=(256, 65_536),
    )

    max_header_bytes: int = setting(
        32_768,
        Kind.INTEGER,
        LOAD,
        "Total size of the header fields of a request; more gets a 431.",
        unit="bytes",
        bounds=(1_024, 1_048_576),
    )

    max_header_fields: int = setting(
        100,
        Kind.INTEGER,
        LOAD,
        "Number of header fields of a request; more gets a 431.",
        unit="fields",
        bounds=(16, 10_000),
    )

    # --- connections -----------------------------------------------------------------------------

    header_timeout_s: float = setting(
        10.0,
        Kind.NUMBER,
        CONNECTIONS,
        "From the first byte of a request to the end of its header; a slower one gets a 408.",
        unit="seconds",
        bounds=(0.1, 3_600),
    )

    body_timeout_s: float = setting(
        10.0,
        Kind.NUMBER,
        CONNECTIONS,
        "How long a body may take, beyond what `body_min_bytes_per_s` allows for its length; a "
        "slower one gets a 408.",
        unit="seconds",
        bounds=(0.1, 3_600),
    )

    body_min_bytes_per_s: int = setting(
        1_024,
        Kind.INTEGER,
        CONNECTIONS,
        "Slowest rate at which a body may arrive: each such number of bytes allows another second.",
        unit="bytes per second",
        bounds=(1, 1_000_000_000),
    )

    idle_timeout_s: float = setting(
        120.0,
        Kind.NUMBER,
        CONNECTIONS,
        "How long a connection may stay open without a request. Clients keep connections in "
        "pools, and one that the server closes first can cost them a failed request.",
        unit="seconds",
        bounds=(75, 86_400),
        special="Set the idle time of a proxy in front lower than this.",
    )

    write_timeout_s: float = setting(
        30.0,
        Kind.NUMBER,
        CONNECTIONS,
        "How long a client may take to read a response before its connection is closed.",
        unit="seconds",
        bounds=(0.1, 3_600),
    )

    drain_timeout_s: float = setting(
        25.0,
        Kind.NUMBER,
        CONNECTIONS,
        "How long a stopping server keeps serving requests that have already arrived.",
        unit="seconds",
        bounds=(0, 3_600),
        special="0 cuts them off at once.",
    )

    # --- observation -----------------------------------------------------------------------------

    log_format: str = setting(
        "console",
        Kind.TEXT,
        OBSERVATION,
        "Format of the log on stderr: lines for people, or one JSON object per line.",
        choices=("console", "json"),
    )

    log_level: str = setting(
        "info",
        Kind.TEXT,
        OBSERVATION,
        "Lowest level of events that are logged.",
        choices=("debug", "info", "warning", "error"),
        special="`debug` logs every request and costs throughput.",
    )

    metrics_enabled: bool = setting(
        True,
        Kind.SWITCH,
        OBSERVATION,
        "Whether `/metrics` is served. It needs no credentials and names accounts and queues.",
    )

    metrics_max_queues: int = setting(
        1_000,
        Kind.INTEGER,
        OBSERVATION,
        "Queues with their own metrics in `/metrics`; the rest are summed up as `_other`.",
        unit="queues",
        bounds=(0, 100_000),
    )

    metrics_old_names: bool = setting(
        False,
        Kind.SWITCH,
        OBSERVATION,
        "Whether `/metrics` also has each metric under its name of 0.1, without `leasehold_`.",
        special="For dashboards that are not renamed yet. It will be gone in the release after the "
        "next.",
    )

    metrics_groups: int = setting(
        0,
        Kind.INTEGER,
        OBSERVATION,
        "Message groups of each queue with their own metrics in `/metrics`: those with the "
        "largest backlog.",
        unit="groups",
        bounds=(0, 100),
        special="Of queues whose settings speak of groups. Their messages are counted in the "
        "background, for a tenth of the time at most. 0 counts none.",
    )

    tracing: bool = setting(
        False,
        Kind.SWITCH,
        OBSERVATION,
        "Whether requests have spans of OpenTelemetry, sent by OTLP over HTTP. Where to, how many "
        "of them and under which name is said by OpenTelemetry's own variables, such as "
        "`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER` and `OTEL_SERVICE_NAME`.",
        special="Needs the extra `otel`.",
    )

    # --- test mode -------------------------------------------------------------------------------

    test_mode: bool = setting(
        False,
        Kind.SWITCH,
        TEST,
        "Whether tests may inject faults and advance a virtual clock, at endpoints below "
        "`/v1/test/` that need no credentials.",
        special="Refused where other machines could connect.",
    )

    clock: str = setting(
        "system",
        Kind.TEXT,
        TEST,
        "The clock for messages, leases and waits. A `virtual` clock stands still until a test "
        "advances it.",
        choices=("system", "virtual"),
        special="`virtual` needs `test_mode`. Signatures, tokens and the time limits of "
        "connections go by the system's clock all the same.",
    )

    test_seed: int = setting(
        0,
        Kind.INTEGER,
        TEST,
        "Seed of the random numbers for back-off with jitter. The same requests, one after the "
        "other, then give the same order of deliveries.",
        bounds=(0, 4_294_967_295),
        special="Used with `test_mode` only.",
    )

    # --- event log -------------------------------------------------------------------------------

    events_folder: Path | None = setting(
        None,
        Kind.PATH,
        EVENTS,
        "Folder to export events to, as Parquet files; created if it is missing. Each server "
        "needs its own; with `store_url` all of them need the same one.",
        special="Without it nothing is exported. It needs the extra `arrow`.",
    )

    events_export_interval_s: float = setting(
        60.0,
        Kind.NUMBER,
        EVENTS,
        "How long after an event it is exported at the latest, and how often old events are "
        "removed. A longer interval makes fewer and larger files.",
        unit="seconds",
        bounds=(1, 86_400),
    )

    events_retention_s: int = setting(
        259_200,
        Kind.INTEGER,
        EVENTS,
        "How long the database keeps events, for traces of messages. With `events_folder`, "
        "events that could not be exported yet are kept longer.",
        unit="seconds",
        bounds=(60, 315_360_000),
    )

    events_max_bytes: int = setting(
        1_073_741_824,
        Kind.INTEGER,
        EVENTS,
        "Maximum space for events in the database. Beyond it the oldest are deleted, exported or "
        "not; the log says so if they were not.",
        unit="bytes",
        bounds=(1_048_576, 1_125_899_906_842_624),
    )

    events_parquet_retention_s: int = setting(
        0,
        Kind.INTEGER,
        EVENTS,
        "How long exported events are kept. They are deleted by whole days, in UTC.",
        unit="seconds",
        bounds=(0, 3_153_600_000),
        special="0 keeps them forever.",
    )

    # --- MNS -------------------------------------------------------------------------------------

    mns_port: str = setting(
        AUTO,
        Kind.TEXT,
        MNS,
        "TCP port for clients of Alibaba Cloud's Message Service, at the addresses in `host`: "
        "`auto`, `shared`, `off`, or a number from 0 to 65,535.",
        special="`auto`: ten above `port`, so 10011; any free one if `port` is 0. `shared`: no "
        "port of its own. Unless it is `off`, requests to a host `ACCOUNT.mns.ANYTHING` are of "
        "this protocol on `port` as well. 0 takes any free port; the ready line names it.",
    )

    mns_receipts: str = setting(
        "strict",
        Kind.TEXT,
        MNS,
        "How long a receipt handle is valid in queues created through this protocol. `strict`: "
        "until its lease ends or a change of visibility replaces it, as documented. `same-lease`: "
        "a replaced one is valid too, until the lease ends.",
        choices=("strict", "same-lease"),
        special="For a queue that is there, set `lapsed_receipts` in its settings.",
    )

    mns_keys: tuple[AccessKeyPair, ...] = setting(
        (),
        Kind.ACCESS_KEYS,
        MNS,
        "Access keys besides those of the accounts: an AccessKeyId, its AccessKeySecret, and the "
        "account that it belongs to. Each account has one anyway: its name, with one of its keys "
        "in base64 as the secret.",
        special="In the file: a table `[mns_keys.ID]` with `secret` and `account`. In the "
        "environment: `id:secret:account;id2:secret2:account`. "
        "There is no option for it: command lines can be read by other users.",
    )

    # --- leases ----------------------------------------------------------------------------------

    renewals_past_expiry: str = setting(
        REFUSE,
        Kind.TEXT,
        LEASES,
        "What happens to a renewal that would end after its message expires, in every protocol. "
        "`refuse`: it is an error and changes nothing, as Azure Queue Storage and MNS document "
        "it. `accept`: the lease is renewed.",
        choices=(REFUSE, ACCEPT),
        special="The expiry wins either way: the message is removed then, and its receipt "
        "with it. Version 2011-08-18 of Azure's protocol accepts them whatever is set. It "
        "holds for what renews a lease, not for delays of what is put or given back.",
    )

    # --- what follows from them ------------------------------------------------------------------

    def bodies_place(self) -> str:
        """Return where large bodies are kept."""
        return self.bodies or str(self.data / "bodies")

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses to listen on, one by one."""
        return tuple(part for part in (piece.strip() for piece in self.host.split(",")) if part)

    def is_private(self) -> bool:
        """Tell whether, as far as can be seen, no other machine can connect."""
        loopback = all(_is_loopback(address) for address in self.addresses())
        return loopback and not self.tls_terminated

    def account_names(self) -> tuple[str, ...]:
        """Return the names of the configured accounts, without the development account."""
        return tuple(account.name for account in self.accounts)

    def dev_account_on(self) -> bool:
        """Tell whether the account with the public key may sign in."""
        if self.dev_account == "auto":
            return self.is_private() and DEV_ACCOUNT not in self.account_names()
        return self.dev_account in {"on", "insecure"}

    def dev_account_exposed(self) -> bool:
        """Tell whether the account with the public key may sign in from other machines."""
        return self.dev_account == "insecure"

    def effective_accounts(self) -> tuple[AccountKeys, ...]:
        """Return all accounts that may sign in, the development account among them."""
        if not self.dev_account_on():
            return self.accounts
        key = Secret(base64.b64decode(DEV_KEY))
        return (*self.accounts, AccountKeys(name=DEV_ACCOUNT, keys=(key,)))

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

    def accepts_late_renewals(self) -> bool:
        """Tell whether a renewal may end after its message expires."""
        return self.renewals_past_expiry == ACCEPT


@cache
def all_settings() -> dict[str, tuple[Meta, Any]]:
    """Return each setting's description and default by name, in the order of the reference."""
    return {each.name: (meta_of(each), each.default) for each in fields(Settings)}


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
