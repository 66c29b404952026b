"""Looks for what no upload may contain, with YARA-X and rules of our own (``signatures.yar``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import yara_x

RULES: Final = Path(__file__).with_name("signatures.yar")
PATIENCE_S: Final = 300
"""How long one file may take, on a machine however slow."""


def scan(path: Path) -> list[str]:
    """Return the names of the rules that a file matches, in order; empty for a clean one."""
    scanner = yara_x.Scanner(_rules())
    scanner.set_timeout(PATIENCE_S)
    return sorted(rule.identifier for rule in scanner.scan_file(str(path)).matching_rules)


@cache
def _rules() -> yara_x.Rules:
    return yara_x.compile(RULES.read_text(encoding="utf-8"))


def eicar() -> bytes:
    """Return the test file that every anti-virus program reports, and that does no harm.

    It is put together here: were it in this file as a whole, scanners would report the file.
    Source: https://www.eicar.org/download-anti-malware-testfile/
    """
    head = ("X5O!P%@AP", "[4\\PZX54(P^)", "7CC)7}$")
    words = ("EICAR", "STANDARD", "ANTIVIRUS", "TEST", "FILE!")
    return ("".join(head) + "-".join(words) + "$H+H*").encode()
