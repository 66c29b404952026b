# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""The client of an account."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import UNSET, UnsetType

from leasehold.client import _answers as answers
from leasehold.client import _calls as calls
from leasehold.client._connection import (
    DEFAULT_URL,
    DEVELOPMENT_ACCOUNT,
    connection_parts,
    credential_of,
    endpoint_of,
)
from leasehold.client._sync.account import AccountPart
from leasehold.client._sync.queue import QueueHandle
from leasehold.client.errors import InvalidConnectionString
from leasehold.client.models import Job, QueueInfo
from leasehold.client.retries import RetryPolicy
from leasehold.spans import is_used
from leasehold.wire.parts import NoRequest

if TYPE_CHECKING:
    import httpx

_DEFAULT_RETRIES = RetryPolicy()
_DEFAULT_TIMEOUT_S = 30.0


class Client(AccountPart):
    """Speaks to one account of a Leasehold server through its native API.

    ::

        with Client.from_connection_string() as client:
            queue = client.queue("orders")
            queue.create()
            queue.put("hello")
            for message in queue.receive(wait_s=20):
                queue.complete(message)

    It keeps connections open between calls, so make one and keep it. Threads may share it; a
    process that was forked must make its own.

    If the program has set a provider of OpenTelemetry before it makes the client, calls have spans.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        url: str = DEFAULT_URL,
        account: str = DEVELOPMENT_ACCOUNT,
        *,
        key: str | None = None,
        sas: str | None = None,
        token_provider: Callable[[], str] | None = None,
        send_key: bool = False,
        timeout_s: float = _DEFAULT_TIMEOUT_S,
        retries: RetryPolicy = _DEFAULT_RETRIES,
        ssl_context: ssl.SSLContext | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Make no request yet.

        Args:
            url: Scheme, host and port of the server; the account may stand behind it.
            account: Name of the account. The development account needs no credential.
            key: Account key, base64, which signs each request; or, with *send_key*, an account
                key or inspector key that is sent as it is.
            sas: Shared access signature, the query part of its address.
            token_provider: Called before each try for an OAuth token; it should keep the token
                until it expires.
            send_key: Send the key as a bearer token in place of a signature. An inspector key
                needs this. Only over https or to this machine.
            timeout_s: Seconds without a byte from the server after which a try has failed, above
                0. The time that the server is asked to wait comes on top.
            retries: How often and how patiently to try again; ``RetryPolicy(attempts=1)`` never.
            ssl_context: Which certificates to trust; None: those of the system.
            transport: Carries the requests in place of our own, for proxies and tests.

        Raises:
            ValueError: An argument is malformed or two exclude each other. Its text shows no
                secret.
        """
        endpoint = endpoint_of(url, account)
        credential = credential_of(
            endpoint, key, sas, send_key=send_key, token=token_provider is not None
        )
        # Late: httpcore takes long to load, and not all that import the module make a client.
        from leasehold.client._sync.transport import (  # noqa: PLC0415
            TracedTransport,
            Transport,
        )

        # Whether there are spans is decided here, once: without them nothing of it is called.
        kind = TracedTransport if is_used() else Transport
        super().__init__(
            kind(
                endpoint=endpoint,
                credential=credential,
                token_provider=token_provider,
                timeout_s=timeout_s,
                retries=retries,
                ssl_context=ssl_context,
                transport=transport,
            )
        )

    @classmethod
    def from_connection_string(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        cls,
        text: str | UnsetType = UNSET,
        *,
        send_key: bool = False,
        timeout_s: float = _DEFAULT_TIMEOUT_S,
        retries: RetryPolicy = _DEFAULT_RETRIES,
        ssl_context: ssl.SSLContext | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> Self:
        """Make a client from a connection string as the Azure SDKs take it.

        AccountName, AccountKey, QueueEndpoint, SharedAccessSignature, EndpointSuffix with
        DefaultEndpointsProtocol, and UseDevelopmentStorage are understood.

        Args:
            text: The string. Without it: the environment variable
                AZURE_STORAGE_CONNECTION_STRING if it is set, else the development server on this
                machine. None is refused, as it comes from a setting that is missing.
            send_key: As for the constructor, like all that follow.
            timeout_s: See there.
            retries: See there.
            ssl_context: See there.
            transport: See there.

        Raises:
            InvalidConnectionString: It is None, or a part is missing, doubled or malformed. Its
                text names the part and shows no value.
        """
        parts = connection_parts(text)
        try:
            return cls(
                parts.url,
                parts.account,
                key=parts.key,
                sas=parts.sas,
                send_key=send_key,
                timeout_s=timeout_s,
                retries=retries,
                ssl_context=ssl_context,
                transport=transport,
            )
        except ValueError as error:
            raise InvalidConnectionString(str(error)) from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} account={self.account!r}>"

    @property
    def url(self) -> str:
        """Scheme, host and port of the server."""
        return self._transport.endpoint.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Calls from now on raise RuntimeError."""
        self._transport.close()

    def queue(self, name: str) -> QueueHandle:
        """Return a handle on a queue, which need not exist. No request is made.

        Raises:
            TypeError: The name is not a str.
            ValueError: The name is empty or consists of dots.
        """
        return QueueHandle(self._transport, name)

    def list_queues(self, prefix: str = "", *, counts: bool = False) -> Iterator[QueueInfo]:
        """Yield the account's queues by name, fetching 1,000 at a time.

        Args:
            prefix: What the names begin with.
            counts: Whether to count the messages of each, which takes longer.

        Raises:
            LeaseholdClientError: See :mod:`leasehold.client.errors`; so for every method.
        """
        after: str | None = None
        while True:
            call = calls.list_queues(self.account, prefix, after, counts=counts)
            page = answers.queues(self._transport.call(call))
            yield from page.queues
            after = page.next_after
            if after is None:
                return

    def create_queue(
        self,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> QueueInfo:
        """Create a queue, or find it there. See :meth:`QueueHandle.create`."""
        return self.queue(name).create(metadata=metadata, settings=settings)

    def delete_queue(self, name: str) -> None:
        """Delete a queue and all its messages.

        Raises:
            QueueNotFound: There is none.
        """
        self.queue(name).delete()

    def get_job(self, job_id: str) -> Job:
        """Look at a purge or redrive.

        Raises:
            JobNotFound: There is none, or it ended long ago.
        """
        return answers.job(self._transport.call(calls.get(calls.job_path(self.account, job_id))))

    def list_jobs(self, queue: str | None = None, *, limit: int = 100) -> list[Job]:
        """Return the newest jobs, of one queue or of all, the newest first.

        Args:
            queue: Name of the queue; None: all.
            limit: How many at most, 1 to 1,000.
        """
        return answers.jobs(self._transport.call(calls.list_jobs(self.account, queue, limit)))

    def stop_job(self, job_id: str) -> Job:
        """Stop a job where it is. What it has moved stays moved.

        Raises:
            JobNotFound: There is none, or it ended long ago.
        """
        path = f"{calls.job_path(self.account, job_id)}/stop"
        call = calls.send("POST", path, NoRequest(), repeatable=True)
        return answers.job(self._transport.call(call))

    def wait_for_job(
        self,
        job_id: str,
        *,
        on_progress: Callable[[Job], object] | None = None,
        poll_s: float = 0.5,
    ) -> Job:
        """Wait until a job is done or stopped, and return it.

        Args:
            job_id: Which.
            on_progress: Called with the job each time it was looked at, also at the end.
            poll_s: Seconds between two looks, 0 or more.

        Raises:
            JobNotFound: There is none.
        """
        while True:
            job = self.get_job(job_id)
            if on_progress is not None:
                on_progress(job)
            if job.is_over:
                return job
            time.sleep(poll_s)
