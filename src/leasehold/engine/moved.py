"""Accounts that were moved to another store while a server goes on to look for them in this one."""

from __future__ import annotations

import structlog

from leasehold.domain import commands as c
from leasehold.domain.errors import AccountMoved
from leasehold.stores.base import Store

_log = structlog.get_logger(__name__)


class MovedAccounts:
    """Refuses what is asked of accounts that have left the store.

    A store learns of it with its next batch, so requests are looked at before they are carried out
    and again after that: what is not there any more must not be taken for something that never was.

    Args:
        store: Its ``away`` names the accounts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: set[str] = set()

    def names(self) -> frozenset[str]:
        """Return the accounts that have left, as the last batch knew them."""
        return self._store.away

    def refuse(self, command: c.Command) -> None:
        """Refuse a command of an account that has left.

        Raises:
            AccountMoved: It is.
        """
        if self._store.away:
            self.refuse_account(account_of(command))

    def refuse_account(self, account: str) -> None:
        """Refuse what is asked of an account that has left.

        Raises:
            AccountMoved: It has.
        """
        if account not in self.names():
            return
        if account not in self._told:
            self._told.add(account)
            _log.error(
                "account.moved_away",
                account=account,
                meaning="its requests are told 503: name the store that it is in now in "
                "account_stores, and start the server again; leasehold store check says which",
            )
        raise AccountMoved(account)


def account_of(command: c.Command) -> str:
    """Return the account that a command is about; empty if it is about none."""
    account: str | None = getattr(command, "account", None)
    if account is None:
        parts = getattr(command, "commands", None)
        account = parts[0].account if parts else ""
    return account
