"""What settings are made of: secrets, accounts, and the problems they can have."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import Field, dataclass, field
from enum import StrEnum
from typing import Any, Final

from leasehold.domain.wording import count_of

DEV_ACCOUNT: Final = "devstoreaccount1"
"""The account that every emulator of the service has; its key is printed in public manuals."""
DEV_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
MIN_KEY_BYTES: Final = 32
_RESERVED_NAMES: Final = frozenset({"healthz", "readyz", "metrics"})
_ACCOUNT_NAME: Final = re.compile(r"[a-z0-9]{3,24}")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
MIN_SECRET_CHARS: Final = 16
_MASK: Final = "***"
_URL_SCHEMES: Final = frozenset({"postgresql", "postgres"})
_IN_PLACE: Final = re.compile(r"^([^:]+://[^:@/?#]*:)[^/?#]*@")
_IN_QUERY: Final = re.compile(r"((?:^|[?&])(?:ssl)?password=)[^&#]*", re.IGNORECASE)


class Secret:
    """Bytes that must not be shown by accident: whatever turns this into text shows a mask."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the bytes themselves."""
        return self._value

    def __repr__(self) -> str:
        return _MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class StoreUrl:
    """Address of a database; whatever turns this into text shows it without its password.

    Args:
        text: ``postgresql://user:password@host:port/database?schema=NAME``; several hosts with
            commas in between.

    Raises:
        ValueError: It is no such address. The text never shows it, as it may have a password.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text
        scheme, separator, rest = text.partition("://")
        if scheme not in _URL_SCHEMES or not separator:
            raise ValueError("must begin with postgresql://")
        place = rest.partition("?")[0].partition("/")[0]
        for host in place.rpartition("@")[2].split(","):
            port = "" if host.endswith("]") else host.rpartition(":")[2] if ":" in host else ""
            if port and not (port.isascii() and port.isdigit()):
                raise ValueError(
                    "has a port that is not a number; a password with / ? : @ or # in it must have "
                    "them written as %2F, %3F, %3A, %40 and %23"
                )

    def reveal(self) -> str:
        """Return the address with its password."""
        return self._text

    def __repr__(self) -> str:
        shown = _IN_PLACE.sub(rf"\1{_MASK}@", self._text)
        return _IN_QUERY.sub(rf"\1{_MASK}", shown)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreUrl) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountKeys:
    """An account and its one or two keys, either of which signs for it."""

    name: str
    keys: tuple[Secret, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountStore:
    """An account that has a store of its own, and where that is."""

    account: str
    url: StoreUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKeyPair:
    """An AccessKeyId of MNS, its secret, and the account that it opens."""

    key_id: str
    secret: Secret
    account: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one setting, in words."""

    field: str
    text: str


class SettingsError(Exception):
    """The settings cannot be used; ``problems`` names every reason, and the text has them all."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(f"{problem.field}: {problem.text}" for problem in problems))
        self.problems = problems


def decode_key(text: str) -> Secret:
    """Decode the base64 of an account key.

    Raises:
        ValueError: It is not base64, or has fewer than 32 bytes. The text never shows the key.
    """
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a key is not base64") from None
    if len(raw) < MIN_KEY_BYTES:
        raise ValueError(
            f"a key has {count_of(len(raw), 'byte')}; it must have at least {MIN_KEY_BYTES}"
        )
    return Secret(raw)


def account_of(name: str, keys: list[str]) -> AccountKeys:
    """Check the name and decode the keys of an account.

    Args:
        name: 3 to 24 of a-z and 0-9, and none of the server's own addresses.
        keys: One or two keys in base64.

    Raises:
        ValueError: The name or a key will not do.
    """
    if _ACCOUNT_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a valid account name: it must be 3 to 24 of a-z and 0-9")
    if name in _RESERVED_NAMES:
        raise ValueError(f"{name!r} cannot be an account: the server uses it as a path")
    if len(keys) not in {1, 2}:
        raise ValueError(
            f"account {name!r} has {count_of(len(keys), 'key')}; it must have one or two"
        )
    try:
        return AccountKeys(name=name, keys=tuple(decode_key(key) for key in keys))
    except ValueError as error:
        raise ValueError(f"account {name!r}: {error}") from None


def access_key_of(key_id: str, secret: str, account: str) -> AccessKeyPair:
    """Check the parts of an access key.

    Args:
        key_id: 1 to 128 of A-Z, a-z, 0-9 and ``. _ -``.
        secret: 16 characters or more, without blanks.
        account: Name of the account that it opens.

    Raises:
        ValueError: The id or the secret will not do. The text never shows the secret.
    """
    if _KEY_ID.fullmatch(key_id) is None:
        raise ValueError(
            f"{key_id!r} is not a valid AccessKeyId: it must be 1 to 128 of A-Z, a-z, 0-9 . _ -"
        )
    if len(secret) < MIN_SECRET_CHARS or len(secret.split()) != 1:
        raise ValueError(
            f"the secret of {key_id!r} must have at least {MIN_SECRET_CHARS} characters and no "
            "blanks"
        )
    return AccessKeyPair(key_id=key_id, secret=Secret(secret.encode()), account=account)


def uses_public_key(account: AccountKeys) -> bool:
    """Tell whether anybody can sign for *account*, because its key is the emulators' public one."""
    return Secret(base64.b64decode(DEV_KEY)) in account.keys


# --- meta --------------------------------------------------------------------------------------
#
# How a setting describes itself.


_META: Final = "leasehold"


class Kind(StrEnum):
    """How a setting is written."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    SWITCH = "true or false"
    PATH = "path"
    STORE_URL = "address of a database"
    LIST = "list of text"
    ACCOUNTS = "table of accounts"
    ACCESS_KEYS = "table of access keys"
    ACCOUNT_STORES = "table of addresses of databases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What a setting says of itself."""

    kind: Kind
    group: str
    """Heading it stands under in the reference."""
    meaning: str
    unit: str = ""
    bounds: tuple[float, float] | None = None
    """Smallest and largest value allowed."""
    choices: tuple[str, ...] = ()
    special: str = ""
    """Values with a meaning of their own, and how this setting and others depend on each other."""


def setting(  # noqa: PLR0913 - each is a fact of its own
    default: object,
    kind: Kind,
    group: str,
    meaning: str,
    *,
    unit: str = "",
    bounds: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
    special: str = "",
) -> Any:
    """Return the field of a dataclass that is a setting; see :class:`Meta`."""
    meta = Meta(
        kind=kind,
        group=group,
        meaning=meaning,
        unit=unit,
        bounds=bounds,
        choices=choices,
        special=special,
    )
    return field(default=default, metadata={_META: meta})


def meta_of(declared: Field[Any]) -> Meta:
    """Return what was given to :func:`setting`."""
    meta = declared.metadata[_META]
    assert isinstance(meta, Meta)
    return meta


def bounds_text(meta: Meta) -> str:
    """Return the allowed values in words; empty if anything goes."""
    if meta.choices:
        return ", ".join(meta.choices[:-1]) + f" or {meta.choices[-1]}"
    if meta.bounds is None:
        return ""
    low, high = meta.bounds
    return f"{low:,} to {high:,}"
