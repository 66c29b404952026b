"""A Python client that ``openapi-python-client`` makes of the OpenAPI document."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args

import pytest

from leasehold.http.native.dialect import ROUTES, openapi_json
from leasehold.testing import InProcessServer

pytestmark = pytest.mark.long
NAME: Final = "generated_leasehold"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of a generated package, and what the generator has said."""
    pytest.importorskip("openapi_python_client", reason="openapi-python-client is not installed")
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_bytes(openapi_json())
    (folder / "config.yaml").write_text("post_hooks: []\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"),
            *("--path", "openapi.json", "--output-path", NAME, "--config", "config.yaml"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    sys.path.insert(0, str(folder))
    yield folder / NAME, done.stdout + done.stderr
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def test_all_operations_and_shapes_are_there(made: tuple[Path, str]) -> None:
    """The generator leaves out nothing but the other form of what can be sent as JSON."""
    folder, said = made
    names = {path.stem for path in folder.glob("api/*/*.py")} - {"__init__"}
    assert names == {route.name.replace("-", "_") for route in ROUTES}
    dropped = [line for line in said.splitlines() if "omitted" in line or "removal" in line]
    assert dropped == []
    assert "Unable to" not in said


class Generated:
    """The generated functions, on a server."""

    def __init__(self, server: InProcessServer) -> None:
        self.models: ModuleType = importlib.import_module(f"{NAME}.models")
        client: Any = importlib.import_module(f"{NAME}.client")
        self._client = client.AuthenticatedClient(server.url, token=server.key)
        self._account = server.account

    def close(self) -> None:
        """Close the connections."""
        self._client.get_httpx_client().close()

    def call(
        self, name: str, *path: object, body: dict[str, Any] | None = None, **more: Any
    ) -> Any:
        """Call an operation, with a body as its model makes it; return the parsed answer."""
        function: Any = importlib.import_module(f"{NAME}.api.{name}").sync_detailed
        if body is not None:
            kind = function.__annotations__["body"]
            model = next(each for each in get_args(kind) or (kind,) if hasattr(each, "from_dict"))
            more["body"] = model.from_dict(body)
        answer = function(self._account, *path, client=self._client, **more)
        assert 200 <= answer.status_code < 300, answer.content
        return answer.parsed


def test_calls_of_each_kind(made: tuple[Path, str]) -> None:
    """What comes back is of the generated shapes, and has what was sent."""
    del made
    with InProcessServer() as server, closing(Generated(server)) as api:
        models: Any = api.models
        settings = {"groups": {"order": "fifo", "weights": {"a": 2}}, "max_body_bytes": 1000}
        queue = api.call("queues.create_queue", "orders", body={"settings": settings})
        assert isinstance(queue, models.Queue)
        assert queue.settings.groups.weights.additional_properties == {"a": 2}
        page = api.call("queues.list_queues")
        assert [each.name for each in page.queues] == ["orders"]
        assert isinstance(api.call("queues.update_queue", "orders", body={}), models.Queue)

        items = [{"body": "one", "group_id": "a"}, {"body": "two", "group_id": "b"}]
        put = api.call("messages.put", "orders", body={"messages": items})
        assert (put.failed, len(put.results)) == (0, 2)
        groups = api.call("admin.list_groups", "orders")
        assert {each.group_id for each in groups.groups} == {"a", "b"}
        views = api.call("admin.list_messages", "orders")
        assert [each.body for each in views.messages] == ["one", "two"]
        session = api.call("sessions.open_session", body={"holder": "generated"})
        api.call("sessions.heartbeat", session.session_id, body={})
        received = api.call("messages.receive", "orders", body={"max_messages": 2})
        assert {each.body for each in received.messages} == {"one", "two"}
        one, two = received.messages
        handle = {"id": one.id, "receipt": one.receipt}
        renewed = api.call(
            "messages.renew", "orders", body={"items": [{**handle, "visibility_timeout_s": 60}]}
        )
        handle["receipt"] = renewed.results[0].receipt
        released = api.call(
            "messages.release", "orders", body={"items": [{"id": two.id, "receipt": two.receipt}]}
        )
        assert released.failed == 0
        commit = {
            "complete": [{"queue": "orders", **handle}],
            "send": [{"queue": "orders", "body": "three"}],
        }
        assert isinstance(api.call("transactions.commit", body=commit), models.Committed)
        peeked = api.call("messages.peek", "orders", body={"max_messages": 2})
        assert {each.body for each in peeked.messages} == {"two", "three"}

        stream = api.call("claims.attach_stream", "orders", "nightly", body={})
        claim = api.call(
            "claims.open_claim",
            "orders",
            "nightly",
            1,
            body={"token": stream.token, "limit": 2, "lease_s": 60},
        )
        assert claim.claim.size == 2
        api.call(
            "claims.settle_claims", "orders", "nightly", body={"token": stream.token, "upto": 1}
        )
        staged = {"part": "p", "chunk": 0, "messages": [{"queue": "orders", "body": "four"}]}
        api.call("transactions.stage", "tx", body=staged)
        api.call("transactions.publish", "tx", body={})
        job = api.call("jobs.purge", "orders", body={})
        assert isinstance(api.call("jobs.get_job", job.job_id), models.Job)
        assert api.call("queues.count_messages", "orders").total == 0
