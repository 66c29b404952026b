"""Where settings come from: options, then the environment, then a TOML file, then defaults.

This package alone reads the process environment and the file.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leasehold.server.settings.checks import missing_files, validate
from leasehold.server.settings.fields import Settings, all_settings
from leasehold.server.settings.values import (
    AccessKeyPair,
    AccountKeys,
    AccountStore,
    Kind,
    Meta,
    Problem,
    SettingsError,
    StoreUrl,
    access_key_of,
    account_of,
    bounds_text,
)

PREFIX: Final = "LEASEHOLD_"
FILE_VARIABLE: Final = "LEASEHOLD_CONFIG"
_ACCOUNT_KEYS: Final = ("key1", "key2")
_ACCESS_KEY_PARTS: Final = 3
_OF_ACCOUNTS: Final = {"inspectors", "oidc_accounts", "account_stores", "mns_keys", "dev_account"}
"""Settings that speak of accounts, and cannot be judged without these."""
_SWITCHES: Final = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0"), False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings, and for each of them where its value came from."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(
    flags: Mapping[str, str | bool],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    to_serve: bool = False,
) -> Loaded:
    """Put the settings together and validate them.

    Args:
        flags: Values given on the command line, by setting name.
        file: TOML file; None for the one that LEASEHOLD_CONFIG names, if any.
        environment: Variables to read in place of the process's own.
        to_serve: A server is to run with them here, so the files that they name must be there, too.

    Raises:
        SettingsError: A name is unknown, a value cannot be read, or it is outside its bounds.
    """
    environment = os.environ if environment is None else environment
    gathered = _Gathered()
    named = environment.get(FILE_VARIABLE, "")
    path = file or (Path(named) if named else None)
    if path is not None:
        gathered.take_file(path)
    gathered.take_environment(environment)
    for name, value in flags.items():
        gathered.put(name, value, f"option --{name.replace('_', '-')}", _from_text)
    settings = Settings(**gathered.values)
    gathered.check(settings, to_serve=to_serve)
    gathered.raise_problems()
    return Loaded(
        settings=settings,
        origins={name: gathered.origins.get(name, "default") for name in all_settings()},
    )


class _Gathered:
    """Values and their origins; a later source replaces an earlier one."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.unread: set[str] = set()
        """Settings whose value could not be read where it was given last."""
        self.has_all_files = True
        """Whether the file could be read; without it most of what is wrong is not."""

    def check(self, settings: Settings, *, to_serve: bool) -> None:
        """Add what is wrong with the values, but not what follows from one that was not read.

        Of a file that could not be read nobody knows what it says: only what was given elsewhere
        is judged then.
        """
        unread = set(self.unread)
        if not self.has_all_files:
            unread |= {"accounts", *(all_settings().keys() - self.values.keys())}
        if "accounts" in unread:
            unread |= _OF_ACCOUNTS
        try:
            validate(settings)
        except SettingsError as error:
            self.problems += [
                self._with_origin(each) for each in error.problems if each.field not in unread
            ]
        if to_serve:
            self.problems += map(self._with_origin, missing_files(settings))
        if settings.store_url is not None and self._is_data_meant():
            problem = Problem(
                "data",
                "is not used with store_url, which keeps everything in that database: give one "
                "of the two",
            )
            self.problems.append(self._with_origin(problem))

    def _is_data_meant(self) -> bool:
        """Tell whether the data folder was named beside the database, and not as a default.

        A variable may be that of an image of which containers with a database are made as well.
        """
        origin = self.origins.get("data", "")
        return origin.startswith("option ") or (
            origin.startswith("file ") and origin == self.origins.get("store_url")
        )

    def put(
        self, name: str, value: object, origin: str, read: Callable[[Kind, object], Any]
    ) -> None:
        """Read one value; one that cannot be read becomes a problem."""
        self.origins[name] = origin
        meta = all_settings()[name][0]
        try:
            self.values[name] = read(meta.kind, value)
        except ValueError as error:
            within = "" if meta.bounds is None else f", {bounds_text(meta)}"
            self.problems.append(Problem(name, f"{error}{within} ({origin})"))
            self.unread.add(name)
        else:
            self.unread.discard(name)

    def take_environment(self, environment: Mapping[str, str]) -> None:
        """Take every variable that begins with the prefix; an unknown one is a problem."""
        names = {PREFIX + name.upper(): name for name in all_settings()}
        for variable, text in environment.items():
            if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
                continue
            if variable not in names:
                self._unknown(variable, "environment", [*names, FILE_VARIABLE], PREFIX)
                continue
            self.put(names[variable], text, f"environment {variable}", _from_text)

    def take_file(self, path: Path) -> None:
        """Take every key of a TOML file; an unknown one is a problem."""
        origin = f"file {path}"
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.problems.append(Problem("config", f"{path} cannot be read: {reason}"))
            self.has_all_files = False
            return
        for name, value in table.items():
            if name not in all_settings():
                self._unknown(name, origin, all_settings())
                continue
            self.put(name, value, origin, _from_toml)

    def raise_problems(self) -> None:
        """Raise what has gone wrong so far."""
        if self.problems:
            raise SettingsError(tuple(self.problems))

    def _with_origin(self, problem: Problem) -> Problem:
        origin = self.origins.get(problem.field)
        if origin is None:
            return problem
        return Problem(problem.field, f"{problem.text} ({origin})")

    def _unknown(self, name: str, origin: str, known: Iterable[str], prefix: str = "") -> None:
        # Without what all have in common, which would make all of them near.
        short = [each.removeprefix(prefix) for each in known]
        near = difflib.get_close_matches(name.removeprefix(prefix), short, n=1, cutoff=0.6)
        hint = f"; did you mean {prefix}{near[0]}?" if near else ""
        self.problems.append(Problem(name, f"there is no such setting{hint} ({origin})"))


def _from_text(kind: Kind, value: object) -> Any:
    """Read a value from the command line or the environment."""
    return value if isinstance(value, bool) else _READERS[kind](str(value).strip())


def _whole(text: str) -> float:
    return _number(int, text, "a whole number")


def _decimal(text: str) -> float:
    return _number(float, text, "a number")


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise ValueError(f"is {text!r}; it must be true or false")
    return _SWITCHES[text.lower()]


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _number(read: Callable[[str], float], text: str, what: str) -> float:
    try:
        # Python also reads "1_000", "nan" and digits of other scripts; no setting means those.
        if not text.isascii() or "_" in text or "n" in text.lower():
            raise ValueError  # noqa: TRY301 - one message for both
        return read(text)
    except ValueError:
        raise ValueError(f"is {text!r}; it must be {what}") from None


def _store_url(text: str) -> StoreUrl | None:
    return StoreUrl(text) if text else None


def _accounts_from_text(text: str) -> tuple[AccountKeys, ...]:
    accounts = []
    for entry in text.split(";"):
        if entry.strip():
            name, *keys = entry.strip().split(":")
            accounts.append(account_of(name, keys))
    return tuple(accounts)


def _access_keys_from_text(text: str) -> tuple[AccessKeyPair, ...]:
    pairs = []
    for entry in text.split(";"):
        if entry.strip():
            parts = entry.strip().split(":")
            if len(parts) != _ACCESS_KEY_PARTS:
                # What is there may be a secret in the wrong place, so it is not shown.
                raise ValueError("an access key must be written id:secret:account")
            pairs.append(access_key_of(*parts))
    return tuple(pairs)


def _account_stores_from_text(text: str) -> tuple[AccountStore, ...]:
    stores = []
    for entry in text.split(";"):
        if entry.strip():
            account, _, url = entry.strip().partition("=")
            stores.append(_account_store(account.strip(), url.strip()))
    return tuple(stores)


def _account_store(account: str, url: object) -> AccountStore:
    if not isinstance(url, str):
        raise ValueError(f"the store of account {account!r} must be text in quotes")  # noqa: TRY004 - all problems of a value are ValueErrors
    try:
        return AccountStore(account=account, url=StoreUrl(url))
    except ValueError as error:
        raise ValueError(f"the store of account {account!r} {error}") from None


_READERS: Final[Mapping[Kind, Callable[[str], Any]]] = {
    Kind.TEXT: str,
    Kind.INTEGER: _whole,
    Kind.NUMBER: _decimal,
    Kind.SWITCH: _switch,
    Kind.PATH: Path,
    Kind.STORE_URL: _store_url,
    Kind.LIST: _list,
    Kind.ACCOUNTS: _accounts_from_text,
    Kind.ACCESS_KEYS: _access_keys_from_text,
    Kind.ACCOUNT_STORES: _account_stores_from_text,
}
_TOML_TYPES: Final[Mapping[Kind, tuple[type | tuple[type, ...], str]]] = {
    Kind.TEXT: (str, "text in quotes"),
    Kind.PATH: (str, "text in quotes"),
    Kind.STORE_URL: (str, "text in quotes"),
    Kind.INTEGER: (int, "a whole number"),
    Kind.NUMBER: ((int, float), "a number"),
    Kind.SWITCH: (bool, "true or false"),
    Kind.LIST: ((list, str), "a list of texts"),
    Kind.ACCOUNTS: (dict, "a table"),
    Kind.ACCESS_KEYS: (dict, "a table"),
    Kind.ACCOUNT_STORES: (dict, "a table"),
}
_OF_TEXT: Final[Mapping[Kind, Callable[[str], Any]]] = {
    Kind.PATH: Path,
    Kind.STORE_URL: _store_url,
}


def _from_toml(kind: Kind, value: object) -> Any:
    """Read a value from the file, whose own types must fit."""
    types, words = _TOML_TYPES[kind]
    fits = isinstance(value, types) and (kind is Kind.SWITCH or not isinstance(value, bool))
    if not fits or (isinstance(value, list) and not all(isinstance(v, str) for v in value)):
        # The value may be a key in the wrong place, so it is not shown.
        raise ValueError(f"must be {words}")
    match value:
        case dict():
            read = _OF_TABLE.get(kind, _account_from_toml)
            return tuple(read(name, entry) for name, entry in value.items())
        case list():
            return tuple(value)
        case str() if kind is Kind.LIST:
            return _list(value)
        case str():
            return _OF_TEXT.get(kind, str)(value)
        case int() if kind is Kind.NUMBER:
            return float(value)
        case _:
            return value


def _account_from_toml(name: str, table: object) -> AccountKeys:
    if not isinstance(table, dict):
        raise ValueError(f"account {name!r} must be a table with key1 and, if wanted, key2")  # noqa: TRY004 - all problems of a value are ValueErrors
    for key, value in table.items():
        if key not in _ACCOUNT_KEYS:
            raise ValueError(f"account {name!r} has {key!r}; it may have key1 and key2")
        if not isinstance(value, str):
            raise ValueError(f"account {name!r}: {key} must be text in quotes")  # noqa: TRY004 - as above
    if "key2" in table and "key1" not in table:
        raise ValueError(f"account {name!r} has key2 but no key1")
    return account_of(name, [table[key] for key in _ACCOUNT_KEYS if key in table])


def _access_key_from_toml(key_id: str, table: object) -> AccessKeyPair:
    if not (
        isinstance(table, dict)
        and table.keys() == {"secret", "account"}
        and all(isinstance(each, str) for each in table.values())
    ):
        raise ValueError(
            f"access key {key_id!r} must be a table with secret and account, in quotes"
        )
    return access_key_of(key_id, table["secret"], table["account"])


_OF_TABLE: Final[Mapping[Kind, Callable[[str, object], Any]]] = {
    Kind.ACCESS_KEYS: _access_key_from_toml,
    Kind.ACCOUNT_STORES: _account_store,
}
"""What reads an entry of a table; those of accounts are the rest."""


# --- reference ---------------------------------------------------------------------------------
#
# The settings in words: the reference page, and values as people may see them.


_HEAD: Final = f"""\
# Settings

<!-- Made from src/leasehold/server/settings/fields.py by `leasehold settings --reference`. -->

A setting can be given in four places. The first one that has it wins:

1. an option of `leasehold serve`, such as `--port 10001`;
2. a variable of the environment, such as `{PREFIX}PORT=10001`;
3. a TOML file, such as `port = 10001`, named by `--config` or `{FILE_VARIABLE}`;
4. the default.

A name that is not on this page is refused, in the file and, if it begins with `{PREFIX}`, in the
environment. `leasehold settings` shows the values in force and where each came from. In options
and variables a list is separated by commas, and a switch is `true` or `false`.
"""


def option_of(name: str, meta: Meta) -> str:
    """Return the option of a setting as it is typed; empty if there is none."""
    dashed = name.replace("_", "-")
    match meta.kind:
        case Kind.ACCOUNTS | Kind.ACCESS_KEYS | Kind.ACCOUNT_STORES:
            return ""
        case Kind.SWITCH:
            return f"--{dashed}/--no-{dashed}"
        case _:
            return f"--{dashed}"


def show_value(value: Any) -> str:
    """Return a value in words; keys are masked."""
    match value:
        case None | "" | ():
            return "(none)"
        case bool():
            return "true" if value else "false"
        case Path() | str() | StoreUrl():
            return str(value)
        case tuple():
            return ", ".join(_show_item(item) for item in value)
        case _:
            return f"{value:.15g}"


def settings_markdown() -> str:
    """Return the reference page of all settings."""
    groups: dict[str, list[str]] = {}
    for name, (meta, default) in all_settings().items():
        groups.setdefault(meta.group, []).append("\n".join(_entry(name, meta, default)))
    sections = [f"## {group}\n\n" + "\n".join(entries) for group, entries in groups.items()]
    return _HEAD + "\n" + "\n".join(sections)


def _entry(name: str, meta: Meta, default: Any) -> Iterator[str]:
    yield f"### `{name}`\n"
    yield f"{meta.meaning}\n"
    yield f"- Default: {_code(default)}"
    allowed = bounds_text(meta) or str(meta.kind)
    yield f"- Allowed: {allowed}{f' {meta.unit}' if meta.unit else ''}"
    option = option_of(name, meta)
    variable = f"`{PREFIX}{name.upper()}`"
    yield f"- Given as: `{option}`, {variable}" if option else f"- Given as: {variable}"
    if meta.special:
        yield f"- {meta.special}"
    yield ""


def _code(default: Any) -> str:
    shown = show_value(default)
    return "none" if shown == "(none)" else f"`{shown}`"


def _show_item(item: object) -> str:
    if isinstance(item, AccountKeys):
        return f"{item.name} ({', '.join(repr(key) for key in item.keys)})"
    if isinstance(item, AccessKeyPair):
        return f"{item.key_id} for {item.account} ({item.secret!r})"
    if isinstance(item, AccountStore):
        return f"{item.account} in {item.url!r}"
    return str(item)
