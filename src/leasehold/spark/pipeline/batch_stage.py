"""Stages that work on many messages at once, as a table of Arrow or pandas.

Messages that come to such a stage while a call of it is under way go with the next call, as in
:class:`~leasehold.worker.call_batcher.CallBatcher`; a call waits some milliseconds for more of
them. A table has these columns:

``message_id``, ``body`` (binary), ``message_type``, ``dequeue_count``, ``fence``, ``inserted_at``
and ``state``: what the stage before has returned, as JSON text in Arrow, as objects in pandas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from leasehold.domain.wording import count_of
from leasehold.worker.call_batcher import CallBatcher
from leasehold.worker.errors import Poison, Retry
from leasehold.worker.stages.declared import StageMessage

BatchForm: TypeAlias = Literal["arrow", "pandas"]

COLUMNS: Final = pa.schema(
    [
        ("message_id", pa.string()),
        ("body", pa.binary()),
        ("message_type", pa.string()),
        ("dequeue_count", pa.int32()),
        ("fence", pa.int64()),
        ("inserted_at", pa.timestamp("us", tz="UTC")),
        ("state", pa.string()),
    ]
)
"""Columns of the table that a stage gets."""
LINGER_S: Final = 0.01
"""So long a call waits for its table to fill: little beside what a save takes, and without it most
tables would have few rows where messages take no time."""
_VERDICTS: Final = ("poison", "retry")


class Given(NamedTuple):
    """A message that a call of a stage gets, and its state."""

    message: Any
    """Has an ``id`` at least."""
    state: Any


class BatchStage:
    """A stage of one message at a time, for a function of many; one for each process.

    If the function raises an error for more than one message, each half of them is tried again by
    itself, so that one bad message does not cost the others.

    Args:
        run: The function: of a ``pyarrow.Table`` or a ``pandas.DataFrame``.
        form: Which of these.
        rows: Messages of one call at most.
    """

    def __init__(self, run: Callable[[Any], Any], form: BatchForm, rows: int) -> None:
        self._run = run
        self._form = form
        self._gathering: CallBatcher[Given, Any] = CallBatcher(
            self._serve, most=rows, linger_s=LINGER_S
        )

    def __call__(self, message: StageMessage, state: Any) -> Any:
        """Do the stage for *message*, together with others, and return its next state."""
        return self._gathering.ask(Given(message, state))

    def _serve(self, given: Sequence[Given]) -> Sequence[Any]:
        try:
            returned = self._run(_as_pandas(given) if self._form == "pandas" else _as_arrow(given))
            return read_result(returned, given)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            if len(given) == 1:
                return [error]
        middle = len(given) // 2
        return [*self._serve(given[:middle]), *self._serve(given[middle:])]


def _as_arrow(given: Sequence[Given], *, states: bool = True) -> pa.Table:
    messages = [each.message for each in given]
    columns: list[list[Any]] = [
        [each.id for each in messages],
        [each.body for each in messages],
        [each.type for each in messages],
        [each.dequeue_count for each in messages],
        [each.fence for each in messages],
        [None if each.inserted_at_ms is None else each.inserted_at_ms * 1000 for each in messages],
        [json.dumps(each.state) if states else None for each in given],
    ]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, COLUMNS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def _as_pandas(given: Sequence[Given]) -> Any:
    import pandas as pd  # noqa: PLC0415 - only who uses it needs it

    frame = _as_arrow(given, states=False).to_pandas()
    frame["state"] = pd.Series([each.state for each in given], dtype=object)
    return frame


def read_result(returned: Any, given: Sequence[Given]) -> list[Any]:
    """Return the next state of each message, or the exception that its row asks for.

    Args:
        returned: None leaves all states as they are. Otherwise a table with a row for each
            message, in their order, or in any with a column ``message_id``. The state is the column
            ``state``; without one, all other columns as one object. A text in the column ``poison``
            sets the message aside, one in ``retry`` has it tried again.
        given: The messages.

    Raises:
        ValueError: The rows are not those of the messages.
        TypeError: It is no table.
    """
    if returned is None:
        return [each.state for each in given]
    columns, objects = _columns(returned)
    rows = _in_order(columns, given)
    verdicts = {name: columns.pop(name, None) for name in _VERDICTS}
    columns.pop("message_id", None)
    results: list[Any] = []
    for each, row in zip(given, rows, strict=True):
        said = {name: _text(values, row) for name, values in verdicts.items()}
        if said["poison"]:
            results.append(Poison(said["poison"]))
        elif said["retry"]:
            results.append(Retry(reason=said["retry"]))
        else:
            results.append(_state(columns, row, each.state, objects=objects))
    return results


def _columns(returned: Any) -> tuple[dict[str, Sequence[Any]], bool]:
    """Return the columns as lists, and whether states are objects rather than JSON text."""
    if isinstance(returned, pa.RecordBatch | pa.Table):
        return returned.to_pydict(), False
    if isinstance(returned, pa.Array | pa.ChunkedArray):
        return {"state": returned.to_pylist()}, False
    if hasattr(returned, "to_frame") and not hasattr(returned, "columns"):
        returned = returned.to_frame("state")
    if not hasattr(returned, "columns"):
        raise TypeError(
            f"a stage for batches returns a table, or None; not {type(returned).__name__}"
        )
    found: dict[str, Sequence[Any]] = {}
    for name in returned.columns:
        series = returned[name]
        if series.dtype == object:
            found[str(name)] = series.tolist()
        else:
            # As Python's own numbers and times, and None for what is missing.
            found[str(name)] = pa.Array.from_pandas(series).to_pylist()
    return found, True


def _in_order(columns: Mapping[str, Sequence[Any]], given: Sequence[Given]) -> Sequence[int]:
    """Return which row is that of each message."""
    count = len(next(iter(columns.values()), ()))
    ids = columns.get("message_id")
    if ids is None:
        if count != len(given):
            raise ValueError(
                f"the stage was given {count_of(len(given), 'message')} and returned "
                f"{count_of(count, 'row')}"
            )
        return range(count)
    places = {message_id: place for place, message_id in enumerate(ids)}
    try:
        return [places[each.message.id] for each in given]
    except KeyError as missing:
        raise ValueError(f"the stage returned no row for message {missing.args[0]}") from None


def _text(values: Sequence[Any] | None, row: int) -> str:
    """Return what a verdict says; nothing, or not a number, is none."""
    value = None if values is None else values[row]
    return value if isinstance(value, str) else ""


def _state(columns: Mapping[str, Sequence[Any]], row: int, before: Any, *, objects: bool) -> Any:
    if not columns:
        return before
    if "state" not in columns:
        return {name: values[row] for name, values in columns.items()}
    value = columns["state"][row]
    if isinstance(value, str) and not objects:
        return json.loads(value)
    return value
