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
        special="Excludes `tls_cert`. Let only the proxy reach the port.",
    )

    allowed_hosts: tuple[str, ...] = setting(
        (),
        Kind.LIST,
        LISTENING,
        "Allowed names in the `Host` of requests, besides IP addresses, `localhost`, names "
        "that end in `.localhost`, and the names in `host`. `*.NAME` allows all names below "
        "NAME. The server checks them on loopback addresses with the development account, "
        "another public key or test mode: otherwise a web page could read everything through "
        "DNS rebinding.",
        special="`*` allows all names.",
    )

    # --- storage ---------------------------------------------------------------------------------

    data: Path = setting(
        Path("data"),
        Kind.PATH,
        STORAGE,
        "Folder of the database. The server creates it if it is missing. Only one server at a "
        "time can use it.",
        special="Not used with `store_url`, and refused as an option or in one file with it.",
    )

    disk_reserve_mib: int = setting(
        64,
        Kind.INTEGER,
        STORAGE,
        "Disk space kept in reserve so that consumers can continue while the disk is full.",
        unit="MiB",
        bounds=(0, 1_048_576),
        special="0 keeps no reserve: a full disk then stops consumers, too.",
    )

    sqlite_cache_mib: int = setting(
        32,
        Kind.INTEGER,
        STORAGE,
        "Page cache of the database. It limits memory, independently of the backlog.",
        unit="MiB",
        bounds=(1, 65_536),
    )

    expiry_grace_s: int = setting(
        86_400,
        Kind.INTEGER,
        STORAGE,
        "Time that an expired message stays on disk, hidden, before the server removes it.",
        unit="seconds",
        bounds=(0, 31_536_000),
        special="0 removes it in the next round of maintenance.",
    )

    bodies: str = setting(
        "",
        Kind.TEXT,
        STORAGE,
        "Store of large bodies: a folder, or the URL of an object store: `s3://bucket/prefix`, "
        "`az://container/prefix` or `gs://bucket/prefix`.",
        special="Empty: the folder `bodies` in `data`, or with `store_url` the database. With "
        "`store_url`, all servers must share a folder. An object store needs the extra "
        "`objects`, and takes its credentials from the environment.",
    )

    inline_body_bytes: int = setting(
        65_536,
        Kind.INTEGER,
        STORAGE,
        "Maximum size of bodies stored in the database. Larger bodies are stored in `bodies`.",
        unit="bytes",
        bounds=(1_024, 67_108_864),
    )

    store_url: StoreUrl | None = setting(
        None,
        Kind.STORE_URL,
        STORAGE,
        "PostgreSQL database that several servers share: "
        "`postgresql://user@host:port/database`, with several hosts for failover, and "
        "`?schema=NAME` for another schema than `leasehold`.",
        special="Empty: SQLite in the folder `data`, for one server. Needs the extra `postgres`. "
        "Other users can read command lines: give a password in the environment, in the "
        "file, or in PostgreSQL's password file. It is never shown.",
    )

    account_stores: tuple[AccountStore, ...] = setting(
        (),
        Kind.ACCOUNT_STORES,
        STORAGE,
        "PostgreSQL databases, or schemas of one, for accounts with a store of their own. "
        "Several accounts can share one.",
        special="In the file: a table `[account_stores]` with a line per account, such as `shop "
        '= "postgresql://db/queues?schema=shop"`. In the environment: '
        "`shop=postgresql://db/queues?schema=shop;name2=...`. Each such store has its "
        "own `bodies` and `events_folder`: their names with a dash and its first "
        "account, such as `s3://bucket/bodies-shop`. Without `bodies` its database "
        "stores large bodies. There is no option for it, as other users can read command "
        "lines.",
    )

    # --- accounts and keys -----------------------------------------------------------------------

    accounts: tuple[AccountKeys, ...] = setting(
        (),
        Kind.ACCOUNTS,
        ACCOUNTS,
        "Accounts by name, each with one or two base64 keys of at least 32 bytes. "
        "A name is 3 to 24 of a-z and 0-9.",
        special="In the file: a table `[accounts.NAME]` with `key1` and, for rotation, `key2`. "
        "In the environment: `name:key1:key2;name2:key1`. There is no option for it, as "
        "other users can read command lines.",
    )

    dev_account: str = setting(
        "auto",
        Kind.TEXT,
        ACCOUNTS,
        f"Whether the emulators' account `{DEV_ACCOUNT}`, whose key is public, may sign in.",
        choices=("auto", "on", "off", "insecure"),
        special="`auto`: on if every address in `host` is a loopback address, `tls_terminated` "
        "is false, and `accounts` has no account of that name. `on` is refused if other "
        "machines could connect. The server cannot detect a proxy that does not "
        "terminate TLS: set `off` behind one. `insecure` is for containers whose port is "
        "published on a loopback address: every client that can connect can read and "
        "change everything in the account.",
    )

    inspectors: tuple[AccountKeys, ...] = setting(
        (),
        Kind.ACCOUNTS,
        ACCOUNTS,
        "Read-only keys, by account: one or two base64 keys of at least 32 bytes each. "
        "They are sent as bearer tokens to the native API and cannot sign.",
        special="In the file: a table `[inspectors.NAME]` with `key1` and, for rotation, `key2`; "
        "NAME is an account. In the environment: `name:key1:key2;name2:key1`. There is "
        "no option for it, as other users can read command lines.",
    )

    # --- bearer tokens ---------------------------------------------------------------------------

    oidc_issuer: tuple[str, ...] = setting(
        (),
        Kind.LIST,
        TOKENS,
        "Issuers whose bearer tokens are accepted, exactly as in the token's `iss`.",
        special="Empty: no tokens are accepted. Needs `oidc_audience`, `oidc_jwks` and https.",
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
        special="Empty: such a bearer has no rights.",
    )

    oidc_leeway_s: int = setting(
        0,
        Kind.INTEGER,
        TOKENS,
        "Allowed difference between the clocks of the issuer and the server.",
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
        "Serve the console at `/console/`, and accept the sessions of its users in the native API.",
    )

    console_oidc_client_id: str = setting(
        "",
        Kind.TEXT,
        CONSOLE,
        "Client id of the console at the first issuer of `oidc_issuer`: a public client that may "
        "use the authorization code flow with PKCE, with the redirect URI "
        "`/console/api/oidc/callback`.",
        special="Empty: users cannot sign in through an issuer. Needs `oidc_issuer`.",
    )

    # --- load ------------------------------------------------------------------------------------

    max_pending_requests: int = setting(
        1_000,
        Kind.INTEGER,
        LOAD,
        "Maximum number of requests waiting for a response. Further requests get a 503. "
        "Updates and deletes of messages, which finish work, can exceed it by a quarter.",
        unit="requests",
        bounds=(1, 1_000_000),
    )

    max_connections: int = setting(
        4_096,
        Kind.INTEGER,
        LOAD,
        "Maximum number of open connections. A further one closes the oldest without "
        "credentials, or gets a 503.",
        unit="connections",
        bounds=(1, 1_000_000),
        special="The limit on open files must be higher. The server raises it if it can.",
    )

    max_buffered_mib: int = setting(
        128,
        Kind.INTEGER,
        LOAD,
        "Memory of all connections for bodies of requests that are arriving or waiting for a "
        "response, and for large responses until they are sent. Beyond it the slowest requests "
        "get a 503 and their connections are closed. Responses use at most half of it, "
        "requests without credentials a quarter, and those from one address a quarter of that.",
        unit="MiB",
        bounds=(1, 65_536),
    )

    max_request_line_bytes: int = setting(
        8_192,
        Kind.INTEGER,
        LOAD,
        "Maximum length of a request's path and query. A longer one gets a 414.",
        unit="bytes",
        bounds=(256, 65_536),
    )

    max_header_bytes: int = setting(
        32_768,
        Kind.INTEGER,
        LOAD,
        "Maximum total size of a request's header fields. A larger one gets a 431.",
        unit="bytes",
        bounds=(1_024, 1_048_576),
    )

    max_header_fields: int = setting(
        100,
        Kind.INTEGER,
        LOAD,
        "Maximum number of a request's header fields. More get a 431.",
        unit="fields",
        bounds=(16, 10_000),
    )

    # --- connections -----------------------------------------------------------------------------

    header_timeout_s: float = setting(
        10.0,
        Kind.NUMBER,
        CONNECTIONS,
        "Maximum time from the first byte of a request to the end of its header. A slower one "
        "gets a 408.",
        unit="seconds",
        bounds=(0.1, 3_600),
    )

    body_timeout_s: float = setting(
        10.0,
        Kind.NUMBER,
        CONNECTIONS,
        "Maximum time for a body, in addition to the time that `body_min_bytes_per_s` allows "
        "for its length. A slower one gets a 408.",
        unit="seconds",
        bounds=(0.1, 3_600),
    )

    body_min_bytes_per_s: int = setting(
        1_024,
        Kind.INTEGER,
        CONNECTIONS,
        "Minimum rate at which a body must arrive.",
        unit="bytes per second",
        bounds=(1, 1_000_000_000),
    )

    idle_timeout_s: float = setting(
        120.0,
        Kind.NUMBER,
        CONNECTIONS,
        "Time that a connection stays open without a request. Clients keep connections in "
        "pools: a connection that the server closes first can cause a failed request.",
        unit="seconds",
        bounds=(75, 86_400),
        special="Set the idle time of a proxy in front lower than this.",
    )

    write_timeout_s: float = setting(
        30.0,
        Kind.NUMBER,
        CONNECTIONS,
        "Maximum time for a client to read a response, before the server closes the connection.",
        unit="seconds",
        bounds=(0.1, 3_600),
    )

    drain_timeout_s: float = setting(
        25.0,
        Kind.NUMBER,
        CONNECTIONS,
        "Time that a stopping server continues to answer requests that have arrived.",
        unit="seconds",
        bounds=(0, 3_600),
        special="0 closes their connections at once.",
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
        special="`debug` logs every request, which reduces throughput.",
    )

    metrics_enabled: bool = setting(
        True,
        Kind.SWITCH,
        OBSERVATION,
        "Serve `/metrics`. It needs no credentials and names accounts and queues.",
    )

    metrics_max_queues: int = setting(
        1_000,
        Kind.INTEGER,
        OBSERVATION,
        "Maximum number of queues with their own metrics in `/metrics`. The others are summed "
        "as `_other`.",
        unit="queues",
        bounds=(0, 100_000),
    )

    metrics_old_names: bool = setting(
        False,
        Kind.SWITCH,
        OBSERVATION,
        "Serve each metric also under its name of release 0.1, without `leasehold_`.",
        special="For dashboards with the old names. The release after the next removes it.",
    )

    metrics_groups: int = setting(
        0,
        Kind.INTEGER,
        OBSERVATION,
        "Number of message groups per queue with their own metrics in `/metrics`: those with "
        "the largest backlog.",
        unit="groups",
        bounds=(0, 100),
        special="For queues with settings of groups. The server counts their messages in the "
        "background, for at most a tenth of the time. 0 counts none.",
    )

    tracing: bool = setting(
        False,
        Kind.SWITCH,
        OBSERVATION,
        "Send OpenTelemetry spans of requests by OTLP over HTTP. OpenTelemetry's own variables "
        "set the target, the sampling and the name: `OTEL_EXPORTER_OTLP_ENDPOINT`, "
        "`OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` and others.",
        special="Needs the extra `otel`.",
    )

    # --- test mode -------------------------------------------------------------------------------

    test_mode: bool = setting(
        False,
        Kind.SWITCH,
        TEST,
        "Let tests inject faults and advance a virtual clock, at endpoints below `/v1/test/` "
        "that need no credentials.",
        special="Refused if other machines could connect.",
    )

    clock: str = setting(
        "system",
        Kind.TEXT,
        TEST,
        "Clock for messages, leases and waits. A `virtual` clock stands still until a test "
        "advances it.",
        choices=("system", "virtual"),
        special="`virtual` needs `test_mode`. Signatures, tokens and the time limits of "
        "connections use the system's clock.",
    )

    test_seed: int = setting(
        0,
        Kind.INTEGER,
        TEST,
        "Seed of the random numbers for back-off with jitter. The same sequence of requests "
        "gives the same order of deliveries.",
        bounds=(0, 4_294_967_295),
        special="Only with `test_mode`.",
    )

    # --- event log -------------------------------------------------------------------------------

    events_folder: Path | None = setting(
        None,
        Kind.PATH,
        EVENTS,
        "Folder for exported events, as Parquet files. The server creates it if it is missing. "
        "Each server needs its own folder; with `store_url` all servers need the same one.",
        special="Empty: nothing is exported. Needs the extra `arrow`.",
    )

    events_export_interval_s: float = setting(
        60.0,
        Kind.NUMBER,
        EVENTS,
        "Interval at which events are exported and old events removed. A longer interval makes "
        "fewer and larger files.",
        unit="seconds",
        bounds=(1, 86_400),
    )

    events_retention_s: int = setting(
        259_200,
        Kind.INTEGER,
        EVENTS,
        "Time that the database keeps events, for traces of messages. With `events_folder`, it "
        "keeps events longer that are not exported yet.",
        unit="seconds",
        bounds=(60, 315_360_000),
    )

    events_max_bytes: int = setting(
        1_073_741_824,
        Kind.INTEGER,
        EVENTS,
        "Maximum space for events in the database. Beyond it the server deletes the oldest "
        "events, and logs it if they were not exported.",
        unit="bytes",
        bounds=(1_048_576, 1_125_899_906_842_624),
    )

    events_parquet_retention_s: int = setting(
        0,
        Kind.INTEGER,
        EVENTS,
        "Time that exported events are kept. They are deleted by whole days, in UTC.",
        unit="seconds",
        bounds=(0, 3_153_600_000),
        special="0 keeps them forever.",
    )

    # --- MNS -------------------------------------------------------------------------------------

    mns_port: str = setting(
        AUTO,
        Kind.TEXT,
        MNS,
        "TCP port for clients of Alibaba Cloud's Message Service, on the addresses in `host`: "
        "`auto`, `shared`, `off`, or a number from 0 to 65,535.",
        special="`auto`: `port` + 10, so 10011, or any free port if `port` is 0. `shared`: no "
        "port of its own. Unless it is `off`, `port` also takes requests of this "
        "protocol to a host `ACCOUNT.mns.ANYTHING`. 0 takes any free port; the ready "
        "line in the log names it.",
    )

    mns_receipts: str = setting(
        "strict",
        Kind.TEXT,
        MNS,
        "Validity of receipt handles in queues created through this protocol. `strict`: until "
        "the lease ends or a change of visibility replaces the handle, as documented. "
        "`same-lease`: until the lease ends, even if replaced.",
        choices=("strict", "same-lease"),
        special="For an existing queue, set `lapsed_receipts` in its settings.",
    )

    mns_keys: tuple[AccessKeyPair, ...] = setting(
        (),
        Kind.ACCESS_KEYS,
        MNS,
        "Additional access keys: an AccessKeyId, its AccessKeySecret, and its account. Each "
        "account has one by default: its name, with one of its keys in base64 as the secret.",
        special="In the file: a table `[mns_keys.ID]` with `secret` and `account`. In the "
        "environment: `id:secret:account;id2:secret2:account`. There is no option for "
        "it, as other users can read command lines.",
    )

    # --- leases ----------------------------------------------------------------------------------

    renewals_past_expiry: str = setting(
        REFUSE,
        Kind.TEXT,
        LEASES,
        "Handling of renewals that would end after the message expires, in every protocol. "
        "`refuse`: an error, which changes nothing, as Azure Queue Storage and MNS document "
        "it. `accept`: the lease is renewed.",
        choices=(REFUSE, ACCEPT),
        special="With either value the message and its receipt expire. Version 2011-08-18 of "
        "Azure's protocol always accepts such renewals. The setting applies to renewals, "
        "not to the delays of puts and releases.",
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
