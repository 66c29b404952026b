"""Every worker must leave no thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    new = set(threading.enumerate()) - before
    left = [thread for thread in new if thread.name.startswith("leasehold-")]
    end_s = time.monotonic() + PATIENCE_S  # of all together: after a failure none may end
    for thread in left:
        thread.join(max(0.0, end_s - time.monotonic()))
    assert not [thread for thread in left if thread.is_alive()]
