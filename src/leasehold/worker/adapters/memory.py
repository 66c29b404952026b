"""Where ``MemoryQueue`` was before it moved to :mod:`leasehold.testing.memory_queue`."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    # Looked up by the module's name: workers know nothing of what is there for tests.
    return getattr(import_module("leasehold.testing.memory_queue"), name)
