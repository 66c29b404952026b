"""The queues of a worker, from what stands on the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import click

from leasehold.cli.session import open_session
from leasehold.client import Client
from leasehold.extras import LIBRARIES, install, library_of
from leasehold.settings import DEV_ACCOUNT
from leasehold.settings.values import DEV_KEY
from leasehold.worker.queues import QueueClient
from leasehold.worker.queues.native import NativeQueue
from leasehold.worker.queues.specs import CONNECTION_VARIABLE, QueueSpec, parts_of

_WEIGHT: Final = re.compile(r"(.+)=(\d+(?:\.\d+)?)")
_OPTION: Final = re.compile(r".*[?&][a-z_]+")
"""An address up to the value of one of its options."""
_NOT_AZURE: Final = ("send_key", "ca_file")
_NOT_MNS: Final = (*_NOT_AZURE, "connection_string", "url", "account", "key_file")
_DEVELOPMENT: Final = "UseDevelopmentStorage=true"
_DEVELOPMENT_URL: Final = "http://127.0.0.1:10001"


@dataclass(frozen=True, slots=True)
class Opened:
    """A queue, ready to be worked on."""

    client: QueueClient
    weight: float
    where: str
    """Of which service, for people; no secret is in it."""


def read_weight(text: str) -> tuple[str, float]:
    """Split ``orders=3`` into name and weight; without one the weight is 1."""
    found = _WEIGHT.fullmatch(text)
    if found is None or _OPTION.fullmatch(found[1]):
        return text, 1.0
    return found[1], float(found[2])


class QueueOpener:
    """Opens queues: by their names at one service, by their addresses anywhere.

    Args:
        given: The connection options that all commands share.
        azure: Whether names are those of queues of Azure.
        mns: The endpoint of MNS at which names are; None: names are not of MNS.
        open_spec: Opens a queue; tests replace it.

    Raises:
        click.UsageError: The options do not go together.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        *,
        azure: bool,
        mns: str | None,
        open_spec: Callable[[QueueSpec], QueueClient] = QueueSpec.open,
    ) -> None:
        self._given = given
        self._mns = mns
        self._open_spec = open_spec
        self._shared: Client | None = None
        if azure and mns is not None:
            raise click.UsageError("--azure and --mns exclude each other.")
        self._service: Literal["leasehold", "azure"] = "azure" if azure else "leasehold"
        other = "azure" if azure else "mns"
        unused = _NOT_AZURE if azure else _NOT_MNS if mns is not None else ()
        for name in unused:
            if given[name]:
                option = name.replace("_", "-")
                raise click.UsageError(f"--{option} does not go with --{other}.")

    def open(self, text: str) -> Opened:
        """Open a queue. Nothing is asked of the service.

        Args:
            text: A name or an address, with a weight or without.

        Raises:
            ValueError: It cannot be opened; the text says why, and shows no secret.
            click.UsageError: The connection options are wrong.
        """
        name, weight = read_weight(text)
        try:
            if "://" not in name and (self._given["send_key"] or self._given["ca_file"]):
                return self._through_client(name, weight)
            spec = self._spec(name)
            return Opened(self._open_spec(spec), weight, _where(spec))
        except ImportError as error:
            library = library_of(error)
            if library is None:
                raise
            extra = LIBRARIES[library]
            raise ValueError(
                f"queue {_shown(name)}: the library {library} is missing: {install(extra)}"
            ) from None
        except ValueError as error:
            raise ValueError(f"queue {_shown(name)}: {error}") from None

    def close(self) -> None:
        """Close what several queues share."""
        if self._shared is not None:
            self._shared.close()

    def _through_client(self, name: str, weight: float) -> Opened:
        """Open a queue with what has no place in a connection string."""
        if self._shared is None:
            self._shared = open_session(dict(self._given), None).client
        return Opened(
            NativeQueue(self._shared.queue(name)), weight, f"leasehold at {self._shared.url}"
        )

    def _spec(self, name: str) -> QueueSpec:
        if "://" in name:
            return QueueSpec.parse(name)
        if self._mns is not None:
            endpoint = self._mns if "://" in self._mns else f"https://{self._mns}"
            return QueueSpec.parse(f"mns+{endpoint.rstrip('/')}/{name}")
        return QueueSpec(self._service, name, self._connection())

    def _connection(self) -> str:
        """Return the connection string that the options amount to."""
        given = self._given
        url, account, key_file = given["url"], given["account"], given["key_file"]
        if url is None and account is None and key_file is None:
            connection = given["connection_string"] or os.environ.get(CONNECTION_VARIABLE)
            if connection is None and self._service == "azure":
                raise ValueError(f"set {CONNECTION_VARIABLE}, or give --connection-string")
            return connection or _DEVELOPMENT
        if given["connection_string"] is not None:
            raise click.UsageError(
                "--connection-string says all that --url, --account and --key-file say: give one"
                " or the other."
            )
        account = account or DEV_ACCOUNT
        if key_file is None and account != DEV_ACCOUNT:
            raise click.UsageError(f"The account {account} needs --key-file.")
        key = DEV_KEY if key_file is None else Path(key_file).read_text("utf-8").strip()
        base = (url or _DEVELOPMENT_URL).rstrip("/").removesuffix(f"/{account}")
        scheme = base.partition(":")[0]
        return (
            f"DefaultEndpointsProtocol={scheme};AccountName={account};AccountKey={key};"
            f"QueueEndpoint={base}/{account};"
        )


def _where(spec: QueueSpec) -> str:
    """Return the service and its address for people."""
    if spec.service == "memory":
        return "memory"
    parts = parts_of(spec.connection)
    address = parts.get("queueendpoint") or parts.get("endpoint")
    if address is not None:
        found = urlsplit(address)
        return f"{spec.service} at {found.scheme}://{found.netloc.rpartition('@')[2]}"
    if "usedevelopmentstorage" in parts:
        return f"{spec.service} at {_DEVELOPMENT_URL}"
    return f"{spec.service}, account {parts.get('accountname', '?')}"


def _shown(name: str) -> str:
    """Return a name or an address without what may be secret in it."""
    if "://" not in name:
        return name
    scheme, _, rest = name.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
