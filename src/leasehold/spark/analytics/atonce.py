"""Several things for Spark to do at the same time, so that no core waits for another's last task.

The last tasks of a job leave cores without work, and so does planning the next one. Jobs that do
not need each other fill these gaps for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """Do all of *jobs* at the same time, and return what they return, in their order.

    Each begins in its place in the order, so the longest should be the first. All have come to
    their end when this returns or raises.

    Raises:
        Exception: What the first of them in the order raised that did not succeed.
    """
    with ThreadPoolExecutor(max_workers=len(jobs)) as pool:
        begun = [pool.submit(job) for job in jobs]
    return [each.result() for each in begun]
