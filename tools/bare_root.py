"""A Debian with nothing installed, in a folder in which commands are run.

debootstrap fills it, which takes minutes and is done once: the archive is kept in
``~/.cache/leasehold/roots`` and unpacked for each use. Remove that folder to have a newer Debian.
Both ask for root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leasehold" / "roots"
)
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
_NETWORK_FILES: Final = (CERTIFICATES, "/etc/resolv.conf", "/etc/hosts")


class NotPossible(Exception):
    """A bare root cannot be made on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BareRoot:
    """A Debian in a folder."""

    folder: Path

    def command(
        self, *command: str, user: str = "0:0", workdir: str = "/"
    ) -> tuple[str | Path, ...]:
        """Return the command line that runs a command inside.

        Args:
            command: The program and its arguments, as they are inside.
            user: User and group, as numbers.
            workdir: An existing folder inside.
        """
        enter = ("chroot", f"--userspec={user}", "--groups=", self.folder)
        return (*enter, "env", f"--chdir={workdir}", *command)

    def run(
        self,
        *command: str,
        user: str = "0:0",
        workdir: str = "/",
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside and wait for it.

        Args:
            command: The program and its arguments, as they are inside.
            user: User and group, as numbers.
            workdir: An existing folder inside.
            environment: All of its variables; None: what downloads need.
            check: Whether it must end with 0.
            options: Others of :func:`subprocess.run`.

        Raises:
            subprocess.CalledProcessError: It ended with another code than 0.
        """
        return subprocess.run(
            self.command(*command, user=user, workdir=workdir),
            env=dict(network_environment() if environment is None else environment),
            check=check,
            text=True,
            **options,
        )

    def path(self, inside: str) -> Path:
        """Return where a path of the root is on this machine."""
        return self.folder / inside.lstrip("/")


def network_environment() -> dict[str, str]:
    """Return the variables with which programs inside reach what this machine reaches."""
    proxies = {name: value for name, value in os.environ.items() if "proxy" in name.lower()}
    return {**proxies, "PATH": SYSTEM_PATH, "PIP_CERT": CERTIFICATES, "HOME": "/root"}


def check_possible(*programs: str) -> None:
    """Check that this machine can make bare roots.

    Args:
        programs: What is needed beside debootstrap.

    Raises:
        NotPossible: It cannot.
    """
    if os.geteuid() != 0:
        raise NotPossible("a bare root can be made by root only")
    for program in ("debootstrap", *programs):
        if shutil.which(program) is None:
            raise NotPossible(f"{program} is not installed")
    separate = ("unshare", "--mount", "--net", "true")
    if subprocess.run(separate, capture_output=True, check=False).returncode != 0:
        raise NotPossible("this machine allows no mounts and no networks of our own")


@contextmanager
def bare_root(suite: str, packages: Sequence[str]) -> Iterator[BareRoot]:
    """Unpack a root into a temporary folder, and remove it at the end.

    Args:
        suite: The name of Debian's release, such as ``trixie``.
        packages: What is installed beside the packages that every Debian has.

    Raises:
        NotPossible: This machine cannot make one.
    """
    archive = root_archive(suite, packages)
    with tempfile.TemporaryDirectory(prefix="leasehold-root-") as temporary:
        folder = Path(temporary) / suite
        folder.mkdir()
        unpack = ("tar", "--extract", "--numeric-owner", "--same-permissions", "--xattrs")
        subprocess.run((*unpack, "--file", archive, "--directory", folder), check=True)
        for name in _NETWORK_FILES:
            shutil.copy(name, f"{folder}{name}")
        with shown_processes(folder):
            yield BareRoot(folder=folder)


@contextmanager
def shown_processes(folder: Path) -> Iterator[None]:
    """Show processes below ``/proc`` of a root, as every machine and container does."""
    subprocess.run(("mount", "--types", "proc", "proc", folder / "proc"), check=True)
    try:
        yield
    finally:
        subprocess.run(("umount", "--lazy", folder / "proc"), check=True)


def root_archive(suite: str, packages: Sequence[str]) -> Path:
    """Return the archive of a root, which is made unless it is there.

    Args:
        suite: The name of Debian's release, such as ``trixie``.
        packages: What is installed beside the packages that every Debian has.

    Raises:
        NotPossible: This machine cannot make one.
    """
    check_possible()
    digest = sha256(" ".join(sorted(packages)).encode()).hexdigest()[:12]
    archive = CACHE / f"{suite}-{digest}.tar"
    if archive.exists():
        return archive
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="leasehold-root-") as temporary:
        folder = Path(temporary) / suite
        include = f"--include={','.join(packages)}"
        subprocess.run(("debootstrap", "--variant=minbase", include, suite, folder), check=True)
        for download in folder.glob("var/cache/apt/archives/*.deb"):
            download.unlink()
        packed = Path(temporary) / "root.tar"
        pack = ("tar", "--create", "--numeric-owner", "--xattrs", "--one-file-system")
        subprocess.run((*pack, "--file", packed, "--directory", folder, "."), check=True)
        partial = archive.with_suffix(f".{os.getpid()}")
        shutil.move(packed, partial)
        partial.replace(archive)
    return archive
