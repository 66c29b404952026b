"""The image can be built from what the builder is sent, and serves."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tools.bare_root import NotPossible
from tools.try_wheel import serve_and_talk

ROOT = Path(__file__).parents[3]
try_image = pytest.importorskip("tools.try_image", reason="the extra release is not installed")


def test_the_context_has_no_more_than_it_needs() -> None:
    """All of it is copied into the image's build, but for the files that say how to build."""
    told = {try_image.DOCKERFILE, try_image.IGNORED}
    assert set(try_image.context_files()) == {name for _, name in _copied()} | told


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_is_copied_is_enough(tmp_path: Path) -> None:
    """The wheel that pip makes of the copied files, and of nothing else, serves a message."""
    for target, name in _copied():
        copy = tmp_path / "build" / target
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    environment = tmp_path / "environment"
    venv.create(environment)
    programs = environment / "bin"
    (site,) = environment.glob("lib/python3*/site-packages")
    # Libraries are those of the tests. What is installed there editably is not: that is found
    # through files in that folder, which are read where Python itself has its packages only.
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet")
    subprocess.run((*pip, "--no-deps", "--ignore-installed", tmp_path / "build"), check=True)
    assert (site / "leasehold" / "command.py").is_file()
    assert serve_and_talk(programs, tmp_path) in {"pure", "compiled"}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arguments", [[], ["EXTRAS="]])
def test_the_image_serves_in_a_bare_debian(arguments: list[str]) -> None:
    """All steps of the Dockerfile are carried out, and its server is healthy, serves and stops."""
    try:
        with try_image.built("", arguments, ROOT) as image:
            try_image.try_server(image)
    except NotPossible as reason:
        pytest.skip(str(reason))


def _copied() -> list[tuple[str, str]]:
    """Return what the first stage copies: where to, and from which file of the context."""
    stage = (ROOT / try_image.DOCKERFILE).read_text(encoding="utf-8").split("\nFROM ")[1]
    sent = try_image.context_files()
    copied = []
    for line in re.findall(r"^COPY (.+)$", stage, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            copied += [(name, name) for name in sent if name == source]
            inside = [name for name in sent if name.startswith(f"{source}/")]
            copied += [(f"{target}{name.removeprefix(source)}", name) for name in inside]
    return copied
