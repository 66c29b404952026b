"""Bodies that are kept elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.testing import ManualClock
from leasehold.worker.errors import Poison
from leasehold.worker.payloads import (
    CheckedReader,
    ClaimCheck,
    ClaimCheckCodec,
    ClaimCheckProblem,
    CodecProblem,
    Compressed,
    JsonCodec,
    KeptBody,
    TextCodec,
)
from leasehold.worker.payloads.claim_check import read_reference, without_credentials

LARGE = b"0123456789" * 20


@pytest.fixture(params=["file", "memory"])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClaimCheck]:
    url = str(tmp_path / "bodies") if request.param == "file" else "memory://bodies/of/tests"
    yield ClaimCheck(url, threshold_bytes=100, max_bytes=100_000)
    memory: Any = import_module("fsspec").filesystem("memory")  # it comes without types
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def objects(check: ClaimCheck) -> list[str]:
    return [path for path, _ in check._objects()]


def read_pieces(reader: CheckedReader) -> None:
    while reader.read(7):
        pass


def read_exactly(reader: CheckedReader, size: int) -> None:
    """Read as whoever knows the size does, without a look at what follows."""
    while size:
        size -= len(reader.read(size))


def overwrite(check: ClaimCheck, content: bytes) -> None:
    [path] = objects(check)
    with check._files.open(path, "wb") as file:
        file.write(content)


# --- keeping ------------------------------------------------------------------------------------


def test_large_bodies_are_kept_elsewhere(check: ClaimCheck) -> None:
    """A body over the threshold becomes a small reference, as documented."""
    sent = check.put(LARGE, "text/plain")
    digest = hashlib.sha256(LARGE).hexdigest()
    found = json.loads(sent)
    url = found.pop("url")
    assert found == {
        "leasehold.claim_check": 1,
        "size": 200,
        "sha256": digest,
        "content_type": "text/plain",
    }
    assert url.startswith(f"{check.root_url}/{digest[:2]}/{digest}-")
    assert check.fetch(sent) == LARGE
    assert len(objects(check)) == 1


@pytest.mark.parametrize("body", [b"", b"x" * 100])
def test_small_bodies_travel_with_their_message(check: ClaimCheck, body: bytes) -> None:
    """A body up to the threshold is itself."""
    assert check.put(body) is body
    assert check.fetch(body) == body
    assert check.open(body).read() == body
    assert not check.delete(body)
    assert objects(check) == []


def test_the_same_body_is_kept_for_each_message(check: ClaimCheck) -> None:
    """Each message has an object of its own, so that one can go without the other."""
    one, other = check.put(LARGE), check.put(LARGE)
    assert one != other
    assert check.delete(one)
    assert check.fetch(other) == LARGE


def test_what_was_kept_is_not_kept_again(check: ClaimCheck) -> None:
    """A reference that was made on purpose is sent as it is."""
    sent = check.put(LARGE)
    assert check.put(sent) is sent


def test_a_body_that_looks_like_a_reference_is_kept(check: ClaimCheck) -> None:
    """Otherwise its reader would follow it: what was sent comes back, here a reference."""
    body = bytes(check.put(LARGE))
    sent = check.put(body)
    assert sent != body
    assert check.fetch(sent) == body


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize("size", [0, 100, 101, 50_000])
def test_streams_are_kept(check: ClaimCheck, seekable: bool, size: int) -> None:
    """A stream is kept from where it stands, without being held in memory."""
    body = bytes(size % 251 for size in range(size))
    source = io.BytesIO(b"skipped" + body)
    source.seek(7)
    with mock.patch.object(source, "seekable", return_value=seekable):
        sent = check.put_stream(source, "video/mp4")
    assert isinstance(sent, KeptBody) == (size > 100)
    assert check.fetch(sent) == body
    with check.open(sent) as reader:
        assert b"".join(iter(lambda: reader.read(1000), b"")) == body


def test_a_stream_that_changes_is_refused(check: ClaimCheck) -> None:
    """A file that is written while it is kept leaves no object behind."""

    class Changing(io.BytesIO):
        def seek(self, place: int, whence: int = 0) -> int:
            self.getbuffer()[0] += 1
            return super().seek(place, whence)

    with pytest.raises(ValueError, match="changed while it was read"):
        check.put_stream(Changing(LARGE))
    assert objects(check) == []


@pytest.mark.parametrize("seekable", [True, False])
def test_what_is_over_the_limit_is_refused(check: ClaimCheck, seekable: bool) -> None:
    """Neither bodies nor streams over the limit are written."""
    with pytest.raises(ValueError, match="over the 100000 bytes"):
        check.put(bytes(100_001))
    source = io.BytesIO(bytes(10_000_000))
    with (
        mock.patch.object(source, "seekable", return_value=seekable),
        pytest.raises(ValueError, match="over the 100000 bytes"),
    ):
        check.put_stream(source)
    assert objects(check) == []


def test_what_cannot_be_written_is_an_error(check: ClaimCheck) -> None:
    """A failed write is the sender's to know, and leaves nothing."""
    opened = check._files.open

    def failing(path: str, mode: str) -> Any:
        file = opened(path, mode)
        file.write(b"half")
        file.write = mock.Mock(side_effect=OSError("disk full"))
        return file

    with (
        mock.patch.object(check._files, "open", failing),
        pytest.raises(OSError, match="disk full"),
    ):
        check.put(LARGE)
    assert objects(check) == []


def test_local_objects_are_on_disk_before_their_message(tmp_path: Path) -> None:
    """File and folders are synced: a loss of power cannot take the body of a sent message."""
    check = ClaimCheck(str(tmp_path / "bodies"), threshold_bytes=0)
    synced: list[str] = []

    def sync(number: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))

    with mock.patch("os.fsync", sync):
        check.put(b"x")
    [path] = objects(check)
    assert synced == [path, str(Path(path).parent), str(tmp_path / "bodies")]


# --- reading ------------------------------------------------------------------------------------


def test_nothing_is_fetched_before_it_is_asked_for(check: ClaimCheck) -> None:
    """The codec fetches when it decodes; a missing object is then poison, with the reason."""
    codec = ClaimCheckCodec(check, TextCodec())
    sent = codec.encode("x" * 1000)
    assert isinstance(sent, KeptBody)
    assert codec.decode(sent) == "x" * 1000
    assert codec.decode(codec.encode("short")) == "short"
    assert codec.content_type == json.loads(sent)["content_type"]
    check.delete(sent)
    with pytest.raises(Poison, match=r"claim check: no object (file|memory)://"):
        codec.decode(sent)


def test_trouble_of_the_storage_is_no_poison(check: ClaimCheck) -> None:
    """What may go better next time is an ordinary failure."""
    codec = ClaimCheckCodec(check)
    sent = codec.encode(LARGE)
    for trouble in (PermissionError("no"), OSError("slow down"), ValueError("closed")):
        with (
            mock.patch.object(check._files, "open", side_effect=trouble),
            pytest.raises(OSError, match=str(trouble)),
        ):
            codec.decode(sent)


def test_what_cannot_be_read_inside_is_the_codecs_problem(check: ClaimCheck) -> None:
    """A body that was fetched is read like any other, compressed ones as well."""
    codec = ClaimCheckCodec(check, Compressed(JsonCodec()))
    value = [str(number) for number in range(2000)]
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(CodecProblem, match="not JSON"):
        codec.decode(check.put(b"{" * 200))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (LARGE[:-1], "does not have the 200 bytes"),
        (LARGE + b"x", "does not have the 200 bytes"),
        (b"", "does not have the 200 bytes"),
        (b"X" + LARGE[1:], "digest differs"),
    ],
)
def test_damage_is_found(check: ClaimCheck, content: bytes, problem: str) -> None:
    """An object that is not what was written is never given out as if it were."""
    sent = check.put(LARGE)
    overwrite(check, content)
    with pytest.raises(ClaimCheckProblem, match=problem):
        check.fetch(sent)
    with check.open(sent) as reader, pytest.raises(ClaimCheckProblem, match=problem):
        read_pieces(reader)
    with check.open(sent) as reader, pytest.raises(ClaimCheckProblem, match=problem):
        read_exactly(reader, 200)
    with pytest.raises(Poison, match=problem):
        ClaimCheckCodec(check).decode(sent)


@given(st.binary(max_size=300), st.lists(st.integers(0, 50), min_size=1))
def test_readers_read_in_any_pieces(body: bytes, sizes: list[int]) -> None:
    """Whatever is asked for at a time, the whole is the body."""
    check = ClaimCheck("memory://pieces", threshold_bytes=0)
    with check.open(check.put(body)) as reader:
        found = [reader.read(size) for size in sizes]
        found.append(reader.read())
    assert b"".join(found) == body


def test_a_reader_closes_its_file(tmp_path: Path) -> None:
    """Also one that was not read to its end."""
    check, opened = ClaimCheck(str(tmp_path / "bodies"), threshold_bytes=0), []
    sent = check.put(LARGE)
    whole = check._files.open

    def noted(*arguments: Any) -> Any:
        opened.append(whole(*arguments))
        return opened[-1]

    with mock.patch.object(check._files, "open", noted), check.open(sent) as reader:
        reader.read(1)
    assert [each.closed for each in opened] == [True]


def test_fetching_from_an_event_loop(check: ClaimCheck) -> None:
    """Asynchronous handlers fetch without holding up the others."""
    assert asyncio.run(check.afetch(check.put(LARGE))) == LARGE


def test_later_versions_are_refused(check: ClaimCheck) -> None:
    """A reference of a later version is an error, and no body."""
    with pytest.raises(ClaimCheckProblem, match=r"version 2 .* up to 1"):
        check.fetch(b'{"leasehold.claim_check": 2, "where": "elsewhere"}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"leasehold.claim_check": 1}',
        b'{"leasehold.claim_check": 1, "url": 1, "size": 1, "sha256": "", "content_type": ""}',
        b'{"leasehold.claim_check": true, "url": "", "size": 1, "sha256": "", "content_type": ""}',
        b"leasehold.claim_check",
    ],
)
def test_look_alikes_are_bodies(check: ClaimCheck, body: bytes) -> None:
    """What is not exactly a reference is a body."""
    assert check.fetch(body) == body


# --- forged references --------------------------------------------------------------------------

DIGEST = hashlib.sha256(LARGE).hexdigest()
NAME = f"{DIGEST[:2]}/{DIGEST}-0123456789abcdef"


def forged(url: str, size: int = len(LARGE), sha256: str = DIGEST) -> bytes:
    return json.dumps(
        {
            "leasehold.claim_check": 1,
            "url": url,
            "size": size,
            "sha256": sha256,
            "content_type": "x",
        }
    ).encode()


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "/etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "s3://another-bucket/" + NAME,
        "{root}/../secret",
        "{root}/" + NAME + "/../../../secret",
        "{root}/../bodies-of-others/" + NAME,
        "{root}-of-others/" + NAME,
        "{root}/" + NAME + "x",
        "{root}/" + NAME + "\n",
        "{root}//" + NAME,
        "{root}/" + NAME.upper(),
        "{root}/ff/" + NAME,
        "{root}",
        "{root}/",
        "",
        "simplecache::{root}/" + NAME,
        "{root}/%2e%2e/" + NAME,
    ],
)
def test_a_forged_reference_opens_nothing(check: ClaimCheck, url: str) -> None:
    """Whatever a message says, only objects of ours below the root are opened or removed."""
    body = forged(url.replace("{root}", check.root_url))
    with (
        mock.patch.object(check._files, "open", side_effect=AssertionError("opened")),
        mock.patch.object(check._files, "rm_file", side_effect=AssertionError("removed")),
    ):
        for use in (check.fetch, check.open, check.delete):
            with pytest.raises(ClaimCheckProblem, match="is not to a body below"):
                use(body)
        with pytest.raises(Poison, match="claim check"):
            ClaimCheckCodec(check).decode(body)


def test_a_secret_beside_the_root_is_not_read(tmp_path: Path) -> None:
    """A reference to a real file outside of the root is refused."""
    secret = tmp_path / "secret"
    secret.write_bytes(LARGE)
    check = ClaimCheck(str(tmp_path / "bodies"))
    with pytest.raises(ClaimCheckProblem):
        check.fetch(forged(f"file://{secret}"))
    with pytest.raises(ClaimCheckProblem):
        check.fetch(forged(f"{check.root_url}/../secret"))


@pytest.mark.parametrize(
    ("size", "sha256", "problem"),
    [
        (-1, DIGEST, "is invalid"),
        (100_001, DIGEST, "at most 100000"),
        (200, DIGEST.upper(), "is invalid"),
        (200, "0" * 64, "another body"),
    ],
)
def test_facts_that_cannot_be_true_are_refused(
    check: ClaimCheck, size: int, sha256: str, problem: str
) -> None:
    """Size and digest of a reference are checked before anything is opened."""
    with pytest.raises(ClaimCheckProblem, match=problem):
        check.fetch(forged(f"{check.root_url}/{NAME}", size, sha256))


# --- credentials --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/bodies/", "s3://bucket/bodies"),
        ("s3://key:secret@bucket/bodies", "s3://bucket/bodies"),
        ("https://token@host:8443/bodies?sig=secret#secret", "https://host:8443/bodies"),
        ("sftp://user:p%40ss@host/bodies", "sftp://host/bodies"),
        ("abfs://container@account.dfs.core.windows.net/b", None),
        ("simplecache::s3://key:secret@bucket/bodies", "s3://bucket/bodies"),
        ("/var/bodies/", "file:///var/bodies"),
    ],
)
def test_references_show_no_credentials(url: str, shown: str | None) -> None:
    """User, password, query and fragment stay out; a container is no secret."""
    assert without_credentials(url) == (shown or url)


def test_credentials_in_front_of_a_container_are_refused() -> None:
    """They could not be told from its name."""
    with pytest.raises(ValueError, match="colon"):
        without_credentials("abfs://key:secret@account/b")


def test_options_stay_out_of_sight() -> None:
    """What fsspec is told does not appear in references or in what is printed."""
    check = ClaimCheck(
        "memory://options", threshold_bytes=0, storage_options={"secret": "hush-hush"}
    )
    assert b"hush" not in check.put(LARGE)
    assert "hush" not in repr(check)


# --- removing -----------------------------------------------------------------------------------


def test_objects_are_removed_once(check: ClaimCheck) -> None:
    """To remove what is gone already does no harm."""
    sent = check.put(LARGE)
    assert check.delete(sent)
    assert check.delete(sent)
    assert objects(check) == []


def test_old_objects_are_swept(tmp_path: Path) -> None:
    """Only objects of ours go, and only those that are old enough."""
    clock = ManualClock()
    root = tmp_path / "bodies"
    check = ClaimCheck(f"file://{root}", threshold_bytes=0, clock=clock)
    old, new = check.put(b"old"), check.put(b"new")
    written_s = clock.now_ms() / 1000
    for sent, age_s in ((old, 100), (new, 50)):
        reference = read_reference(sent)
        assert reference is not None
        when_s = written_s - age_s
        os.utime(reference.url.removeprefix("file://"), (when_s, when_s))
    (root / "notes.txt").write_text("not ours")
    os.utime(root / "notes.txt", (0, 0))
    assert check.sweep(older_than_s=101) == 0
    assert check.sweep(older_than_s=99) == 1
    assert check.fetch(new) == b"new"
    with pytest.raises(ClaimCheckProblem):
        check.fetch(old)
    assert (root / "notes.txt").exists()


def test_sweeping_what_is_not_there(tmp_path: Path) -> None:
    """Without a folder there is nothing to sweep."""
    check = ClaimCheck(str(tmp_path / "bodies"), threshold_bytes=0)
    assert check.sweep(0) == 0
    check.put(b"x")
    shutil.rmtree(tmp_path / "bodies")
    assert check.sweep(0) == 0


def test_ages_come_from_any_file_system(check: ClaimCheck) -> None:
    """Where the listing says nothing of the age, the object is asked."""
    check.put(LARGE)
    listed = check._files.find

    def bare(*args: Any, **more: Any) -> dict[str, dict[str, Any]]:
        return {path: {"name": path} for path in listed(*args, **more)}

    with mock.patch.object(check._files, "find", bare):
        assert check.sweep(3600) == 0
        assert check.sweep(-3600) == 1


def test_settings_out_of_range_are_refused() -> None:
    """A threshold is a length."""
    with pytest.raises(ValueError, match="threshold_bytes"):
        ClaimCheck("memory://x", threshold_bytes=-1)
