"""Record batches on the wire. The library for them is imported only where it is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from leasehold.client._calls import MAX_REQUEST_BYTES
from leasehold.domain.limits import MAX_ITEMS
from leasehold.extras import install


def pyarrow() -> Any:
    """Return the library.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Record batches need the library pyarrow: {install('arrow')}."
        ) from error


def batches_in(content: bytes) -> Iterator[Any]:
    """Yield the record batches of a stream that have rows."""
    if not content:
        return
    with pyarrow().ipc.open_stream(content) as reader:
        for batch in reader:
            if batch.num_rows:
                yield batch


def stream_of(batch: Any) -> bytes:
    """Return one record batch as a stream."""
    arrow = pyarrow()
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def slices_of(batch: Any) -> Iterator[Any]:
    """Yield parts of a record batch that each fit in a request; always the same ones."""
    rows: int = batch.num_rows
    pieces = max(1, -(-rows // MAX_ITEMS), -(-int(batch.nbytes) // MAX_REQUEST_BYTES))
    for piece in range(pieces):
        start, end = piece * rows // pieces, (piece + 1) * rows // pieces
        if end > start or pieces == 1:
            yield batch.slice(start, end - start)
