"""A server looks for garbage seldom, and never among what it was born with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from leasehold.garbage import THRESHOLDS

_TELL = "print(gc.get_threshold(), gc.get_freeze_count() > 1_000, flush=True)"
_SERVE = f"""
import gc
import leasehold.server.main as server
spare = server.spare_collecting
def spared():
    spare()
    {_TELL}
server.spare_collecting = spared
from leasehold.cli import main
main()
"""


def _first_line(code: str, *arguments: str) -> str:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        return next((line for line in process.stdout if line.startswith("(")), "nothing was told")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_server_that_is_ready_spares_itself_the_collecting(tmp_path: Path) -> None:
    """From then on what is there is frozen, and the thresholds are ours."""
    line = _first_line(_SERVE, "serve", "--port", "0", "--data", str(tmp_path))
    assert line == f"{THRESHOLDS} True\n"


def test_a_process_with_users_code_keeps_their_thresholds() -> None:
    """What is there is frozen; how often to look for more is left as it was."""
    code = (
        "import gc, asyncio; gc.set_threshold(701, 11, 12)\n"
        f"import leasehold.garbage as g; g.spare_collecting(seldom=False); {_TELL}"
    )
    assert _first_line(code) == "(701, 11, 12) True\n"
