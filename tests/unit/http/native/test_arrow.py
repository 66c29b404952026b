"""Arrow: members of a claim read, messages staged, and what is no Arrow."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pytest

from leasehold.domain.claims import MemberColumns, ReadClaim
from leasehold.domain.limits import WEEK_S
from leasehold.domain.model import id_to_blob
from leasehold.domain.transactions import AlikePuts, Stage
from leasehold.http.native import arrow, call, streams
from tests.unit.http.native.support import BASE, QUEUE, Answer, Native
from tests.unit.http.native.test_streams import STREAM, attach, claim

ARROW: Final = call.ARROW.decode()
_ACCEPT: Final = {"accept": f"{ARROW}, application/json;q=0.5"}
_CONTENT: Final = {"content-type": ARROW}
_STAGE: Final = f"{BASE}/transactions/batch/stage"
_BODIES: Final = pa.table({"body": [b"one", b"two"]})


def read(native: Native, query: str = "") -> tuple[pa.Table, str | None]:
    """Read members, and return them with the place to go on from."""
    path = f"{STREAM}/claims/1/messages"
    answer = native.send("GET", path, query=query, headers=_ACCEPT)
    assert (answer.status, answer.headers["content-type"]) == (200, ARROW)
    with pa.ipc.open_stream(answer.body) as stream:
        batches = list(stream)
    assert len(batches) == 1
    return pa.Table.from_batches(batches), answer.headers.get("leasehold-next-after")


def written(table: pa.Table, **options: Any) -> bytes:
    """Return a table as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def stage(native: Native, content: bytes, query: str = "part=a&chunk=0&queue=orders") -> Answer:
    """Stage a stream."""
    return native.send("POST", _STAGE, content, query=query, headers=_CONTENT)


def staged(native: Native) -> Any:
    """Return the last messages that were staged."""
    return [each for each in native.commands if isinstance(each, Stage)][-1].puts


# --- reading a claim -----------------------------------------------------------------------------


def test_members(native: Native) -> None:
    """Members come with all their columns, and nulls where there is nothing."""
    [first, _] = native.put_bodies("one", "two", time_to_live_s=60)
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    native.put_bodies(
        "three",
        time_to_live_s=-1,
        priority=9,
        type="t",
        properties={"k": "v"},
        traceparent=trace,
        group_id="acme",
    )
    claim(native, attach(native))
    table, after = read(native)
    assert after is None
    assert table.schema == arrow.MEMBERS
    rows = table.to_pylist()
    now = rows[0]["inserted_at"]
    assert now.timestamp() * 1_000 == native.clock.now_ms()
    assert rows[0] == {
        "message_id": first["id"],
        "body": b"one",
        "inserted_at": now,
        "expires_at": rows[0]["expires_at"],
        "visible_since": now,
        "dequeue_count": 1,
        "fence": rows[0]["fence"],
        "priority": 8,
        "message_type": None,
        "traceparent": None,
        "properties": [],
        "group_id": None,
    }
    assert rows[0]["expires_at"].timestamp() - now.timestamp() == 60
    assert rows[2]["expires_at"] is None
    assert (rows[2]["priority"], rows[2]["message_type"]) == (9, "t")
    assert rows[2]["group_id"] == "acme"
    assert (rows[2]["traceparent"], rows[2]["properties"]) == (trace, [("k", "v")])


def test_pages(native: Native) -> None:
    """The header says where to go on, and is left out at the end of a part."""
    native.put_bodies(*"abcdef")
    claim(native, attach(native))
    table, after = read(native, "part=0&parts=2&limit=2")
    assert (table["body"].to_pylist(), after is None) == ([b"a", b"b"], False)
    table, after = read(native, f"part=0&parts=2&limit=2&after={after}")
    assert (table["body"].to_pylist(), after) == ([b"c"], None)


def test_an_empty_part(native: Native) -> None:
    """A part without members is a table without rows."""
    native.put_bodies("x")
    claim(native, attach(native))
    table, _ = read(native, "part=0&parts=3")
    assert (table.num_rows, table.schema) == (0, arrow.MEMBERS)


def test_steps_are_one_batch(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps it takes to read them, the members are one batch."""
    native.put_bodies(*"abcdef")
    claim(native, attach(native))
    monkeypatch.setattr(streams, "_FIRST_STEP", 2)
    monkeypatch.setattr(streams, "_LONGEST_STEP", 2)
    table, _ = read(native)
    assert b"".join(table["body"].to_pylist()) == b"abcdef"


def test_columns_of_a_store(native: Native) -> None:
    """A store that gives columns out, and not messages, leads to the same table."""
    native.put_bodies("one", "two", time_to_live_s=60)
    native.put_bodies("three", time_to_live_s=-1)
    claim(native, attach(native))
    expected, _ = read(native)
    perform = native.perform

    async def in_columns(command: Any) -> Any:
        page: Any = await perform(command)
        if not isinstance(command, ReadClaim):
            return page
        assert command.columns
        messages = page.messages
        return MemberColumns(
            b"".join([id_to_blob(each.message_id) for each in messages]),
            [len(each.body) for each in messages],
            [b"".join([each.body for each in messages])],
            [each.inserted_at_ms for each in messages],
            [each.expires_at_ms for each in messages],
            [each.visible_since_ms for each in messages],
            [each.dequeue_count for each in messages],
            [each.fence for each in messages],
            [each.priority for each in messages],
            page.next_after,
        )

    native.change_services(perform=in_columns)
    assert read(native)[0].equals(expected)
    page, after = read(native, "limit=2")
    assert (page.num_rows, after is None) == (2, False)


def test_a_store_may_have_nothing_in_columns() -> None:
    """No members are a batch of no rows."""
    empty = MemberColumns(b"", (), (), 0, 0, 0, 0, 0, 0, None)
    table = pa.ipc.open_stream(arrow.write_members([empty])).read_all()
    assert (table.num_rows, table.schema) == (0, arrow.MEMBERS)


def test_pages_are_one_batch_however_their_columns_are_told() -> None:
    """One number for all members of a page, or one for each, the same as in other pages or not."""
    alike = MemberColumns(b"i" * 32, (1, 2), (b"abb",), 1000, 9000, 1000, 1, 5, 8, "on")
    later = alike._replace(inserted_at_ms=2000, dequeue_counts=[1, 2])
    pages = [alike, alike._replace(sizes=(2, 1), bodies=(b"aa", b"b")), later]
    table = pa.ipc.open_stream(arrow.write_members(pages)).read_all()
    single = [pa.ipc.open_stream(arrow.write_members([page])).read_all() for page in pages]
    assert table.equals(pa.concat_tables(single).combine_chunks())
    assert table.column("body").to_pylist() == [b"a", b"bb", b"aa", b"b", b"a", b"bb"]
    assert table.column("dequeue_count").to_pylist() == [1, 1, 1, 1, 1, 2]


def test_json_is_not_asked_for_in_columns(native: Native) -> None:
    """Who does not ask for Arrow gets JSON."""
    native.put_bodies("x")
    claim(native, attach(native))
    path = f"{STREAM}/claims/1/messages"
    for accept in ("application/json", "*/*", "application/vnd.apache.arrow.file"):
        answer = native.send("GET", path, headers={"accept": accept})
        assert answer.headers["content-type"] == "application/json"


# --- staging -------------------------------------------------------------------------------------


def test_stage(native: Native) -> None:
    """The plainest table has bodies only; all else has its default."""
    answer = stage(native, written(_BODIES))
    assert answer.json == {"rows": 2, "chunks": 1, "duplicate": False}
    first, second = staged(native)
    assert (first.account, first.queue, first.body) == ("devstoreaccount1", "orders", b"one")
    assert (first.delay_s, first.time_to_live_s, first.priority) == (0, WEEK_S, 8)
    assert second.body == b"two"
    assert len(first.entropy) == 10
    assert first.entropy != second.entropy
    assert stage(native, written(_BODIES)).json["duplicate"]


@pytest.mark.parametrize(
    ("columns", "alike"),
    [
        ({}, True),
        ({"delay_s": [3, 3], "time_to_live_s": [-1, -1], "priority": [4, 4]}, True),
        ({"delay_s": [3, 4]}, False),
        ({"delay_s": pa.array([3, None], pa.int32())}, False),
        ({"message_type": ["t", "t"]}, False),
    ],
)
def test_messages_that_differ_by_their_bodies_alone(
    native: Native, columns: Mapping[str, Any], alike: bool
) -> None:
    """They are handed on as such, and say the same as others."""
    table = pa.table({"body": [b"one", b"x" * 300], **columns})
    assert stage(native, written(table)).status == 200
    puts = staged(native)
    assert isinstance(puts, AlikePuts) is alike
    assert [put.body for put in puts] == [b"one", b"x" * 300]
    assert [put.delay_s for put in puts] == [each or 0 for each in table_values(table, "delay_s")]
    last = puts[-1]
    assert last.time_to_live_s == (None if "time_to_live_s" in columns else WEEK_S)
    assert last.priority == (4 if "priority" in columns else 8)
    assert puts[0].entropy != last.entropy


def table_values(table: pa.Table, name: str) -> list[Any]:
    """Return a column, or nulls where there is none."""
    return table[name].to_pylist() if name in table.column_names else [None] * len(table)


_FULL: Final = {
    "body": pa.array(["é", "", None, "x"]).fill_null("-"),
    "queue": ["orders", None, "parcels", "orders"],
    "delay_s": pa.array([5, None, 0, 1], pa.int16()),
    "time_to_live_s": pa.array([-1, 60, None, 9], pa.int64()),
    "priority": pa.array([1, None, 16, 8], pa.uint8()),
    "message_type": ["t", None, None, None],
    "traceparent": [None, f"00-{'a' * 32}-{'b' * 16}-01", None, None],
    "properties": pa.array(
        [[("k", "v"), ("l", "w")], None, [], None], pa.map_(pa.string(), pa.string())
    ),
    "dedup_key": ["k", "k", None, "é"],
}


def test_stage_everything(native: Native) -> None:
    """Each column says what it says in JSON; a null is the default."""
    native.send("PUT", f"{BASE}/queues/parcels")
    query = "part=&chunk=0&timeout_s=99&queue=orders"
    assert stage(native, written(pa.table(_FULL)), query).status == 200
    command = [each for each in native.commands if isinstance(each, Stage)][-1]
    assert (command.part, command.timeout_s) == ("", 99)
    puts = command.puts
    assert [put.body for put in puts] == ["é".encode(), b"", b"-", b"x"]
    assert [put.queue for put in puts] == ["orders", "orders", "parcels", "orders"]
    assert [put.delay_s for put in puts] == [5, 0, 0, 1]
    assert [put.time_to_live_s for put in puts] == [None, 60, WEEK_S, 9]
    assert [put.priority for put in puts] == [1, 8, 16, 8]
    assert [put.detail.message_type for put in puts] == ["t", None, None, None]
    assert puts[1].detail.traceparent == _FULL["traceparent"][1]
    assert [put.detail.properties for put in puts] == [{"k": "v", "l": "w"}, {}, {}, {}]
    assert [put.detail.dedup_key for put in puts] == ["k", "k", None, "é"]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str
)
def test_types_of_bodies(native: Native, kind: Any) -> None:
    """Bodies may be bytes or text, and may begin in the middle of a buffer."""
    table = pa.table({"body": pa.array(["one", "two", "", "four"], kind)}).slice(1)
    assert stage(native, written(table)).status == 200
    assert [put.body for put in staged(native)] == [b"two", b"", b"four"]


def test_a_trace_of_the_request(native: Native) -> None:
    """Messages that bring no trace have that of the request."""
    trace = f"00-{'c' * 32}-{'d' * 16}-01"
    headers = {**_CONTENT, "traceparent": trace}
    table = pa.table({"body": ["a", "b"], "message_type": ["t", None]})
    query = "part=&chunk=0&queue=orders"
    native.send("POST", _STAGE, written(table), query=query, headers=headers)
    assert {put.detail.traceparent for put in staged(native)} == {trace}


def test_several_batches(native: Native) -> None:
    """A stream may have several batches; rows are counted over all of them."""
    bodies = pa.chunked_array([["a", "b"], [], ["c"]], pa.string())
    table = pa.table({"body": bodies, "delay_s": pa.chunked_array([[0, 1], [], [-1]])})
    answer = stage(native, written(table))
    assert (answer.code, answer.json["field"]) == ("out-of-range", "delay_s[2]")
    assert stage(native, written(table.drop(["delay_s"]))).status == 200
    assert [put.body for put in staged(native)] == [b"a", b"b", b"c"]


def test_no_rows(native: Native) -> None:
    """A part can have no messages, in a stream with an empty batch or none."""
    empty = _BODIES.schema.empty_table()
    assert stage(native, written(empty)).json == {"rows": 0, "chunks": 1, "duplicate": False}
    batch = pa.record_batch([pa.array([], pa.binary())], names=["body"])
    table = pa.Table.from_batches([batch])
    query = "part=b&chunk=0&queue=orders"
    assert stage(native, written(table), query).json["rows"] == 0


def test_media_types(native: Native) -> None:
    """The media type may have parameters and capitals; anything else is taken as JSON."""
    for kind, status in ((f"{ARROW.upper()}; v=1", 200), ("text/plain", 400), (f"x{ARROW}", 400)):
        headers, query = {"content-type": kind}, f"part={status}&chunk=0&queue=orders"
        answer = native.send("POST", _STAGE, written(_BODIES), query=query, headers=headers)
        assert answer.status == status, kind


@pytest.mark.parametrize(
    ("columns", "code", "field"),
    [
        ({"body": ["x", None]}, "invalid-request", "body[1]"),
        ({"body": ["", "x" * 65_537]}, "body-too-large", "body[1]"),
        ({"body": ["x"], "delay_s": [-1]}, "out-of-range", "delay_s[0]"),
        ({"body": ["x"], "delay_s": [1.5]}, "invalid-request", "delay_s"),
        ({"body": ["x"], "delay_s": [True]}, "invalid-request", "delay_s"),
        ({"body": ["x"], "time_to_live_s": [0]}, "out-of-range", "time_to_live_s[0]"),
        ({"body": ["x"], "priority": [17]}, "out-of-range", "priority[0]"),
        ({"body": ["x"], "message_type": [""]}, "out-of-range", "message_type[0]"),
        ({"body": ["x"], "message_type": ["x" * 1_025]}, "out-of-range", "message_type[0]"),
        ({"body": ["x"], "traceparent": ["x"]}, "invalid-request", "traceparent[0]"),
        ({"body": ["x"] * 2, "dedup_key": ["a", ""]}, "out-of-range", "dedup_key[1]"),
        ({"body": ["x"], "dedup_key": ["x" * 1_025]}, "out-of-range", "dedup_key[0]"),
        ({"body": ["x"], "dedup_key": [1]}, "invalid-request", "dedup_key"),
        ({"body": ["x"], "queue": ["A_"]}, "invalid-queue-name", "queue"),
        ({"body": ["x"], "queue": [b"orders"]}, "invalid-request", "queue"),
        ({"body": ["x"], "queue": ["nowhere"]}, "queue-not-found", None),
        ({"body": [1]}, "invalid-request", "body"),
        ({"body": pa.array(["x"], pa.string_view())}, "invalid-request", "body"),
        ({"body": pa.array(["x"]).dictionary_encode()}, "invalid-request", "body"),
        ({"text": ["x"]}, "invalid-request", "text"),
        ({"queue": ["orders"]}, "invalid-request", "body"),
        ({"body": ["x"], "x" * 200: [1]}, "invalid-request", "x" * 100 + "…"),
        ({"body": ["x"] * 10_001}, "out-of-range", "rows"),
        (
            {
                "body": ["x"],
                "properties": pa.array([[("a", "x" * 8_192)]], pa.map_(pa.string(), pa.string())),
            },
            "out-of-range",
            "properties[0]",
        ),
        (
            {
                "body": ["x"],
                "properties": pa.array([[("a", "")] * 250_001], pa.map_(pa.string(), pa.string())),
            },
            "invalid-request",
            "properties",
        ),
        (
            {"body": ["x"], "properties": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))},
            "invalid-request",
            "properties",
        ),
    ],
)
def test_refused_tables(
    native: Native, columns: Mapping[str, Any], code: str, field: str | None
) -> None:
    """What will not do is refused with its column and its row, and nothing is staged."""
    answer = stage(native, written(pa.table(columns)))
    assert (answer.code, answer.json.get("field")) == (code, field)
    assert native.get(f"{QUEUE}/counts")["staged"] == 0


def test_properties_are_counted_over_all_batches(native: Native) -> None:
    """Many batches of properties are as many as one; at the limit they are still read."""
    maps = pa.map_(pa.string(), pa.string())
    row = [(f"{number:x}", "") for number in range(2_000)]

    def staged_in(*batches: int) -> Answer:
        tables = [
            pa.record_batch({"body": ["x"] * count, "properties": pa.array([row] * count, maps)})
            for count in batches
        ]
        return stage(native, written(pa.Table.from_batches(tables)))

    refused = staged_in(50, 50, 26)
    assert (refused.code, refused.json["field"]) == ("invalid-request", "properties")
    assert native.get(f"{QUEUE}/counts")["staged"] == 0
    assert staged_in(50, 50, 25).status == 200


def test_a_repeated_property_is_refused(native: Native) -> None:
    """Which of the two is meant cannot be told, so neither is dropped."""
    maps = pa.map_(pa.string(), pa.string())
    rows = [[("a", "1")], [("a", "1"), ("b", "2"), ("a", "3")]]
    table = pa.table({"body": ["x", "y"], "properties": pa.array(rows, maps)})
    answer = stage(native, written(table))
    assert (answer.code, answer.json["field"]) == ("invalid-request", "properties[1]")
    assert "'a' is repeated" in answer.json["detail"]


def test_the_limit_is_that_of_each_queue(native: Native) -> None:
    """A queue that takes larger bodies takes them in Arrow, too, and no other does."""
    settings = {"settings": {"max_body_bytes": 100_000}}
    native.send("PUT", f"{BASE}/queues/large", settings)
    bodies = ["x" * 100_000, "x"]
    table = pa.table({"body": bodies, "queue": ["large", "orders"]})
    assert stage(native, written(table), "part=&chunk=0").status == 200
    answer = stage(native, written(pa.table({"body": bodies})))
    assert (answer.code, answer.json["limit"]) == ("body-too-large", 65_536)


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("chunk=0&queue=orders", "invalid-request", "part"),
        ("part=a&queue=orders", "invalid-request", "chunk"),
        ("part=a&chunk=&queue=orders", "invalid-request", "chunk"),
        ("part=a&chunk=-1&queue=orders", "out-of-range", "chunk"),
        ("part=a&chunk=0&queue=A_", "invalid-queue-name", "queue"),
        ("part=a&chunk=0", "invalid-request", "queue[0]"),
        ("part=a&chunk=0&queue=orders&timeout_s=0", "out-of-range", "timeout_s"),
        (f"part={'x' * 257}&chunk=0&queue=orders", "out-of-range", "part"),
        ("part=a&chunk=1&queue=orders", "chunk-out-of-turn", None),
    ],
)
def test_refused_queries(native: Native, query: str, code: str, field: str | None) -> None:
    """What stands in the query is checked as it is in JSON."""
    answer = stage(native, written(_BODIES), query)
    assert (answer.code, answer.json.get("field")) == (code, field)


def test_a_column_of_queues_must_be_whole_without_a_default(native: Native) -> None:
    """Each message has a queue, its own or that of the query."""
    table = pa.table({"body": ["a", "b"], "queue": ["orders", None]})
    answer = stage(native, written(table), "part=a&chunk=0")
    assert answer.json["field"] == "queue[1]"


# --- what is no Arrow ----------------------------------------------------------------------------


def _twice() -> bytes:
    schema = pa.schema([("body", pa.string()), ("body", pa.string())])
    return written(pa.table([["a"], ["b"]], schema=schema))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"ARROW1\x00\x00",
        b'{"messages": []}',
        b"\xff" * 1_000,
        written(_BODIES)[:-20],
        written(_BODIES)[40:],
        written(_BODIES, compression="zstd"),
        written(_BODIES, compression="lz4"),
        _twice(),
        written(pa.table({"body": pa.chunked_array([["x"]] * 1_001)})),
        written(_BODIES.replace_schema_metadata({"x": "y" * 2**20})),
    ],
)
def test_refused_streams(native: Native, content: bytes) -> None:
    """What is no stream, or one that could stand for much more than it has, is refused."""
    answer = stage(native, content)
    assert answer.code == "invalid-request"
    assert len(str(answer.json)) < 1_000


def test_text_that_is_none(native: Native) -> None:
    """A stream whose text is not UTF-8 is refused before anything is made of it."""
    content = written(pa.table({"body": ["x"], "message_type": ["abcdefgh"]}))
    answer = stage(native, content.replace(b"abcdefgh", b"abc\xffefgh"))
    assert answer.code == "invalid-request"
    assert "UTF8" in answer.json["detail"]


def test_damaged_streams(native: Native) -> None:
    """Whatever becomes of its bytes, a stream is staged or refused, and the server lives."""
    rng = random.Random(1)
    good = written(pa.table({**_FULL, "queue": ["orders"] * 4}))
    seen = set()
    for number in range(400):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(damaged))
            damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        query = f"part={number}&chunk=0&queue=orders"
        seen.add(stage(native, bytes(damaged), query).status)
    assert seen <= {200, 400, 404, 413}
    assert {200, 400} <= seen


@pytest.fixture
def no_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make as if the library were not installed."""
    monkeypatch.setattr(call, "_LOADED", {})
    monkeypatch.delitem(sys.modules, "leasehold.http.native.arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)


@pytest.mark.usefixtures("no_arrow")
def test_without_the_library(native: Native) -> None:
    """Where Arrow is not installed the answer says so, and JSON goes on."""
    native.put_bodies("x")
    claim(native, attach(native))
    path = f"{STREAM}/claims/1/messages"
    answer = native.send("GET", path, headers=_ACCEPT)
    assert (answer.status, answer.code) == (406, "arrow-not-installed")
    assert "'.[arrow]'" in answer.json["remedy"]
    answer = stage(native, written(_BODIES))
    assert (answer.status, answer.code) == (415, "arrow-not-taken")
    assert len(native.get(path)["messages"]) == 1


def test_much_is_read_on_a_thread(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large stream is read where it holds up nobody; a small one at once."""
    threads: list[str] = []
    read = arrow.read_puts

    def recording(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read(*given)

    monkeypatch.setattr(arrow, "read_puts", recording)
    large = pa.table({"body": [b"x" * 1_000] * 200})
    assert stage(native, written(large)).json["rows"] == 200
    assert threads[0].startswith("bodies")
    assert stage(native, written(large.slice(0, 1)), "part=b&chunk=0&queue=orders").status == 200
    assert threads[1] == threading.current_thread().name
