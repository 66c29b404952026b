"""A history in Redis, through redis-py."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from leasehold.extras import install

try:
    import redis
except ImportError as error:  # pragma: no cover - the tests have it
    raise ImportError(f"the history in Redis needs redis-py: {install('redis')}") from error

from leasehold.worker.idempotency.errors import Fenced
from leasehold.worker.idempotency.history import (
    DEFAULT_WINDOW_S,
    SWEEP_STEP,
    Entry,
    Holder,
    check_window,
    may_pass,
    milliseconds,
)

_PASSING: Final = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError)
"""The last one is what a replica says that is not the primary yet, or not any more."""
_LASTING: Final = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
_ANSWER_S: Final = 5.0
"""How long the answer of a server may take, in seconds, besides a wait for replicas."""
_FIELDS: Final = ("source", "fence", "run", "done", "result", "since_ms", "held_until_ms")


class RedisProcessed:
    """See :class:`~leasehold.worker.idempotency.history.Processed`. For Redis 5 or
    newer, and Valkey.

    Each call is one script, which the server runs in one step; keys expire by the server's own
    clock, and there is nothing to sweep.

    What Redis cannot promise, whatever is called here:

    - Replication does not wait. A failover forgets what the replica had not received, done or
      begun; ``wait_replicas`` makes that rarer, and no more than that.
    - What was recorded since the last fsync is forgotten if the server dies: everything without
      ``appendonly``, the last second with ``appendfsync everysec``.
    - With any ``maxmemory-policy`` but ``noeviction`` it may drop keys whenever memory is short.

    A forgotten key means that the effect happens again. Where that must not be, keep the history in
    SQLite or PostgreSQL, best in the transaction of the effect. :meth:`weaknesses` says which of
    these holds for a server.

    Args:
        client: A client of redis-py, or a URL to make one of. The ``socket_timeout`` of a client
            must be longer than ``wait_s``, or it ends the wait.
        window_s: How long a key is remembered, in seconds, above 0.
        prefix: In front of each key.
        wait_replicas: Replicas that must have received that a key is done before :meth:`finish`
            returns.
        wait_s: How long it waits for them, in seconds, before a TimeoutError. It is done then, and
            recorded on the primary.
    """

    def __init__(
        self,
        client: redis.Redis | str,
        window_s: float = DEFAULT_WINDOW_S,
        *,
        prefix: str = "leasehold:once:",
        wait_replicas: int = 0,
        wait_s: float = 1.0,
    ) -> None:
        self.window_s = check_window(window_s)
        self._owns = isinstance(client, str)
        self._client: Any = _connect(client, wait_s) if isinstance(client, str) else client
        self._prefix = prefix
        self._wait_replicas = wait_replicas
        self._wait_s = wait_s
        self._begin, self._finish, self._abandon = (
            self._client.register_script(_script(name)) for name in ("begin", "finish", "abandon")
        )

    def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        hold_ms = milliseconds(self.window_s if hold_s is None else hold_s)
        window_ms = milliseconds(self.window_s)
        found = self._begin(
            keys=[self._prefix + key],
            args=[holder.source, holder.fence, holder.run, hold_ms, window_ms],
        )
        return None if found is None else _entry_of(found)

    def finish(self, key: str, holder: Holder, result: str | None) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        values: list[str | int] = [holder.source, holder.fence, holder.run]
        values.append(milliseconds(self.window_s))
        if result is not None:
            values.append(result)
        found, reached = self._record(self._prefix + key, values)
        if found is not None:
            is_same = _text(found[0]) == holder.source
            raise Fenced(key, holder.fence, int(found[1]) if is_same else None)
        if reached < self._wait_replicas:
            raise TimeoutError(
                f"{key} is done and recorded, but only {reached} of {self._wait_replicas} replicas "
                f"have it"
            )

    def _record(self, key: str, values: Sequence[str | int]) -> tuple[Any, int]:
        """Run the script; return what it gave, and how many replicas have it."""
        if not self._wait_replicas:
            return self._finish(keys=[key], args=values), 0
        # WAIT speaks of what its own connection wrote, so both go over one.
        with self._client.pipeline(transaction=False) as pipeline:
            self._finish(keys=[key], args=values, client=pipeline)
            pipeline.wait(self._wait_replicas, milliseconds(self._wait_s))
            found, reached = pipeline.execute()
        return found, int(reached)

    def abandon(self, key: str, holder: Holder) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        self._abandon(keys=[self._prefix + key], args=[holder.run])

    def look(self, key: str) -> Entry | None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.hmget(self._prefix + key, _FIELDS)
            pipeline.pttl(self._prefix + key)
            pipeline.time()
            fields, left_ms, (seconds, micros) = pipeline.execute()
        if fields[0] is None:
            return None
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return _entry_of([*fields, now_ms + int(left_ms)])

    def forget(self, key: str) -> bool:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        return bool(self._client.delete(self._prefix + key))

    def sweep(self, limit: int = SWEEP_STEP) -> int:
        """Do nothing: the server removes expired keys by itself."""
        del limit
        return 0

    def may_pass(self, error: Exception) -> bool:
        """See :class:`~leasehold.worker.idempotency.history.KnowsItsErrors`."""
        if isinstance(error, redis.RedisError):
            return isinstance(error, _PASSING) and not isinstance(error, _LASTING)
        return may_pass(error)

    def close(self) -> None:
        """Close the connections, if the client was made here."""
        if self._owns:
            self._client.close()

    def weaknesses(self) -> list[str]:
        """Ask the server how it is set up, and say what may make it forget, for people.

        Raises:
            redis.RedisError: The server does not answer, or does not let itself be asked.
        """
        found = []
        config = {
            _text(name): _text(value)
            for pattern in ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
            for name, value in self._client.config_get(pattern).items()
        }
        if config.get("appendonly") != "yes":
            found.append("appendonly is off: the server loses all keys when it crashes")
        elif config.get("appendfsync") != "always":
            found.append(
                f"appendfsync is {config.get('appendfsync')}: the latest keys are lost when the "
                f"machine crashes"
            )
        policy = config.get("maxmemory-policy")
        if config.get("maxmemory") != "0" and policy != "noeviction":
            found.append(f"maxmemory-policy is {policy}: keys are dropped when memory is full")
        replicas = int(self._client.info("replication").get("connected_slaves", 0))
        if replicas and not self._wait_replicas:
            found.append(
                "there are replicas, but wait_replicas is not set: a failover loses the latest keys"
            )
        return found


def _connect(url: str, wait_s: float) -> redis.Redis:
    """Make a client whose reads outlast a wait for replicas; redis-py's own end after 5 s."""
    return redis.Redis.from_url(url, socket_timeout=wait_s + _ANSWER_S)


def _script(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _entry_of(fields: Sequence[Any]) -> Entry:
    source, fence, run, done, result, since_ms, held_until_ms, expires_at_ms = fields
    return Entry(
        source=_text(source),
        fence=int(fence),
        run=_text(run),
        is_done=_text(done) == "1",
        result=None if result is None else _text(result),
        since_ms=int(since_ms),
        held_until_ms=int(held_until_ms),
        expires_at_ms=int(expires_at_ms),
    )


def _text(value: bytes | str) -> str:
    """Return what a client gives as text, whether it decodes its answers or not."""
    return value.decode() if isinstance(value, bytes) else value
