"""The tests that kombu ships for its transports, run on Leasehold.

They are in kombu's source distribution and not in its wheel, so it is fetched; nothing of it is
kept here. ``KOMBU_SDIST`` may name one that is there already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.celery.conftest import Broker
from tests.patience import PROGRAM_S

pytestmark = pytest.mark.long

_SUITES: Final = (
    "BasicFunctionality",
    "BaseEventLoop",
    "BaseExchangeTypes",
    "BaseFailover",
    "BaseMessage",
    "BasePriority",
    "BaseTimeToLive",
)
_TESTS: Final = """
import os, uuid
import kombu, pytest
import leasehold.brokers.kombu
import kombu_common

LIVE = os.environ["BROKER_URL"]
DEAD = "leasehold://127.0.0.1:9"

def connect(url):
    prefix = f"own-{uuid.uuid4().hex[:8]}-"
    return kombu.Connection(url, transport_options={"queue_name_prefix": prefix})

@pytest.fixture
def connection():
    return connect(LIVE)

@pytest.fixture
def invalid_connection():
    return connect(DEAD)

@pytest.fixture
def failover_connection():
    return connect(f"{DEAD};{LIVE}")

"""


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the module that kombu's tests of all transports are in."""
    folder = tmp_path_factory.mktemp("kombu")
    name = f"kombu-{version('kombu')}"
    given = os.environ.get("KOMBU_SDIST")
    if given is None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "kombu", f"kombu=={version('kombu')}", "--dest", str(folder)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROGRAM_S
        )
        if done.returncode:
            pytest.skip(f"kombu's source cannot be had: {done.stderr[-300:]}")
        given = str(folder / f"{name}.tar.gz")
    with tarfile.open(given) as archive:
        member = archive.extractfile(f"{name}/t/integration/common.py")
        assert member is not None
        return member.read().decode()


@pytest.mark.parametrize("suite", _SUITES)
def test_suite(suite: str, common: str, broker: Broker, tmp_path: Path) -> None:
    """All tests of a suite pass, and there are some."""
    if f"class {suite}" not in common:
        pytest.skip("not in this version of kombu")
    (tmp_path / "kombu_common.py").write_text(common)
    (tmp_path / "test_own.py").write_text(f"{_TESTS}class Test(kombu_common.{suite}): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "test_own.py"],
        cwd=tmp_path,
        env={**os.environ, "BROKER_URL": broker.origin.replace("http", "leasehold", 1)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_S,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
