"""The settings: one frozen dataclass whose fields describe themselves.

The command line's options, its help and ``docs/reference/settings.md`` are made from these fields.
"""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from leasehold.server.settings.checks import find_problems
from leasehold.server.settings.sections import LeaseSettings
from leasehold.server.settings.values import (
    DEV_ACCOUNT,
    DEV_KEY,
    AccountKeys,
    Kind,
    Meta,
    Secret,
    SettingsError,
    about,
    meta_of,
)

_LISTEN: Final = "Listening"
_STORE: Final = "Storage"
_WHO: Final = "Accounts and keys"
_TOKENS: Final = "Bearer tokens"
_LOAD: Final = "Load"
_SLOW: Final = "Connections"
_WATCH: Final = "Observation"
_TEST: Final = "Test mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(LeaseSettings):
    """Everything that can be set about a server. Build it, then call :meth:`validate`."""

    host: str = field(
        default="127.0.0.1",
        metadata=about(
            Kind.TEXT,
            _LISTEN,
            "Addresses or host names to listen on, separated by commas.",
            special="`0.0.0.0` and `::` listen on every interface.",
        ),
    )
    port: int = field(
        default=10001,
        metadata=about(
            Kind.INTEGER,
            _LISTEN,
            "TCP port.",
            bounds=(0, 65_535),
            special="0 takes any free port; the ready line in the log names it.",
        ),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=about(
            Kind.PATH,
            _LISTEN,
            "Certificate chain in PEM form. With it the server speaks https and nothing else.",
            special="Needs `tls_key`.",
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=about(
            Kind.PATH,
            _LISTEN,
            "Private key of the certificate in PEM form, without a passphrase.",
            special="Needs `tls_cert`.",
        ),
    )
    tls_terminated: bool = field(
        default=False,
        metadata=about(
            Kind.SWITCH,
            _LISTEN,
            "A proxy in front ends TLS: treat every request as if it had come over https.",
            special="Not together with `tls_cert`. Nobody but the proxy may then reach the port.",
        ),
    )
    data: Path = field(
        default=Path("data"),
        metadata=about(
            Kind.PATH,
            _STORE,
            "Folder of the database; made if it is missing. One server at a time can use it.",
            special="Not used with `store_url`, and refused as an option or in one file with it.",
        ),
    )
    disk_reserve_mib: int = field(
        default=64,
        metadata=about(
            Kind.INTEGER,
            _STORE,
            "Room kept aside so that consumers can go on while the disk is full.",
            unit="MiB",
            bounds=(0, 1_048_576),
            special="0 keeps none; a full disk then stops consumers too.",
        ),
    )
    sqlite_cache_mib: int = field(
        default=32,
        metadata=about(
            Kind.INTEGER,
            _STORE,
            "Page cache of the database. It bounds memory however many messages wait.",
            unit="MiB",
            bounds=(1, 65_536),
        ),
    )
    expiry_grace_s: int = field(
        default=86_400,
        metadata=about(
            Kind.INTEGER,
            _STORE,
            "How long an expired message stays on disk, out of reach, before it is removed.",
            unit="seconds",
            bounds=(0, 31_536_000),
            special="0 removes it in the next round of maintenance.",
        ),
    )
    bodies: str = field(
        default="",
        metadata=about(
            Kind.TEXT,
            _STORE,
            "Where large bodies are kept: a folder, or the address of an object store: "
            "`s3://bucket/prefix`, `az://container/prefix` or `gs://bucket/prefix`.",
            special="Empty: the folder `bodies` in `data`; with `store_url` the database. A folder "
            "must then be one that all servers share. An object store needs the extra "
            "`objects`, and takes its credentials from the environment.",
        ),
    )
    inline_body_bytes: int = field(
        default=65_536,
        metadata=about(
            Kind.INTEGER,
            _STORE,
            "Bodies up to this size are kept in the database, larger ones in `bodies`.",
            unit="bytes",
            bounds=(1_024, 67_108_864),
        ),
    )
    accounts: tuple[AccountKeys, ...] = field(
        default=(),
        metadata=about(
            Kind.ACCOUNTS,
            _WHO,
            "Accounts by name, each with one or two base64 keys of at least 32 bytes. "
            "A name is 3 to 24 of a-z and 0-9.",
            special="In the file: a table `[accounts.NAME]` with `key1` and, for rotation, `key2`. "
            "In the environment: `name:key1:key2;name2:key1`. "
            "There is no option for it: command lines can be read by other users.",
        ),
    )
    dev_account: str = field(
        default="auto",
        metadata=about(
            Kind.TEXT,
            _WHO,
            f"Whether the emulators' account `{DEV_ACCOUNT}`, whose key is public, may sign in.",
            choices=("auto", "on", "off"),
            special="`auto`: on if every address in `host` is a loopback address, "
            "`tls_terminated` is false, and `accounts` has no account of that name. `on` is "
            "refused where others could connect. The server cannot see a proxy that does not end "
            "TLS: behind one, say `off`.",
        ),
    )
    inspectors: tuple[AccountKeys, ...] = field(
        default=(),
        metadata=about(
            Kind.ACCOUNTS,
            _WHO,
            "Keys that only read, by account: one or two base64 keys of at least 32 bytes each. "
            "They are sent as bearer tokens to the native API and sign nothing.",
            special="In the file: a table `[inspectors.NAME]` with `key1` and, for rotation, "
            "`key2`; NAME is an account. In the environment: `name:key1:key2;name2:key1`. "
            "There is no option for it: command lines can be read by other users.",
        ),
    )
    oidc_issuer: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Kind.LIST,
            _TOKENS,
            "Issuers whose bearer tokens are accepted, exactly as in the token's `iss`.",
            special="Empty: no tokens. Needs `oidc_audience` and `oidc_jwks`. Over https only.",
        ),
    )
    oidc_audience: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Kind.LIST,
            _TOKENS,
            "What a token's `aud` must be, one of these. Clients of the service ask for "
            "`https://storage.azure.com`; `{account}` in a value stands for the account's name.",
        ),
    )
    oidc_jwks: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Kind.LIST,
            _TOKENS,
            "Public keys of the issuers, in the order of `oidc_issuer`: path of a JSON file, or an "
            "address that begins with `https://`.",
        ),
    )
    oidc_roles_claim: str = field(
        default="roles",
        metadata=about(Kind.TEXT, _TOKENS, "Name of the claim that lists the roles of the bearer."),
    )
    oidc_default_roles: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Kind.LIST,
            _TOKENS,
            "Roles of a bearer whose token has no such claim.",
            special="Empty: such a bearer may do nothing.",
        ),
    )
    oidc_leeway_s: int = field(
        default=0,
        metadata=about(
            Kind.INTEGER,
            _TOKENS,
            "By how much the issuer's clock may be off.",
            unit="seconds",
            bounds=(0, 300),
        ),
    )
    oidc_accounts: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Kind.LIST,
            _TOKENS,
            "Accounts that bearers of tokens may use.",
            special="Empty: all accounts.",
        ),
    )
    max_pending_requests: int = field(
        default=1_000,
        metadata=about(
            Kind.INTEGER,
            _LOAD,
            "Requests that may wait for an answer at once; more are told 503 and to come back. "
            "Updates and deletes of messages, which finish work, may pass it by a quarter.",
            unit="requests",
            bounds=(1, 1_000_000),
        ),
    )
    max_connections: int = field(
        default=4_096,
        metadata=about(
            Kind.INTEGER,
            _LOAD,
            "Open connections; one more closes the oldest without credentials, or is told 503.",
            unit="connections",
            bounds=(1, 1_000_000),
            special="The limit on open files must be higher; the server raises it where it may.",
        ),
    )
    max_buffered_mib: int = field(
        default=128,
        metadata=about(
            Kind.INTEGER,
            _LOAD,
            "Bodies of requests that wait for an answer or are still arriving, and large answers "
            "from before they are made until they are sent, all connections together. Beyond it "
            "the slowest requests are told 503 and their connections closed. Answers take half of "
            "it at most; requests without credentials may hold a quarter of it, from one address "
            "a quarter of that.",
            unit="MiB",
            bounds=(1, 65_536),
        ),
    )
    max_request_line_bytes: int = field(
        default=8_192,
        metadata=about(
            Kind.INTEGER,
            _LOAD,
            "Longest address of a request, path and query together; a longer one is told 414.",
            unit="bytes",
            bounds=(256, 65_536),
        ),
    )
    max_header_bytes: int = field(
        default=32_768,
        metadata=about(
            Kind.INTEGER,
            _LOAD,
            "All header fields of a request together; more are told 431.",
            unit="bytes",
            bounds=(1_024, 1_048_576),
        ),
    )
    max_header_fields: int = field(
        default=100,
        metadata=about(
            Kind.INTEGER,
            _LOAD,
            "Header fields of a request; more are told 431.",
            unit="fields",
            bounds=(16, 10_000),
        ),
    )
    header_timeout_s: float = field(
        default=10.0,
        metadata=about(
            Kind.NUMBER,
            _SLOW,
            "From the first byte of a request to the end of its header; a slower one is told 408.",
            unit="seconds",
            bounds=(0.1, 3_600),
        ),
    )
    body_timeout_s: float = field(
        default=10.0,
        metadata=about(
            Kind.NUMBER,
            _SLOW,
            "How long a body may take, beyond what `body_min_bytes_per_s` allows for its length; "
            "a slower one is told 408.",
            unit="seconds",
            bounds=(0.1, 3_600),
        ),
    )
    body_min_bytes_per_s: int = field(
        default=1_024,
        metadata=about(
            Kind.INTEGER,
            _SLOW,
            "Slowest rate at which a body may arrive: each such number of bytes earns a second.",
            unit="bytes per second",
            bounds=(1, 1_000_000_000),
        ),
    )
    idle_timeout_s: float = field(
        default=120.0,
        metadata=about(
            Kind.NUMBER,
            _SLOW,
            "How long a connection may stay open without a request. Clients keep connections in "
            "pools, and one that the server closes first can cost them a failed request.",
            unit="seconds",
            bounds=(75, 86_400),
            special="Set the idle time of a proxy in front lower than this.",
        ),
    )
    write_timeout_s: float = field(
        default=30.0,
        metadata=about(
            Kind.NUMBER,
            _SLOW,
            "How long a client may take to read an answer before its connection is cut.",
            unit="seconds",
            bounds=(0.1, 3_600),
        ),
    )
    drain_timeout_s: float = field(
        default=25.0,
        metadata=about(
            Kind.NUMBER,
            _SLOW,
            "How long a server that was told to stop goes on answering what had already arrived.",
            unit="seconds",
            bounds=(0, 3_600),
            special="0 cuts them off at once.",
        ),
    )
    log_format: str = field(
        default="console",
        metadata=about(
            Kind.TEXT,
            _WATCH,
            "Form of the log on stderr: lines for people, or one JSON object a line.",
            choices=("console", "json"),
        ),
    )
    log_level: str = field(
        default="info",
        metadata=about(
            Kind.TEXT,
            _WATCH,
            "Least important events that are logged.",
            choices=("debug", "info", "warning", "error"),
            special="`debug` logs every request and costs throughput.",
        ),
    )
    metrics_enabled: bool = field(
        default=True,
        metadata=about(
            Kind.SWITCH,
            _WATCH,
            "Whether `/metrics` answers. It needs no credentials and names accounts and queues.",
        ),
    )
    metrics_max_queues: int = field(
        default=1_000,
        metadata=about(
            Kind.INTEGER,
            _WATCH,
            "Queues that get figures of their own in `/metrics`; the rest are added up under the "
            "name `_other`.",
            unit="queues",
            bounds=(0, 100_000),
        ),
    )
    test_mode: bool = field(
        default=False,
        metadata=about(
            Kind.SWITCH,
            _TEST,
            "Whether tests may make requests fail and move a virtual clock, at addresses under "
            "`/v1/test/` that need no credentials.",
            special="Refused where other machines could connect.",
        ),
    )
    clock: str = field(
        default="system",
        metadata=about(
            Kind.TEXT,
            _TEST,
            "What messages, leases and waits go by. A `virtual` clock stands still until a test "
            "moves it.",
            choices=("system", "virtual"),
            special="`virtual` needs `test_mode`. Signatures, tokens and the time limits of "
            "connections go by the system's clock all the same.",
        ),
    )
    test_seed: int = field(
        default=0,
        metadata=about(
            Kind.INTEGER,
            _TEST,
            "Seed of the random numbers that spread retries. The same requests, one after the "
            "other, then give the same order of deliveries.",
            bounds=(0, 4_294_967_295),
            special="Used with `test_mode` only.",
        ),
    )

    def bodies_place(self) -> str:
        """Return where large bodies are kept."""
        return self.bodies or str(self.data / "bodies")

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses to listen on, one by one."""
        return tuple(part for part in (piece.strip() for piece in self.host.split(",")) if part)

    def is_private(self) -> bool:
        """Tell whether, as far as can be seen, nobody on another machine can connect."""
        loopback = all(_is_loopback(address) for address in self.addresses())
        return loopback and not self.tls_terminated

    def account_names(self) -> tuple[str, ...]:
        """Return the names of the configured accounts, without the development account."""
        return tuple(account.name for account in self.accounts)

    def dev_account_on(self) -> bool:
        """Tell whether the account with the public key may sign in."""
        if self.dev_account == "auto":
            return self.is_private() and DEV_ACCOUNT not in self.account_names()
        return self.dev_account == "on"

    def effective_accounts(self) -> tuple[AccountKeys, ...]:
        """Return all accounts that may sign in, the development account among them."""
        if not self.dev_account_on():
            return self.accounts
        key = Secret(base64.b64decode(DEV_KEY))
        return (*self.accounts, AccountKeys(name=DEV_ACCOUNT, keys=(key,)))

    def validate(self) -> None:
        """Check every value and the pairs that depend on each other.

        Raises:
            SettingsError: Names each field, its value, and the bound it breaks.
        """
        problems = find_problems(self, all_settings())
        if problems:
            raise SettingsError(problems)


@cache
def all_settings() -> dict[str, tuple[Meta, Any]]:
    """Return each setting's description and default by name, in the order of the reference."""
    # Those that another class brings come last.
    ordered = sorted(fields(Settings), key=lambda each: each.name not in Settings.__annotations__)
    return {each.name: (meta_of(each), each.default) for each in ordered}


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
