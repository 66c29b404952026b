"""What the tests of the SDK share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mns.mns_exception import MNSServerException

from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error of the server with this code, and a request id of its form."""
    with pytest.raises(MNSServerException) as caught:
        yield caught
    assert caught.value.type == code
    request_id = caught.value.req_id
    assert len(request_id) == 24
    assert request_id == request_id.upper()


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin *work* in a thread; what is returned waits for its result, or raises its error."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(PATIENCE_S)
        assert result, "the thread did not end"
        if isinstance(result[0], BaseException):
            raise result[0]
        return result[0]

    return wait


def waiting(server: InProcessServer, work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin *work* in a thread, and return when it waits for messages."""
    wait = in_thread(work)
    server.until_waiting()
    return wait
