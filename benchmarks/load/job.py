"""What a load generator is asked to do; it travels as one JSON object."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

Workload = Literal["cycle", "phases", "fill", "batches", "inspect", "counts"]
Dialect = Literal["azure", "mns", "native", "noop", "beanstalkd", "pgmq", "skip-locked"]
Auth = Literal["sas", "sharedkey", "bearer", "none"]

EMULATOR_ACCOUNT: Final = "devstoreaccount1"
EMULATOR_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The account and the key that every Azure storage emulator publishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One measurement of one server."""

    workload: Workload
    """``cycle``: every connection puts, gets and deletes in turn. ``phases``: puts, then as many
    gets, then as many deletes. ``fill``: puts only, *count* of them. ``batches``: every connection
    sends *batch* messages in one request, receives as many, completes those. ``inspect``: leases
    one in twenty of the messages there and pages through all, *batch* to a page. ``counts``: asks
    for the counts, over and over."""
    dialect: Dialect
    port: int
    """On 127.0.0.1."""
    conninfo: str = ""
    """Where PostgreSQL is, in the words of libpq; instead of the port."""
    server_pids: tuple[int, ...] = ()
    """Processes whose CPU time and memory are the server's."""
    auth: Auth = "sas"
    queue: str = "bench"
    connections: int = 32
    batch: int = 1
    """Messages in one request: of the gets of ``phases``, 1 to 32, and of everything in
    ``batches``, 1 to 10,000."""
    body_bytes: int = 1024
    duration_s: float = 2.0
    """Of a cycle, or of the puts of ``phases``."""
    warmup_s: float = 0.0
    """A cycle of this length goes before, unmeasured."""
    count: int = 0
    """Most messages to put in one phase; 0 for no limit."""
    timeout_s: float = 600.0
    """For each phase; a server that takes longer counts as failed."""
    is_shared: bool = False
    """Others use the queue at the same time, so what is left in it tells nothing."""
    until_killed: bool = False
    """The server will be killed under this load, so a lost connection ends the job well."""

    def to_json(self) -> str:
        """Return the job as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that *text* describes."""
        fields = json.loads(text)
        fields["server_pids"] = tuple(fields["server_pids"])
        return cls(**fields)
