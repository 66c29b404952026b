"""The protocol of tasks and driver, against a server and without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from leasehold.client import Client
from leasehold.spark import sink
from leasehold.spark.connection import TaskIdentity, transaction_name
from leasehold.spark.options import BadOption, write_options
from leasehold.spark.sink import BatchWriter, StagedRowsGone, StreamWriter, TaskDone
from leasehold.testing import InProcessServer
from tests.unit.spark.sink.tables import table_of

SCHEMA = table_of("body string")
Task: TypeAlias = Callable[..., None]


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    with InProcessServer() as started:
        with started.client() as client:
            client.queue("orders").create()
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    with server.client() as made:
        yield made


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Say which task this is."""

    def say(task: int, *, run: str = "r1", batch: int = 0, query: str | None = "q") -> None:
        identity = TaskIdentity(
            query_id=query, batch_id=batch, run_id=run, partition=0, attempt=0, task=task
        )
        monkeypatch.setattr(sink, "current_task", lambda: identity)

    return say


def rows(*bodies: str) -> Iterator[pa.RecordBatch]:
    for body in bodies:
        yield pa.RecordBatch.from_pydict({"body": [body]})


def failing(*bodies: str) -> Iterator[pa.RecordBatch]:
    yield from rows(*bodies)
    raise ArithmeticError("the query has failed")


def given(server: InProcessServer, **more: str) -> Any:
    return write_options(
        {"connectionString": server.connection_string, "queueName": "orders", **more}
    )


def stream(server: InProcessServer, **more: str) -> StreamWriter:
    writer = sink.stream_writer(given(server, **more), SCHEMA, overwrite=False)
    assert isinstance(writer, StreamWriter)
    return writer


def table(server: InProcessServer, **more: str) -> BatchWriter:
    writer = sink.batch_writer(given(server, **more), SCHEMA, overwrite=False)
    assert isinstance(writer, BatchWriter)
    return writer


def visible(client: Client) -> list[str]:
    return sorted(each.text for each in client.queue("orders").inspect(states=["visible"]))


def staged(client: Client) -> int:
    return client.queue("orders").counts().staged


NAME = transaction_name("q", 0)


def test_nothing_is_seen_before_the_commit(
    server: InProcessServer, client: Client, be: Task
) -> None:
    """Rows of tasks are staged, and visible together once the driver publishes them."""
    writer = stream(server)
    be(0)
    first = writer.write(rows("a", "b"))
    be(1)
    second = writer.write(rows("c"))
    assert (visible(client), staged(client)) == ([], 3)
    stream(server).commit([first, second], 0)
    assert (visible(client), staged(client)) == (["a", "b", "c"], 0)
    assert first == TaskDone(NAME, "0.r1.0", 2)


def test_only_winners_are_published(server: InProcessServer, client: Client, be: Task) -> None:
    """What an attempt has staged that is not in the messages is dropped by the commit."""
    writer = stream(server)
    be(0)
    writer.write(rows("lost"))
    be(1)
    won = writer.write(rows("a"))
    writer.commit([won], 0)
    assert (visible(client), staged(client)) == (["a"], 0)


def test_replayed_batch_publishes_nothing_twice(
    server: InProcessServer, client: Client, be: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that is run again after it was published drops its rows and leaves nothing staged."""
    be(0)
    writer = stream(server)
    writer.commit([writer.write(rows("a"))], 0)
    be(0, run="r2")
    again = stream(server)
    done = again.write(rows("a"))
    again.commit([done], 0)
    assert done.already
    assert (visible(client), staged(client)) == (["a"], 0)
    assert "micro-batch 0 was published before, as spark.q.0 with 1 row" in caplog.text


def test_a_lost_answer_is_no_reason_for_a_warning(
    server: InProcessServer, be: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was dropped when only the publishing was repeated."""
    be(0)
    writer = stream(server)
    done = writer.write(rows("a"))
    writer.commit([done], 0)
    writer.commit([done], 0)
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["a/b", "a b", "x" * 201])
def test_a_name_for_a_stream_is_not_changed(server: InProcessServer, name: str) -> None:
    """What cannot be part of a transaction's name is refused: another form of it could be that of
    another query, whose batches would be taken for those of this one."""
    with pytest.raises(BadOption, match="txnAppId"):
        stream(server, txnAppId=name)


def test_replay_drops_what_a_dead_run_left(
    server: InProcessServer, client: Client, be: Task
) -> None:
    """A run that died after staging leaves rows that the next run's commit drops."""
    be(0)
    stream(server).write(rows("a"))
    be(0, run="r2")
    writer = stream(server)
    writer.commit([writer.write(rows("a"))], 0)
    assert (visible(client), staged(client)) == (["a"], 0)


def test_two_runs_that_both_staged_publish_once(
    server: InProcessServer, client: Client, be: Task
) -> None:
    """Of a driver believed dead and its successor the first to commit wins, whole."""
    writer = stream(server)
    be(0)
    old = writer.write(rows("a"))
    be(0, run="r2")
    new = writer.write(rows("a"))
    writer.commit([old], 0)
    writer.commit([new], 0)
    assert (visible(client), staged(client)) == (["a"], 0)


def test_zombie_is_turned_away(server: InProcessServer, client: Client, be: Task) -> None:
    """An attempt that goes on after the commit stages nothing more, and does not fail."""
    writer = stream(server)

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows("b")
        be(1)
        writer.commit([writer.write(rows("a"))], 0)
        yield from rows("c")

    be(0)
    options = stream(server, stageRows="1")
    done = options.write(slow())
    assert done.already
    assert done.rows == 0
    assert (visible(client), staged(client)) == (["a"], 0)


def test_publishing_wins_over_abort(server: InProcessServer, client: Client, be: Task) -> None:
    """An abort after a commit whose answer was lost takes nothing back."""
    be(0)
    for writer in (stream(server), table(server), table(server, txnId="once")):
        done: Any = writer.write(rows("a"))
        writer.commit([done], 0) if isinstance(writer, StreamWriter) else writer.commit([done])
        writer.abort([done], 0) if isinstance(writer, StreamWriter) else writer.abort([done])
    assert (visible(client), staged(client)) == (["a", "a", "a"], 0)


def test_commit_is_repeated_until_it_is_answered(
    server: InProcessServer, client: Client, be: Task
) -> None:
    """A commit whose answer is lost is asked again, and publishes once."""
    be(0)
    writer = stream(server)
    done = writer.write(rows("a"))
    server.faults.drop_answers(2)
    writer.commit([done], 0)
    assert (visible(client), staged(client)) == (["a"], 0)


def test_abort_drops_what_was_staged(server: InProcessServer, client: Client, be: Task) -> None:
    """After an abort nothing is staged, and the batch can be run again."""
    be(0)
    writer = stream(server)
    writer.abort([writer.write(rows("a")), None], 0)
    assert staged(client) == 0
    be(0, run="r2")
    writer.commit([writer.write(rows("a"))], 0)
    assert visible(client) == ["a"]


def test_failed_task_drops_its_rows(server: InProcessServer, client: Client, be: Task) -> None:
    """A task that fails half way cleans up after itself."""
    be(0)
    with pytest.raises(ArithmeticError):
        stream(server, stageRows="1").write(failing("a", "b"))
    assert staged(client) == 0


def test_failed_batch_closes_its_name(server: InProcessServer, client: Client, be: Task) -> None:
    """After a job has failed, tasks of it that still run can stage nothing."""
    writer = table(server)
    be(0)
    writer.write(rows("lost"))
    writer.abort([None])
    be(1)
    assert writer.write(rows("late")).already
    assert (visible(client), staged(client)) == ([], 0)


def test_failed_batch_can_be_repeated_under_its_name(
    server: InProcessServer, client: Client, be: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """With txnId a job that failed can be run again, and one that succeeded does nothing, and says
    so."""
    be(0)
    first = table(server, txnId="import")
    first.abort([first.write(rows("a"))])
    for _ in range(2):
        again = table(server, txnId="import")
        again.commit([again.write(rows("a"))])
    assert (visible(client), staged(client)) == (["a"], 0)
    assert [each.message for each in caplog.records] == [
        "nothing is sent: published before under txnId import: 1 row"
    ]


def test_jobs_of_one_name_do_not_mix(server: InProcessServer, client: Client, be: Task) -> None:
    """Two jobs under one name have parts of their own, although their tasks have one number."""
    be(0)
    first, second = table(server, txnId="import"), table(server, txnId="import")
    ours, theirs = first.write(rows("ours")), second.write(rows("theirs"))
    second.commit([theirs])
    first.commit([ours])
    assert (visible(client), staged(client)) == (["theirs"], 0)


def test_empty_batch_is_published_by_name(
    server: InProcessServer, client: Client, be: Task
) -> None:
    """A micro-batch without rows publishes its name, which is what claims are bound to."""
    be(0)
    writer = stream(server)
    done = writer.write(rows())
    assert done.rows == 0
    writer.commit([done], 0)
    assert client.transaction(NAME).get().state == "published"


def test_batch_without_tasks_does_nothing(server: InProcessServer, client: Client) -> None:
    """Without a task that has finished nobody knows the query, and there is nothing to do."""
    stream(server).commit([], 0)
    stream(server).abort([None], 0)
    table(server).commit([])
    assert client.transactions() == []


def test_batches_have_names_of_their_own(server: InProcessServer, client: Client, be: Task) -> None:
    """The next micro-batch is another transaction; txnAppId stands in for the query's id."""
    for batch, options in ((0, {}), (1, {}), (1, {"txnAppId": "totals"})):
        be(0, batch=batch)
        writer = stream(server, **options)
        writer.commit([writer.write(rows("a"))], batch)
    assert visible(client) == ["a", "a", "a"]
    names = [each.name for each in client.transactions()]
    assert names == ["spark.q.0", "spark.q.1", "spark.totals.1"]


def test_rows_that_vanished_are_an_error(server: InProcessServer, client: Client, be: Task) -> None:
    """A commit of rows that are not staged any more fails with the reason, and publishes none."""
    be(0)
    writer = stream(server)
    done = writer.write(rows("a"))
    client.transaction(NAME).discard()
    with pytest.raises(StagedRowsGone, match="stagingTimeout"):
        writer.commit([done], 0)
    assert visible(client) == []


def test_writers_travel(server: InProcessServer, client: Client, be: Task) -> None:
    """A writer is pickled once and serves tasks and driver under one name."""
    be(0)
    writer = pickle.loads(pickle.dumps(table(server)))
    done = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(rows("a"))))
    writer.commit([done])
    assert visible(client) == ["a"]


@pytest.mark.parametrize(
    ("kind", "options", "overwrite", "text"),
    [
        ("batch", {}, True, "not overwritten"),
        ("stream", {}, True, "not overwritten"),
        ("batch", {"txnAppId": "a"}, False, "txnAppId is for streams"),
        ("stream", {"txnId": "a"}, False, "txnId is for batches"),
        ("batch", {"txnId": "a b"}, False, "option txnId: 'a b'"),
    ],
)
def test_writes_that_are_refused(
    kind: str, options: dict[str, str], overwrite: bool, text: str
) -> None:
    """What cannot be done is refused before anything is read or written."""
    make: Any = sink.batch_writer if kind == "batch" else sink.stream_writer
    with pytest.raises(BadOption, match=text):
        make(write_options({"queueName": "orders", **options}), SCHEMA, overwrite)
