"""What a server needs before it serves, and what it says when it cannot have it."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from leasehold.auth.bearer import BearerVerifier, IssuersVerifier
from leasehold.server import startup
from leasehold.server.settings import Settings
from leasehold.server.startup import (
    DataLock,
    ExitCode,
    StartFailed,
    bearer_verifier,
    event_log_plan,
    listen_for_mns,
    listen_on,
    raise_file_limit,
    url_of,
)
from tests.unit.auth.issuer import jwk_of, nameless, rsa_key


def test_data_folder_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    """The folder is made with its parents, and closed to others."""
    folder = tmp_path / "a" / "data"
    with DataLock(folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_data_folder_is_for_one_server(tmp_path: Path) -> None:
    """A second server is told which process has the folder."""
    with DataLock(tmp_path), pytest.raises(StartFailed) as refusal, DataLock(tmp_path):
        pass
    assert refusal.value.code is ExitCode.DATA_IN_USE
    assert f"in use by another server (process {os.getpid()})" in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


def test_data_folder_is_free_again(tmp_path: Path) -> None:
    """The lock ends with its holder; what the holder before wrote does not matter."""
    (tmp_path / startup.LOCK_NAME).write_text("99999999 a former process\n")
    for _ in range(2):
        with DataLock(tmp_path):
            assert (tmp_path / startup.LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_unusable_data_folder(tmp_path: Path) -> None:
    """A file where the folder should be is a problem of the settings."""
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StartFailed, match="cannot be used") as refusal, DataLock(tmp_path / "data"):
        pass
    assert refusal.value.code is ExitCode.SETTINGS


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of this machine that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_any_free_port_is_the_same_for_all_addresses() -> None:
    """Port 0 takes a free one, and every address listens on that."""
    sockets = listen_on(Settings(host="127.0.0.1, 127.0.0.2", port=0))
    names = [listener.getsockname() for listener in sockets]
    urls = [url_of(listener, tls=False) for listener in sockets]
    for listener in sockets:
        listener.close()
    assert [name[0] for name in names] == ["127.0.0.1", "127.0.0.2"]
    assert names[0][1] == names[1][1] != 0
    assert urls[0] == f"http://127.0.0.1:{names[0][1]}"


def test_taken_port(taken_port: int) -> None:
    """A taken port is named, and no socket stays open."""
    with pytest.raises(StartFailed, match=f"127.0.0.1 port {taken_port}") as refusal:
        listen_on(Settings(host="127.0.0.2,127.0.0.1", port=taken_port))
    assert refusal.value.code is ExitCode.ADDRESS


def test_taken_port_of_mns(taken_port: int) -> None:
    """The setting is named, how it came to that port, and what may be done."""
    with pytest.raises(StartFailed, match=f"127.0.0.1 port {taken_port}: .*in use") as refusal:
        listen_for_mns(Settings(port=taken_port - 10))
    assert refusal.value.code is ExitCode.ADDRESS
    assert "mns_port is 'auto', which is port + 10" in str(refusal.value)
    assert "'shared'" in str(refusal.value)
    with pytest.raises(StartFailed, match=f"mns_port is '{taken_port}': set another port"):
        listen_for_mns(Settings(mns_port=str(taken_port)))


def test_unknown_host() -> None:
    """A name that means nothing is refused."""
    with pytest.raises(StartFailed, match=r"cannot listen on nowhere\.invalid .*\(host\)"):
        listen_on(Settings(host="nowhere.invalid"))


def test_name_that_means_another_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """The development account stays off the network even if localhost is not loopback."""
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("0.0.0.0", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **named: [address])
    with pytest.raises(StartFailed, match=r"dev_account: host 'localhost' means 0\.0\.0\.0"):
        listen_on(Settings(host="localhost", port=0))


def test_address_of_version_6() -> None:
    """An IPv6 address is in brackets in a URL, and may be in the settings."""
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        (listener,) = listen_on(Settings(host="[::1]", port=0))
    except StartFailed:
        pytest.skip("this machine has no IPv6 loopback")
    with listener:
        assert url_of(listener, tls=True) == f"https://[::1]:{listener.getsockname()[1]}"


@pytest.mark.parametrize(("hard", "allowed"), [(10_000, 1_512), (1_000, 1_000)])
def test_limit_on_open_files_is_raised(
    monkeypatch: pytest.MonkeyPatch, hard: int, allowed: int
) -> None:
    """It is raised as far as it may, and less than is needed is said."""
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    with structlog.testing.capture_logs() as events:
        raise_file_limit(1_000)
    assert set_to == [(allowed, hard)]
    assert [event["event"] for event in events] == ["server.few_open_files"] * (hard < 1_512)


def test_limit_that_is_high_enough_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lowered."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100_000, 100_000))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: pytest.fail("changed"))
    raise_file_limit(1_000)


ISSUER = {
    "oidc_issuer": ("https://issuer.test/",),
    "oidc_audience": ("https://storage.azure.com",),
    "tls_terminated": True,
}


def test_no_tokens_without_an_issuer() -> None:
    """Tokens are off unless an issuer is set."""
    assert bearer_verifier(Settings()) is None


def test_tokens_by_a_file_of_keys(tmp_path: Path) -> None:
    """The settings reach what checks the tokens."""
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": []}))
    settings = Settings(
        **ISSUER,  # type: ignore[arg-type]
        oidc_jwks=(str(file),),
        oidc_roles_claim="groups",
        oidc_default_roles=("Storage Queue Data Reader",),
        oidc_accounts=("devstoreaccount1",),
        oidc_leeway_s=5,
    )
    verifier = bearer_verifier(settings)
    assert isinstance(verifier, BearerVerifier)
    config = verifier.config
    assert config.issuers == {"https://issuer.test/"}
    assert config.audiences == {"https://storage.azure.com"}
    assert config.key_set == {"keys": []}
    assert config.key_set_url is None
    assert config.accounts == frozenset({"devstoreaccount1"})
    assert (config.roles_claim, config.leeway_s) == ("groups", 5)
    assert config.default_roles == {"Storage Queue Data Reader"}


def test_tokens_need_the_extra_that_checks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not installed it is told so at the start, not at the first token."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(StartFailed, match=r"oidc_issuer: .* cryptography: .*'\.\[oidc\]'"):
        bearer_verifier(Settings(**ISSUER, oidc_jwks=("https://issuer.test/keys",)))  # type: ignore[arg-type]


def test_exports_need_the_extra_that_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start says how to install it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in [each for each in sys.modules if each.startswith("leasehold.events.parquet")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(StartFailed, match=r"events_folder: .* pyarrow: .*'\.\[arrow\]'") as refusal:
        event_log_plan(Settings(events_folder=Path("events")))
    assert refusal.value.code is ExitCode.SETTINGS


def test_tokens_by_fetched_keys() -> None:
    """An address is fetched from later, not read at the start."""
    verifier = bearer_verifier(Settings(**ISSUER, oidc_jwks=("https://issuer.test/keys",)))  # type: ignore[arg-type]
    assert isinstance(verifier, BearerVerifier)
    assert verifier.config.key_set is None
    assert verifier.config.key_set_url == "https://issuer.test/keys"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"oidc_jwks": ("/nowhere/jwks.json",)}, "oidc_jwks: /nowhere/jwks.json cannot be read"),
        ({"oidc_jwks": (__file__,)}, "oidc_jwks: .* cannot be read"),
        (
            {"oidc_jwks": ("https://x",), "oidc_default_roles": ("Owner of All",)},
            "'Owner of All' is not a role",
        ),
    ],
)
def test_unusable_settings_of_tokens(settings: dict[str, object], text: str) -> None:
    """A missing or wrong file, and a role that does not exist, stop the start."""
    with pytest.raises(StartFailed, match=text) as refusal:
        bearer_verifier(Settings(**ISSUER, **settings))  # type: ignore[arg-type]
    assert refusal.value.code is ExitCode.SETTINGS


def _warnings(settings: Settings) -> list[str]:
    with structlog.testing.capture_logs() as events:
        assert bearer_verifier(settings) is not None
    return [event["event"] for event in events]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"keys": []}, ["server.no_token_keys"]),
        ({}, ["server.no_token_keys"]),
        ([], ["server.no_token_keys"]),
        ({"keys": [jwk_of(rsa_key(), use="enc")]}, ["server.no_token_keys"]),
        ({"keys": [jwk_of(rsa_key("short", 1024))]}, ["server.no_token_keys"]),
        ({"keys": [jwk_of(rsa_key())]}, []),
        ({"keys": [nameless(rsa_key())]}, []),
    ],
)
def test_a_file_without_keys_is_told(tmp_path: Path, content: object, expected: list[str]) -> None:
    """A set that verifies no token is no reason not to start, but is not passed over in silence."""
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(content))
    assert _warnings(Settings(**ISSUER, oidc_jwks=(str(file),))) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ({}, ["server.tokens_without_tls"]),
        ({"tls_terminated": True}, []),
        ({"tls_cert": Path("cert.pem"), "tls_key": Path("key.pem")}, []),
    ],
)
def test_tokens_without_tls_are_told(tls: dict[str, object], expected: list[str]) -> None:
    """Tokens are taken over https only, so a server without it takes none."""
    fetched = {**ISSUER, "tls_terminated": False, "oidc_jwks": ("https://issuer.test/keys",), **tls}
    assert _warnings(Settings(**fetched)) == expected  # type: ignore[arg-type]


def test_several_issuers(tmp_path: Path) -> None:
    """Each has the keys that stand in its place; audiences and roles are those of all."""
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [jwk_of(rsa_key())]}))
    settings = Settings(
        oidc_issuer=("https://one.test/", "https://two.test/"),
        oidc_jwks=("https://one.test/keys", str(file)),
        oidc_audience=("https://storage.azure.com",),
        tls_terminated=True,
    )
    found = bearer_verifier(settings)
    assert isinstance(found, IssuersVerifier)
    configs = [each.config for each in found.verifiers]
    assert [each.issuers for each in configs] == [{"https://one.test/"}, {"https://two.test/"}]
    assert [each.key_set_url for each in configs] == ["https://one.test/keys", None]
    assert {each.audiences for each in configs} == {frozenset(("https://storage.azure.com",))}
    assert found.may_use("devstoreaccount1")
