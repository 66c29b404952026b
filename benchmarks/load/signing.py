"""Azure's signatures, made once or made cheaply.

Written apart from the server's own code on purpose: a mistake in one does not hide in the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final
from urllib.parse import quote

from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY

VERSION: Final = "2026-04-06"
SAS_EXPIRY: Final = "2099-12-31T23:59:59Z"

_BLOCK_BYTES: Final = 64  # of SHA-256


class Hmac:
    """HMAC-SHA256 under one key; the two key blocks are hashed once, which halves its cost."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha256(key).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def base64(self, message: bytes) -> bytes:
        """Return the code of *message* in base64."""
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return binascii.b2a_base64(outer.digest(), newline=False)


def service_sas(queue: str, permissions: str = "raup") -> str:
    """Return the query of a service SAS for one queue, without a leading question mark."""
    resource = f"/queue/{EMULATOR_ACCOUNT}/{queue}"
    fields = [permissions, "", SAS_EXPIRY, resource, "", "", "", VERSION]
    mac = hmac.digest(base64.b64decode(EMULATOR_KEY), "\n".join(fields).encode(), "sha256")
    signature = quote(base64.b64encode(mac).decode(), safe="")
    return f"sv={VERSION}&se={quote(SAS_EXPIRY, safe='')}&sp={permissions}&sig={signature}"


def string_to_sign(
    method: str,
    path: str,
    query: list[tuple[str, str]],
    headers: list[tuple[str, str]],
    content: tuple[int, str] = (0, ""),
) -> str:
    """Return what SharedKey signs for the emulator's account.

    Args:
        method: In upper case.
        path: As sent; in path style it begins with the account.
        query: Names in lower case, in order, with plain values.
        headers: Only those that begin with ``x-ms-``, lower case, in order.
        content: Length and type of the body.
    """
    lines = [method, "", "", str(content[0] or ""), "", content[1], *[""] * 6]
    lines += [f"{name}:{value}" for name, value in headers]
    lines.append(f"/{EMULATOR_ACCOUNT}{path}")
    lines += [f"{name}:{value}" for name, value in query]
    return "\n".join(lines)
