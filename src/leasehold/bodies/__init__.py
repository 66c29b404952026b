"""Where large bodies are kept: a folder, or any object store."""

from leasehold.bodies.base import KEY_BYTES, BodyMissing, BodyStore, KeptBody, open_bodies

__all__ = ["KEY_BYTES", "BodyMissing", "BodyStore", "KeptBody", "open_bodies"]
