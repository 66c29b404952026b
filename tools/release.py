"""Make all files of a release in ``dist``, and try each of them where nothing else is.

``make release`` makes the source archive, the wheel that comes of it, the wheel of the compiled hot
path, the context from which the image is built, the chart, the bill of materials of the image in
CycloneDX's form, and SHA256SUMS. Then, as root, with debootstrap and buildah:

- both wheels and the source archive are installed in a bare Debian, where a server of each serves;
- the image is built from its context alone, serves, and has what the bill of materials lists;
- Helm finds nothing wrong with the chart, whose image has this version as its tag;
- the sums are those of the files, by another program.

``--build`` stops after making them, and ``--try`` takes the files that are there. ``--tag v1.2.3``
first checks that it is the tag of this version and that the change log knows it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from typing import Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools.bare_root import bare_root, check_possible
from tools.try_image import ROOT, built, context_files, try_server

from leasehold import __version__

DIST: Final = ROOT / "dist"
CHART: Final = ROOT / "deploy" / "helm" / "leasehold"
CHANGES: Final = ROOT / "CHANGELOG.md"
SUMS: Final = "SHA256SUMS"
PROGRAMS: Final = Path(sys.executable).parent
SCHEMA: Final = SchemaVersion.V1_6
DEBIAN_OF_PYTHON: Final = {"3.11": "bookworm", "3.13": "trixie"}
"""Which Debian has the Python that runs this, and so takes the compiled wheel."""
_TRY_WHEEL: Final = """
import sys
from pathlib import Path
sys.path.insert(0, "/release/tools")
from try_wheel import try_it
wheel, compiled = sys.argv[1:]
sys.exit(try_it(Path(wheel), Path(compiled) if compiled else None))
"""


def chart_version(version: str) -> str:
    """Return a version in the form of Helm, which is that of SemVer: 1.2.0-dev.3 for 1.2.0.dev3."""
    read = Version(version)
    base = ".".join(map(str, (*read.release, 0, 0)[:3]))
    before = [*(read.pre or ())] + ([] if read.dev is None else ["dev", read.dev])
    return f"{base}-{'.'.join(map(str, before))}" if before else base


def check_tag(tag: str) -> None:
    """Check that a tag is that of this version, and that its changes are written down.

    Raises:
        ValueError: It is not, or they are not.
    """
    if tag != f"v{__version__}":
        raise ValueError(f"the tag {tag} is not that of version {__version__}")
    heading = rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$"
    if re.search(heading, CHANGES.read_text(encoding="utf-8"), re.MULTILINE) is None:
        raise ValueError(f"{CHANGES.name} has no section with a date for {__version__}")


# --- making ---------------------------------------------------------------------------------------


def make_all() -> list[Path]:
    """Make the files of this version anew; return them."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    epoch = _output("git", "log", "-1", "--format=%ct").strip()
    os.environ.setdefault("SOURCE_DATE_EPOCH", epoch)  # the same commit makes the same files
    _run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)  # the wheel is that of the archive
    _run(sys.executable, ROOT / "tools" / "make_compiled.py")
    _make_context(DIST / f"leasehold-{__version__}-image.tar.gz")
    _run(PROGRAMS / "helm", "package", CHART, "--destination", DIST)
    _make_bill(DIST / f"leasehold-{__version__}.cdx.json")
    made = sorted(DIST.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (DIST / SUMS).write_text("".join(sums))
    return [*made, DIST / SUMS]


def _make_context(target: Path) -> None:
    """Pack what a builder of images is sent."""
    changed_s = int(os.environ["SOURCE_DATE_EPOCH"])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in context_files():
            content = (ROOT / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), changed_s, 0o644
            archive.addfile(member, io.BytesIO(content))
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=changed_s))


def _make_bill(target: Path) -> None:
    """List what the image has beside Debian and Python."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", dockerfile, re.MULTILINE)
    (wheel,) = DIST.glob("leasehold-*.whl")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder)
        python = Path(folder, "bin", "python")
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
        _run(*pip, "--constraint", ROOT / "constraints.txt", f"{wheel}[{extras}]")
        form = ("--spec-version", SCHEMA.to_version(), "--output-reproducible", "--validate")
        about = ("--pyproject", ROOT / "pyproject.toml", "--output-file", target)
        _run(PROGRAMS / "cyclonedx-py", "environment", *form, *about, python)
    bill = json.loads(target.read_text(encoding="utf-8"))
    bill["metadata"]["component"]["version"] = __version__  # pyproject.toml says where to find it
    target.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


# --- trying ---------------------------------------------------------------------------------------


def try_all() -> None:
    """Try the files of this version.

    Raises:
        NotPossible: This machine cannot make a bare Debian.
    """
    check_possible("buildah")
    (wheel,) = DIST.glob("leasehold-*.whl")
    (archive,) = DIST.glob(f"leasehold-{__version__}.tar.gz")
    compiled = next(DIST.glob("leasehold_compiled-*.whl"), None)
    _try_sums()
    _try_chart()
    bill = _try_bill()
    _try_packages(wheel, archive, compiled)
    _try_context(bill)
    files = ", ".join(sorted(path.name for path in DIST.iterdir()))
    print(f"Each has been tried: {files}")


def _try_sums() -> None:
    _run("sha256sum", "--check", "--strict", "--quiet", SUMS, folder=DIST)
    listed = {line.split()[1] for line in (DIST / SUMS).read_text().splitlines()}
    assert listed == {path.name for path in DIST.iterdir()} - {SUMS}


def _try_chart() -> None:
    chart = DIST / f"leasehold-{chart_version(__version__)}.tgz"
    _run(PROGRAMS / "helm", "lint", "--strict", chart)
    assert f'image: "leasehold:{__version__}"' in _output(PROGRAMS / "helm", "template", "x", chart)


def _try_bill() -> dict[str, str]:
    """Validate the bill of materials; return versions by the names of packages."""
    text = (DIST / f"leasehold-{__version__}.cdx.json").read_text(encoding="utf-8")
    wrong = JsonStrictValidator(SCHEMA).validate_str(text)
    assert wrong is None, wrong
    components = json.loads(text)["components"]
    return {canonicalize_name(part["name"]): part["version"] for part in components}


def _try_packages(wheel: Path, archive: Path, compiled: Path | None) -> None:
    """Install each in a bare Debian, and have a server serve a message."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    suite = DEBIAN_OF_PYTHON.get(python, "trixie")
    compiled = compiled if python in DEBIAN_OF_PYTHON else None
    with bare_root(suite, ("ca-certificates", "python3-venv")) as root:
        inside = root.path("/release/tools")
        inside.mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "try_wheel.py", inside)
        shutil.copy(ROOT / "constraints.txt", inside.parent)
        for path in filter(None, (wheel, archive, compiled)):
            shutil.copy(path, inside.parent)
        for path, beside in ((wheel, compiled), (archive, None)):
            named = f"/release/{beside.name}" if beside else ""
            root.run("python3", "-c", _TRY_WHEEL, f"/release/{path.name}", named)


def _try_context(bill: dict[str, str]) -> None:
    """Build the image from the context alone; compare what it has with the bill of materials."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(DIST / f"leasehold-{__version__}-image.tar.gz") as context:
            context.extractall(folder, filter="data")
        with built("", (), Path(folder)) as image:
            try_server(image)
            site = next(image.root.path("/opt/leasehold/lib").glob("python3*/site-packages"))
            listing = ("-m", "pip", "list", "--format", "json", "--path", site)
            installed = json.loads(_output(sys.executable, *listing))
    for package in installed:
        name, version = canonicalize_name(package["name"]), package["version"]
        assert bill.get(name, __version__) == version, (package, bill.get(name))
        assert name in bill or name == "leasehold", f"{name} is not in the bill of materials"


def _run(*command: str | Path, folder: Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=folder)


def _output(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def main() -> int:
    """Make, and try."""
    parser = argparse.ArgumentParser(description="Make the files of a release, and try them")
    parser.add_argument("--tag", help="the tag that is released, such as v1.2.3")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--build", action="store_true", help="only make the files")
    only.add_argument("--try", dest="tries", action="store_true", help="only try what is there")
    given = parser.parse_args()
    if given.tag is not None:
        check_tag(given.tag)
    if not given.tries:
        for path in make_all():
            print(f"{path.stat().st_size:>10,} {path.relative_to(ROOT)}")
    if not given.build:
        try_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
