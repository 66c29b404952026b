"""Build deploy/Dockerfile without a container engine, and try what comes of it.

``make image-bare`` needs root, debootstrap and buildah, which builds in folders and runs commands
by chroot. The official image of Python is replaced by a bare Debian with the Python of that Debian,
which the Dockerfile's base has in the same version. The server then runs as the user and with the
variables of the image, in a network of its own. It must be healthy, serve the SDK of Azure, stop at
the image's signal, and have kept the message when it starts again.

``--target spark`` builds the image of Spark instead and runs a master, a worker and a job in it.
``--build-arg EXTRAS=`` is as for ``docker build``.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final

import yaml
from docker.utils.build import exclude_paths
from tools.bare_root import (
    CERTIFICATES,
    SYSTEM_PATH,
    BareRoot,
    check_possible,
    root_archive,
    shown_processes,
)

ROOT: Final = Path(__file__).resolve().parent.parent
DOCKERFILE: Final = "deploy/Dockerfile"
IGNORED: Final = f"{DOCKERFILE}.dockerignore"
COMPOSE: Final = "deploy/compose/compose.yaml"
ONE: Final = "deploy/compose/one.yaml"
INSTALLED: Final = "/opt/leasehold"
DATA: Final = "/var/lib/leasehold"
MB: Final = 1_000_000
BASE_PACKAGES: Final = (
    "ca-certificates",
    "python-is-python3",
    "python3-pip",
    "python3-venv",
)
"""What the official image of Python has beside the packages of every Debian, under its names."""
STOPS_S: Final = 120
"""Seconds that a process may take to stop on a slow machine."""
PRIVATE: Final = 0o700

_BASE: Final = re.compile(r"^FROM (python:(3\.\d+)-slim-([a-z]+))\b", re.MULTILINE)
_EXEC_WITH_LOOPBACK: Final = """
import fcntl, os, socket, struct, sys
SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack("16sh", b"lo", UP_AND_RUNNING))
os.execvp(sys.argv[1], sys.argv[1:])
"""
_SEND: Final = """
from azure.storage.queue import QueueClient
queue = QueueClient.from_connection_string("UseDevelopmentStorage=true", "image")
queue.create_queue()
queue.send_message("first")
message = queue.receive_message(visibility_timeout=30)
assert message.content == "first", message
queue.delete_message(message)
queue.send_message("kept")
"""
_JOB: Final = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
def count(rows):
    import leasehold
    yield sum(1 for _ in rows), leasehold.__version__
counts = spark.sparkContext.parallelize(range(100), 4).mapPartitions(count).collect()
assert sum(number for number, _ in counts) == 100, counts
spark.stop()
"""
_RECEIVE: Final = """
import urllib.request
by_name = urllib.request.Request("http://127.0.0.1:10001/readyz", headers={"Host": "leasehold"})
assert urllib.request.urlopen(by_name).status == 200
from azure.storage.queue import QueueClient
queue = QueueClient.from_connection_string("UseDevelopmentStorage=true", "image")
assert queue.receive_message().content == "kept"
"""


# --- building -------------------------------------------------------------------------------------


def context_files() -> list[str]:
    """Return the files that a builder is sent, relative to the checkout, in order."""
    patterns = (ROOT / IGNORED).read_text(encoding="utf-8").split()
    kept = exclude_paths(str(ROOT), patterns, DOCKERFILE)
    return [name for name in sorted({*kept, IGNORED}) if (ROOT / name).is_file()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What was built, unpacked."""

    root: BareRoot
    environment: Mapping[str, str]
    user: str
    workdir: str
    command: Sequence[str]
    health: Sequence[str]
    stop_signal: str

    def run(self, command: Sequence[str], variables: Mapping[str, str]) -> int:
        """Run a command as the user of the image; return its exit code."""
        environment = {**self.environment, **variables}
        done = self.root.run(*command, user=self.user, environment=environment, check=False)
        return done.returncode

    def installed_bytes(self) -> int:
        """Return the size of what the image has beside Debian and Python."""
        files = self.root.path(INSTALLED).rglob("*")
        return sum(file.lstat().st_size for file in files if not file.is_dir())


class Builder:
    """Buildah, with images of its own in a folder; it needs no service and no kernel module."""

    def __init__(self, folder: Path) -> None:
        places = ("--root", str(folder / "images"), "--runroot", str(folder / "run"))
        self._buildah = ("buildah", *places, "--storage-driver", "vfs")
        self._policy = folder / "policy.json"
        self._policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def build(self, context: Path, target: str, arguments: Sequence[str]) -> str:
        """Build the image of a Dockerfile; return its id.

        Args:
            context: The folder that the builder is sent.
            target: A stage; empty: the last.
            arguments: Those of ``--build-arg``.
        """
        dockerfile = context / DOCKERFILE
        for base in set(_BASE.findall(dockerfile.read_text(encoding="utf-8"))):
            self._make_base(*base)
        options = ["--isolation", "chroot", "--pull-never", "--layers=false", "--format", "docker"]
        options += [word for pair in arguments for word in ("--build-arg", pair)]
        options += ["--target", target] if target else []
        policy = ("--signature-policy", str(self._policy))
        identity = self._policy.with_name("identity")
        made = ("--iidfile", str(identity), "--file", str(dockerfile), str(context))
        self._run("build", *policy, *options, *made)
        return identity.read_text().strip()

    @contextmanager
    def unpacked(self, identity: str) -> Iterator[Image]:
        """Unpack an image into a folder."""
        inspected = json.loads(self._ask("inspect", "--type", "image", identity))
        config = inspected["Docker"]["config"]
        policy = ("--signature-policy", str(self._policy))
        container = self._ask("from", "--pull-never", *policy, identity)
        folder = Path(self._ask("mount", container))
        with shown_processes(folder):
            yield Image(
                root=BareRoot(folder=folder),
                environment=dict(pair.split("=", 1) for pair in config["Env"]),
                user=config["User"],
                workdir=config["WorkingDir"],
                command=config.get("Cmd") or [],
                health=(config.get("Healthcheck") or {}).get("Test", [])[1:],
                stop_signal=config.get("StopSignal", "SIGTERM"),
            )

    def _make_base(self, name: str, python: str, suite: str) -> None:
        """Make an image that stands for an official one of Python on Debian."""
        container = self._ask("from", "scratch")
        self._run("add", container, str(root_archive(suite, BASE_PACKAGES)), "/")
        self._run("add", container, CERTIFICATES, CERTIFICATES)
        self._run("config", "--env", f"PATH={SYSTEM_PATH}", container)
        version = self._ask("run", "--isolation", "chroot", container, "python", "--version")
        assert version.startswith(f"Python {python}."), (name, version)
        policy = ("--signature-policy", str(self._policy))
        self._run("commit", "--quiet", *policy, "--rm", container, f"docker.io/library/{name}")

    def _run(self, *command: str) -> None:
        subprocess.run((*self._buildah, *command), check=True)

    def _ask(self, *command: str) -> str:
        done = subprocess.run(
            (*self._buildah, *command), check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.strip()


@contextmanager
def built(target: str, arguments: Sequence[str], context: Path) -> Iterator[Image]:
    """Build a stage of the Dockerfile and unpack it; all is removed at the end.

    Args:
        target: The name of a stage; empty: the last.
        arguments: Those of ``--build-arg``.
        context: The checkout, or a folder with the files of a context.

    Raises:
        NotPossible: This machine cannot.
    """
    check_possible("buildah")
    with tempfile.TemporaryDirectory(prefix="leasehold-image-") as temporary:
        builder = Builder(Path(temporary))
        with builder.unpacked(builder.build(context, target, arguments)) as image:
            yield image


# --- trying ---------------------------------------------------------------------------------------


class Container:
    """A process of an image, in a network of its own or in that of another one."""

    def __init__(
        self,
        image: Image,
        command: Sequence[str],
        variables: Mapping[str, str],
        beside: Container | None = None,
    ) -> None:
        self._image = image
        self._rest: Thread | None = None
        """Reads what is not looked at, so that the process never waits for a reader of its log."""
        self._environment = {**image.environment, **variables}
        network = beside.network() if beside else ("unshare", "--net")
        self.process = subprocess.Popen(
            (*network, sys.executable, "-c", _EXEC_WITH_LOOPBACK, *self._inside(command)),
            env=self._environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def execute(self, command: Sequence[str]) -> int:
        """Run another command of the image in the same network; return its exit code."""
        inside = (*self.network(), *self._inside(command))
        return subprocess.run(inside, env=self._environment, check=False).returncode

    def reach(self, program: str) -> None:
        """Run a program of this machine's Python in the container's network."""
        subprocess.run((*self.network(), sys.executable, "-c", program), check=True)

    def await_line(self, words: str) -> None:
        """Read what the process logs until a line has some words; ignore what comes later."""
        log = self.process.stderr
        assert log is not None
        seen = []
        for line in log:
            seen.append(line)
            if words in line:
                self._rest = Thread(target=log.read, daemon=True)
                self._rest.start()
                return
        raise AssertionError(f"the process ended without {words!r}: {''.join(seen)}")

    def stop(self) -> int:
        """Stop it as an engine does; return its exit code."""
        self.process.send_signal(signal.Signals[self._image.stop_signal])
        code = self.process.wait(timeout=STOPS_S)
        if self._rest is not None:
            self._rest.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def network(self) -> tuple[str, ...]:
        """Return the beginning of a command line that runs a command in the network."""
        return ("nsenter", "--target", str(self.process.pid), "--net")

    def _inside(self, command: Sequence[str]) -> tuple[str | Path, ...]:
        image = self._image
        return image.root.command(*command, user=image.user, workdir=image.workdir)


def try_server(image: Image) -> None:
    """Run the server of an image: at first, on the same data again, and on a restored backup."""
    assert image.user.partition(":")[0] not in {"0", "root"}, image.user
    data = image.root.path(DATA)
    assert data.stat().st_mode & 0o777 == PRIVATE
    (service,) = yaml.safe_load((ROOT / ONE).read_text(encoding="utf-8"))["services"].values()
    variables: dict[str, str] = service["environment"]
    serve_once(image, variables, _SEND, ["leasehold", "backup", DATA, "/tmp/backup"])
    serve_once(image, variables, _RECEIVE)
    subprocess.run(("find", data, "-mindepth", "1", "-delete"), check=True)
    restored = image.run(["leasehold", "restore", "/tmp/backup", DATA], variables)
    assert restored == 0, "the backup was not restored"
    serve_once(image, variables, _RECEIVE)
    # A check that could not fail would say nothing.
    assert image.run(image.health, variables) == 1, "the health check needs no server"
    size_mb = image.installed_bytes() / MB
    print(f"A server of the image has served; it has {size_mb:.0f} MB beside Debian and Python")


def serve_once(
    image: Image, variables: Mapping[str, str], program: str, beside: Sequence[str] = ()
) -> None:
    """Start the server of an image, use it, and stop it.

    Args:
        image: With the server.
        variables: In addition to those of the image.
        program: What uses it, on this machine's Python.
        beside: A command of the image that runs beside the server.
    """
    container = Container(image, image.command, variables)
    try:
        container.await_line("server.ready")
        assert container.execute(image.health) == 0, "the server is not healthy"
        container.reach(program)
        assert not beside or container.execute(beside) == 0, beside
    finally:
        code = container.stop()
    assert code == 0, f"the server ended with {code}"


def try_spark(image: Image) -> None:
    """Run a master and a worker with the commands of Compose, and submit a job to them."""
    compose = yaml.safe_load((ROOT / COMPOSE).read_text(encoding="utf-8"))
    master, worker = (compose["services"][name] for name in ("spark-master", "spark-worker"))
    variables = {
        name: re.sub(r"\$\{SPARK_SECRET[^}]*\}", "secret", value)
        for name, value in master["environment"].items()
    }
    with image.root.path("/etc/hosts").open("a") as hosts:
        # The name of the container, which an engine writes there, is that of this machine here.
        hosts.write(f"127.0.0.1 spark-master {socket.gethostname()}\n")
    job = image.root.path("/tmp/job.py")
    job.write_text(_JOB)
    running: list[Container] = []
    try:
        running.append(Container(image, master["command"], variables))
        running[0].await_line("I have been elected leader")
        running.append(Container(image, worker["command"], variables, beside=running[0]))
        running[1].await_line("Successfully registered with master")
        submit = ["spark-submit", "--master", "spark://spark-master:7077"]
        for setting in ("authenticate=true", "authenticate.secret=secret"):
            submit += ["--conf", f"spark.{setting}"]
        submit += ["--conf", "spark.network.crypto.enabled=true", "/tmp/job.py"]
        assert running[0].execute(submit) == 0, "the job failed"
    finally:
        for container in reversed(running):
            container.stop()
    size_mb = image.installed_bytes() / MB
    print(f"Spark of the image has run a job; {size_mb:.0f} MB beside Debian, Python and Java")


def parse_arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description="Try the image without a container engine")
    parser.add_argument("--target", default="", help="a stage; that of the server unless given")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--context", type=Path, default=ROOT, help="a folder with a context")
    return parser.parse_args()


def main() -> int:
    """Build, and try."""
    given = parse_arguments()
    with built(given.target, given.build_arg, given.context) as image:
        if given.target == "spark":
            try_spark(image)
        else:
            try_server(image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
