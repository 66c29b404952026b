"""Where settings come from, which source wins, and what is refused on the way."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from leasehold.server.settings import Loaded, SettingsError, load_settings

KEY1 = base64.b64encode(b"1" * 32).decode()
KEY2 = base64.b64encode(b"2" * 64).decode()


def load(
    tmp_path: Path,
    *,
    file: str = "",
    flags: dict[str, str | bool] | None = None,
    **environment: str,
) -> Loaded:
    """Load settings from a file with this text, these options and this environment alone."""
    path = tmp_path / "leasehold.toml"
    path.write_text(file)
    return load_settings(flags or {}, file=path, environment=environment)


def refused(tmp_path: Path, **sources: Any) -> str:
    """Return why the settings are refused."""
    with pytest.raises(SettingsError) as refusal:
        load(tmp_path, **sources)
    return str(refusal.value)


def test_first_source_that_has_a_setting_wins(tmp_path: Path) -> None:
    """An option beats the environment, which beats the file, which beats the default."""
    file = "port = 1\nmax_connections = 1\nlog_level = 'error'"
    loaded = load(
        tmp_path,
        file=file,
        flags={"port": "3"},
        LEASEHOLD_PORT="2",
        LEASEHOLD_MAX_CONNECTIONS="2",
    )
    settings, origins = loaded.settings, loaded.origins
    assert (settings.port, origins["port"]) == (3, "option --port")
    assert settings.max_connections == 2
    assert origins["max_connections"] == "environment LEASEHOLD_MAX_CONNECTIONS"
    assert settings.log_level == "error"
    assert origins["log_level"] == f"file {tmp_path / 'leasehold.toml'}"
    assert (settings.host, origins["host"]) == ("127.0.0.1", "default")


def test_environment_names_the_file(tmp_path: Path) -> None:
    """Without an option the environment says which file to read."""
    (tmp_path / "a.toml").write_text("port = 1")
    environment = {"LEASEHOLD_CONFIG": str(tmp_path / "a.toml")}
    assert load_settings({}, environment=environment).settings.port == 1


def test_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's own environment is what counts in earnest."""
    monkeypatch.setenv("LEASEHOLD_PORT", "7")
    assert load_settings({}).settings.port == 7


def test_values_in_text(tmp_path: Path) -> None:
    """Text becomes what the setting is."""
    settings = load(
        tmp_path,
        LEASEHOLD_DATA="/srv/data",
        LEASEHOLD_HEADER_TIMEOUT_S="2.5",
        LEASEHOLD_TLS_TERMINATED="Yes",
        LEASEHOLD_ACCOUNTS=f"orders:{KEY1}",
        LEASEHOLD_METRICS_ENABLED="off",
        LEASEHOLD_OIDC_DEFAULT_ROLES="a, b,",
        PATH="/ignored",
    ).settings
    assert settings.data == Path("/srv/data")
    assert settings.header_timeout_s == 2.5
    assert settings.tls_terminated is True
    assert settings.metrics_enabled is False
    assert settings.oidc_default_roles == ("a", "b")


def test_values_in_the_file(tmp_path: Path) -> None:
    """The file's own types are used; whole numbers do for numbers."""
    settings = load(
        tmp_path,
        file="""
            data = "/srv/data"
            header_timeout_s = 2
            tls_terminated = true
            oidc_default_roles = ["a", "b"]
            [accounts.orders]
            key1 = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE="
        """,
    ).settings
    assert settings.data == Path("/srv/data")
    assert settings.header_timeout_s == 2.0
    assert isinstance(settings.header_timeout_s, float)
    assert settings.tls_terminated is True
    assert settings.oidc_default_roles == ("a", "b")


def test_accounts_in_the_file(tmp_path: Path) -> None:
    """A table per account, with one key or two."""
    file = f"[accounts.orders]\nkey1='{KEY1}'\nkey2='{KEY2}'\n[accounts.other]\nkey1='{KEY2}'"
    accounts = load(tmp_path, file=file).settings.accounts
    assert [(each.name, [key.reveal() for key in each.keys]) for each in accounts] == [
        ("orders", [b"1" * 32, b"2" * 64]),
        ("other", [b"2" * 64]),
    ]


def test_accounts_in_the_environment(tmp_path: Path) -> None:
    """One line holds all accounts."""
    text = f"orders:{KEY1}:{KEY2};other:{KEY2};"
    accounts = load(tmp_path, LEASEHOLD_ACCOUNTS=text).settings.accounts
    assert [(each.name, len(each.keys)) for each in accounts] == [("orders", 2), ("other", 1)]


def test_inspectors(tmp_path: Path) -> None:
    """Inspectors are written as accounts are, in the file and in the environment."""
    account = f"[accounts.orders]\nkey1='{KEY1}'\n"
    loaded = load(tmp_path, file=f"{account}[inspectors.orders]\nkey1='{KEY2}'")
    assert [each.name for each in loaded.settings.inspectors] == ["orders"]
    loaded = load(tmp_path, file=account, LEASEHOLD_INSPECTORS=f"orders:{KEY2}")
    assert [each.name for each in loaded.settings.inspectors] == ["orders"]
    assert loaded.origins["inspectors"] == "environment LEASEHOLD_INSPECTORS"


def test_unknown_key_of_the_file(tmp_path: Path) -> None:
    """A mistyped key is refused with the nearest name and the file."""
    text = refused(tmp_path, file="max_conections = 5")
    assert "max_conections: there is no such setting; did you mean max_connections? (file " in text


def test_unknown_variable(tmp_path: Path) -> None:
    """A mistyped variable is refused with the nearest name."""
    text = refused(tmp_path, LEASEHOLD_PROT="1")
    assert "LEASEHOLD_PROT: there is no such setting; did you mean LEASEHOLD_PORT?" in text


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """What is unknown, what cannot be read, and what is out of bounds."""
    text = refused(
        tmp_path,
        file="max_conections = 1\nlog_format = 7\nbody_timeout_s = -1",
        LEASEHOLD_PROT="1",
        LEASEHOLD_PORT="70000",
    )
    found = [line.partition(":")[0] for line in text.splitlines()]
    assert found == ["max_conections", "log_format", "LEASEHOLD_PROT", "port", "body_timeout_s"]


def test_what_follows_from_another_problem_is_not_told(tmp_path: Path) -> None:
    """Nobody knows which accounts there are when these cannot be read."""
    text = refused(
        tmp_path,
        file="oidc_accounts = ['shop']\noidc_issuer = 'https://issuer.test'",
        LEASEHOLD_ACCOUNTS="shop:short",
    )
    found = [line.partition(":")[0] for line in text.splitlines()]
    assert found == ["accounts", "oidc_audience", "oidc_jwks"]
    missing = tmp_path / "missing.toml"
    with pytest.raises(SettingsError) as refusal:
        load_settings({"host": "0.0.0.0"}, file=missing, environment={})
    assert [each.field for each in refusal.value.problems] == ["config"]


def test_a_file_that_cannot_be_read_hides_nothing(tmp_path: Path) -> None:
    """What was given elsewhere is judged all the same."""
    given = {"port": "70000", "data": "d", "tls_cert": "c.pem"}
    environment = {"LEASEHOLD_STORE_URL": "postgresql://db/queues", "LEASEHOLD_LOG_LEVEL": "loud"}
    with pytest.raises(SettingsError) as refusal:
        load_settings(given, file=tmp_path / "missing.toml", environment=environment)
    found = [each.field for each in refusal.value.problems]
    assert found == ["config", "port", "log_level", "data"]


def test_a_missing_file_of_tls_is_told_with_the_rest(tmp_path: Path) -> None:
    """Where a server is to run with it; settings can be read on another machine."""
    given = {"port": "70000", "tls_cert": str(tmp_path / "c"), "tls_key": __file__}
    for to_serve, expected in ((True, ["port", "tls_cert"]), (False, ["port"])):
        with pytest.raises(SettingsError) as refusal:
            load_settings(given, environment={}, to_serve=to_serve)
        assert [each.field for each in refusal.value.problems] == expected
    assert load_settings(given | {"port": "0"}, environment={}).settings.tls_cert == tmp_path / "c"


def test_each_problem_names_the_source_that_has_it(tmp_path: Path) -> None:
    """Also where a later source has something better to say of the same setting."""
    text = refused(
        tmp_path,
        file="port = 'x'",
        flags={"port": "70000", "log_level": "loud"},
        LEASEHOLD_LOG_LEVEL="info",
        LEASEHOLD_IDLE_TIMEOUT_S="long",
    )
    assert text.splitlines() == [
        f"port: must be a whole number, 0 to 65,535 (file {tmp_path / 'leasehold.toml'})",
        (
            "idle_timeout_s: is 'long'; it must be a number, 75 to 86,400 "
            "(environment LEASEHOLD_IDLE_TIMEOUT_S)"
        ),
        "port: is 70000; it must be 0 to 65,535 (option --port)",
        "log_level: is 'loud'; it must be debug, info, warning or error (option --log-level)",
    ]


def test_a_folder_beside_a_database_is_refused(tmp_path: Path) -> None:
    """It would not be used; one that an image brings along is no wish of anybody's."""
    url = "postgresql://db/queues"
    with pytest.raises(SettingsError, match=r"data: is not used with store_url.*option --data"):
        load(tmp_path, flags={"data": "d"}, LEASEHOLD_STORE_URL=url)
    text = refused(tmp_path, file=f"data = 'd'\nstore_url = '{url}'")
    assert text.startswith("data: is not used with store_url")
    for sources in (
        {"LEASEHOLD_DATA": "d", "LEASEHOLD_STORE_URL": url},
        {"file": "data = 'd'", "LEASEHOLD_STORE_URL": url},
    ):
        assert load(tmp_path, **sources).settings.store_url is not None  # type: ignore[arg-type]


def test_unknown_name_that_is_near_nothing(tmp_path: Path) -> None:
    """No guess is better than a wild one."""
    assert refused(tmp_path, file="zzz = 1").startswith("zzz: there is no such setting (file ")
    text = refused(tmp_path, LEASEHOLD_NOPE="1")
    assert text == "LEASEHOLD_NOPE: there is no such setting (environment)"


@pytest.mark.parametrize("text", ["1_000", "nan", "1e3", "", "ten", "0x10", "\uff11"])
def test_unreadable_whole_number(tmp_path: Path, text: str) -> None:
    """Only plain digits are a whole number."""
    assert refused(tmp_path, LEASEHOLD_PORT=text) == (
        f"port: is {text!r}; it must be a whole number, 0 to 65,535 (environment LEASEHOLD_PORT)"
    )


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1_0.0", "soon"])
def test_unreadable_number(tmp_path: Path, text: str) -> None:
    """Only finite numbers are numbers."""
    text = refused(tmp_path, LEASEHOLD_HEADER_TIMEOUT_S=text)
    assert "header_timeout_s: is " in text
    assert "it must be a number" in text


def test_unreadable_switch(tmp_path: Path) -> None:
    """Anything but a yes or a no is refused."""
    assert "it must be true or false" in refused(tmp_path, LEASEHOLD_TLS_TERMINATED="maybe")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("port = '1'", "port: must be a whole number"),
        ("port = true", "port: must be a whole number"),
        ("port = 1.5", "port: must be a whole number"),
        ("header_timeout_s = true", "header_timeout_s: must be a number"),
        ("tls_terminated = 1", "tls_terminated: must be true or false"),
        ("host = 1", "host: must be text in quotes"),
        ("oidc_default_roles = 7", "oidc_default_roles: must be a list of texts"),
        ("oidc_default_roles = [1]", "oidc_default_roles: must be a list of texts"),
        ("accounts = 'a'", "accounts: must be a table"),
    ],
)
def test_wrong_type_in_the_file(tmp_path: Path, line: str, words: str) -> None:
    """A value of another type is refused, not converted."""
    assert refused(tmp_path, file=line).startswith(words)


def test_a_list_of_one_text_in_the_file(tmp_path: Path) -> None:
    """A text where a list is wanted is read as in an option: settings that were one text stay."""
    file = (
        "oidc_issuer = 'https://one.test/'\noidc_audience = 'a, b'\n"
        "oidc_jwks = ['https://one.test/keys']"
    )
    settings = load(tmp_path, file=file).settings
    assert settings.oidc_issuer == ("https://one.test/",)
    assert settings.oidc_jwks == ("https://one.test/keys",)
    assert settings.oidc_audience == ("a", "b")


def test_unreadable_file(tmp_path: Path) -> None:
    """A file that is missing or no TOML is refused by name."""
    assert "leasehold.toml cannot be read" in refused(tmp_path, file="port = ")
    with pytest.raises(SettingsError, match=r"nowhere\.toml cannot be read"):
        load_settings({}, file=Path("nowhere.toml"), environment={})


def test_value_out_of_bounds_names_its_origin(tmp_path: Path) -> None:
    """Whoever set the wrong value must be able to find it."""
    assert refused(tmp_path, LEASEHOLD_IDLE_TIMEOUT_S="5") == (
        "idle_timeout_s: is 5.0; it must be 75 to 86,400 seconds "
        "(environment LEASEHOLD_IDLE_TIMEOUT_S)"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"ab:{KEY1}", "'ab' is not a valid account name"),
        (f"{'a' * 25}:{KEY1}", "is not a valid account name"),
        (f"Orders:{KEY1}", "'Orders' is not a valid account name"),
        (f"or-ders:{KEY1}", "'or-ders' is not a valid account name"),
        (f"healthz:{KEY1}", "the server uses it as a path"),
        (f"readyz:{KEY1}", "the server uses it as a path"),
        (f"metrics:{KEY1}", "the server uses it as a path"),
        ("orders", "has 0 keys"),
        (f"orders:{KEY1}:{KEY1}:{KEY1}", "has 3 keys"),
        ("orders:c2hvcnQ=", "a key has 5 bytes; it must have at least 32"),
        ("orders:this is no base64!", "a key is not base64"),
    ],
)
def test_unusable_account(tmp_path: Path, text: str, words: str) -> None:
    """What is wrong with an account is said without showing its key."""
    told = refused(tmp_path, LEASEHOLD_ACCOUNTS=text)
    assert words in told
    assert KEY1 not in told
    assert "this is no" not in told


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[accounts]\norders = 'x'", "must be a table with key1"),
        (f"[accounts.orders]\nkey3 = '{KEY1}'", "has 'key3'; it may have key1 and key2"),
        (f"[accounts.orders]\nkey2 = '{KEY1}'", "has key2 but no key1"),
        ("[accounts.orders]\nkey1 = 5", "key1 must be text in quotes"),
        ("[accounts.orders]", "has 0 keys"),
    ],
)
def test_unusable_account_in_the_file(tmp_path: Path, table: str, words: str) -> None:
    """The form of an account's table is checked, too."""
    told = refused(tmp_path, file=table)
    assert words in told
    assert KEY1 not in told
