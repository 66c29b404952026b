"""Run most tests on another Python: ``python tools/try_python.py 3.13``.

``python3.13`` must be on the path; the argument may be a path as well. What needs Spark, a browser
or a database server is left out, so that it takes some ten minutes on two cores.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PARTS: Final = ("unit", "contract", "property", "regression")
LEFT_OUT: Final = ("unit/spark", "unit/deploy")


def main() -> int:
    """Install everything there, and run."""
    named = sys.argv[1]
    python = shutil.which(named) or shutil.which(f"python{named}")
    if python is None:
        print(f"There is no python{named} on the path.")
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run([python, "-m", "venv", temporary], check=True)
        inside = Path(temporary) / "bin" / "python"
        pip = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "-c", ROOT / "constraints.txt", "-e", f"{ROOT}[dev]"], check=True)
        tests = [f"tests/{part}" for part in PARTS]
        ignored = [f"--ignore=tests/{part}" for part in LEFT_OUT]
        options = ("-q", "-n", "2", "-p", "no:cacheprovider", "-k", "not postgres")
        command = [str(inside), "-m", "pytest", *options, *ignored, *tests]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
