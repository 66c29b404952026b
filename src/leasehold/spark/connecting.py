"""From options to a client of the server; made anew in each process, as connections are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from leasehold.client import Client, QueueNotFound, RetryPolicy
from leasehold.spark.options import BadOption, Place

_DEVELOPMENT_ACCOUNT: Final = "devstoreaccount1"
_MANY: Final = 1_000_000
"""More tries than any patience allows: it is the patience that ends them."""


def connection_string(place: Place) -> str | None:
    """Return the connection string that the options lead to; None: the client's own default.

    Raises:
        BadOption: The variable or the file is not there on this machine.
    """
    if place.connection_string_variable is not None:
        try:
            return os.environ[place.connection_string_variable]
        except KeyError:
            raise BadOption(
                f"option connectionStringVariable: {place.connection_string_variable} is not set "
                "on this machine; executors need it too (spark.executorEnv)"
            ) from None
    if place.connection_string_file is not None:
        try:
            return Path(place.connection_string_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BadOption(f"option connectionStringFile: {error.strerror}") from None
    return place.connection_string


def is_signature(credential: str) -> bool:
    """Tell whether a credential is a shared access signature; otherwise it is an account key."""
    # A signature is the query part of an address, and has a part of this name.
    return "sig=" in credential


def patient(patience_s: float) -> RetryPolicy:
    """Return a policy that goes on trying for so many seconds, for calls that can be repeated."""
    return RetryPolicy(attempts=_MANY, patience_s=patience_s)


def connect(place: Place, retries: RetryPolicy | None = None, *, timeout_s: float = 30.0) -> Client:
    """Return a client. No request is made.

    Args:
        place: Where the server is.
        retries: How often and how patiently to try again.
        timeout_s: Seconds without a byte from the server after which a try has failed, above 0.

    Raises:
        BadOption: What the options say is malformed; the text shows no secret.
    """
    policy = retries or RetryPolicy()
    try:
        if place.endpoint is None:
            return Client.from_connection_string(
                connection_string(place), timeout_s=timeout_s, retries=policy
            )
        key, sas = _credential(place.credential)
        account = place.account or _DEVELOPMENT_ACCOUNT
        return Client(
            place.endpoint, account, key=key, sas=sas, timeout_s=timeout_s, retries=policy
        )
    except ValueError as error:
        raise BadOption(f"the connection is not properly given: {error}") from None


@contextlib.contextmanager
def missing_queue_named(queue: str | None, client: Client) -> Iterator[None]:
    """Say which queue is missing, and where, if the server says that one is.

    Args:
        queue: The only one that is spoken of; None: there may be others.
        client: Of the server.

    Raises:
        BadOption: There is no such queue.
    """
    try:
        yield
    except QueueNotFound:
        if queue is None:
            raise
        raise BadOption(
            f"option queueName: there is no queue {queue} at {client.url}, account {client.account}"
        ) from None


def _credential(given: str | None) -> tuple[str | None, str | None]:
    """Return the key or the signature that was given."""
    return (None, given) if given is not None and is_signature(given) else (given, None)
