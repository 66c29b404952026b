"""The reference pages name everything that is there, and nothing that is not."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, get_args, get_type_hints

import click
import pytest

from leasehold.auth.roles import ROLE_ACTIONS, operations_of
from leasehold.auth.sas import ACCOUNT_RIGHTS, QUEUE_RIGHTS
from leasehold.auth.types import Operation
from leasehold.cli import main
from leasehold.clock import SystemClock
from leasehold.domain import commands, limits
from leasehold.domain.errors import LeaseLost
from leasehold.domain.model import Message, MessageState
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.engine import Engine
from leasehold.engine.stats import QueueStats
from leasehold.http.admission import Admission
from leasehold.http.app import RequestStats
from leasehold.http.azure import MAX_REQUEST_BODY_BYTES, call, queues, service
from leasehold.http.azure.dialect import RULES
from leasehold.http.azure.errors import CODES, TABLE
from leasehold.http.guard import ALL_REFUSALS, ConnectionLimits, Guard
from leasehold.server.metrics import Metrics
from leasehold.server.settings import all_settings
from leasehold.server.startup import ExitCode
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.connection import APPLICATION_ID
from tests.docs.pages import DOCS, ROOT, code, read, rows, section

SOURCE: Final = ROOT / "src" / "leasehold"
CLI: Final = read("reference/cli.md")
CONFORMANCE: Final = read("reference/azure-conformance.md")
ERRORS: Final = read("reference/errors.md")
GLOSSARY: Final = read("glossary.md")
HTTP: Final = read("reference/http.md")
METRICS: Final = read("reference/metrics.md")
OTHERS: Final = {
    *("queue_name", "queue_name_prefix", "queue_settings"),
    *("queue_declare", "queue_purge", "server_name", "server_poison"),
}
"""What looks like a metric and is a word of nginx, an SDK or AMQP, a capability, or a module."""


def table(text: str, heading: str) -> dict[str, list[str]]:
    """Return the rows under a heading by what stands between backticks in their first cells."""
    return {code(row[0])[0]: row for row in rows(section(text, heading)) if code(row[0])}


# --- command line and settings ---------------------------------------------------------------


def all_commands(
    group: click.Group, path: str = "leasehold"
) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands that do something, as they are typed."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS: Final = dict(all_commands(main))


def options(command: click.Command) -> set[str]:
    """Return the options of a command, short ones too."""
    return {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.mark.parametrize("typed", COMMANDS)
def test_every_command_and_option(typed: str) -> None:
    """Each command, and each of its options, is named on the page."""
    assert re.search(rf"\b{typed}\b", CLI), typed
    assert options(COMMANDS[typed]) - {word.split(" ")[0] for word in code(CLI)} == set()


def test_no_option_that_does_not_exist() -> None:
    """What looks like an option on the page is one."""
    known = set().union(*map(options, (main, *COMMANDS.values()))) | {"-h", "--help"}
    named = {re.split("[ =]", word)[0] for word in code(CLI) if re.match("--?[a-z]", word)}
    assert named - known == set()


def test_every_exit_code() -> None:
    """The table has the codes of the server, and that of a wrong command line."""
    listed = {row[0] for row in rows(section(CLI, "### Exit codes"))} - {"Code"}
    assert listed == {str(int(each)) for each in ExitCode} | {"2"}


def test_every_log_event() -> None:
    """What the source logs is in the table, and the other way round."""
    text = "\n".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    logged = set(re.findall(r"log\.[a-z]+\(\s*(?:record\.levelno,\s*)?\"([a-z]+\.[a-z_]+)\"", text))
    logged |= set(re.findall(r"action=\"([a-z]+\.[a-z_]+)\"", text))
    listed = {name for row in rows(read("reference/log-events.md")) for name in code(row[0])}
    assert listed == logged


@pytest.mark.parametrize("name", all_settings())
def test_every_setting(name: str) -> None:
    """Each setting has its entry, and those of the limits of HTTP are explained there too."""
    assert f"\n### `{name}`\n" in read("reference/settings.md")
    if all_settings()[name][0].group in {"Load", "Connections"}:
        assert f"`{name}`" in section(HTTP, "## Limits")


def test_settings_that_pages_name_exist() -> None:
    """A word on any page that looks like a variable of the environment is one."""
    known = {f"LEASEHOLD_{name.upper()}" for name in all_settings()}
    known |= {"LEASEHOLD_CONFIG", "LEASEHOLD_TEST_ENDPOINT"}
    for page in (*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        named = set(re.findall(r"\bLEASEHOLD_[A-Z_]+[A-Z]\b", page.read_text("utf-8")))
        assert named <= known, page


# --- metrics ---------------------------------------------------------------------------------


def exported() -> dict[str, str]:
    """Return the names and types of everything that ``/metrics`` shows."""

    async def scrape() -> bytes:
        clock = SystemClock()
        engine = Engine(MemoryStore(), clock)
        requests = RequestStats()
        requests.answered("put-message", 201)
        engine.stats.queues["a", "q"] = QueueStats()
        return await Metrics(
            requests=requests,
            engine=engine,
            admission=Admission(engine.perform, limit=1),
            guard=Guard(ConnectionLimits(), clock),
            clock=clock,
            max_queues=1,
        ).text()

    text = asyncio.run(scrape()).decode()
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))


def test_every_metric() -> None:
    """Name and type of each metric stand on its page; no page on today names another one."""
    found = exported()
    listed = {code(row[0])[0]: row[1] for row in rows(METRICS) if code(row[0])}
    ours = {name: kind for name, kind in found.items() if not name.startswith("process_")}
    assert {name: kind for name, kind in listed.items() if "_" in name and name in found} == ours
    changes = DOCS / "reference" / "changes-0.2.md"
    for page in {*DOCS.rglob("*.md"), ROOT / "README.md"} - {changes}:
        words = re.findall(
            r"\b(?:leasehold_)?(?:server|queue|process)_[a-z_]*[a-z]\b", page.read_text("utf-8")
        )
        named = {re.sub(r"_bucket$", "", word) for word in words}
        assert named - set(found) - OTHERS == set(), page


def test_every_refusal() -> None:
    """Each reason for ending a connection is explained where it is counted and where it happens."""
    reasons = {each.reason for each in ALL_REFUSALS}
    assert reasons <= set(table(METRICS, "## The server"))
    assert reasons <= set(code(section(HTTP, "## Refusals")))
    for each in ALL_REFUSALS:
        if each.response:
            status = each.response.split(b" ")[1].decode()
            row = next(row for row in rows(section(HTTP, "## Refusals")) if each.reason in row[1])
            assert row[0] == status


# --- the dialect -----------------------------------------------------------------------------


def test_every_operation() -> None:
    """The table has each operation, with its first version and whether the secondary serves it."""
    listed = table(CONFORMANCE, "## Operations")
    assert set(listed) == set(Operation)
    for operation, rules in RULES.items():
        since = "" if rules.since == call.OLDEST else rules.since
        assert listed[operation][4] == since, operation
        secondary = "yes" if rules.on_secondary else "no"
        assert listed[operation][5] in {secondary, "only"}, operation


ROLES: Final[Mapping[str, str]] = {
    "Contributor": "Storage Queue Data Contributor",
    "Reader": "Storage Queue Data Reader",
    "Processor": "Storage Queue Data Message Processor",
    "Sender": "Storage Queue Data Message Sender",
    "Account Contributor": "Storage Account Contributor",
}


def test_who_may_do_what() -> None:
    """The table of rights is that of the code."""
    assert set(ROLES.values()) == set(ROLE_ACTIONS)
    listed = table(CONFORMANCE, "## Permissions { #who-may-do-what }")
    assert set(listed) == set(Operation)
    for operation in Operation:
        _, account, queue, roles = listed[operation]
        right = ACCOUNT_RIGHTS.get(operation)
        expected = [right.resource_type, *right.letters] if right else []
        assert code(account) == expected, operation
        assert code(queue) == list(QUEUE_RIGHTS.get(operation, "")), operation
        allowed = {
            short for short, role in ROLES.items() if operation in operations_of(frozenset((role,)))
        }
        assert {name for name in roles.split(", ") if name} == allowed, operation


def test_every_role_is_described() -> None:
    """Whoever sets up tokens finds the names of the roles."""
    for role in ROLE_ACTIONS:
        assert f"| {role} |" in read("howto/bearer-tokens.md")


def test_every_error_code() -> None:
    """Each code has its row with its status, and the table has no other codes."""
    listed = {
        (code(row[0])[0], int(row[1])) for row in rows(section(ERRORS, "## Codes")) if code(row[0])
    }
    expected = {(name, meaning.status) for name, meaning in CODES.items()}
    for kind, to_fault in TABLE.items():
        if kind.__module__.startswith("leasehold.auth"):
            fault = to_fault(kind())
            expected.add((fault.code, fault.status))
    assert listed == expected
    never = section(ERRORS, "## Codes").rpartition("never sent")[2]
    assert set(code(never)) & set(CODES) == set()


def test_limits() -> None:
    """The numbers of the table are those of the code."""
    text = section(CONFORMANCE, "## Limits")
    for number in (
        limits.AZURE.body_bytes,
        limits.AZURE_BEFORE_2011_08_18.body_bytes,
        MAX_REQUEST_BODY_BYTES,
        limits.AZURE.renew_s[1],
        limits.AZURE_BEFORE_2011_08_18.lease_s[1],
        limits.AZURE.receive_count[1],
        queues.MAX_RESULTS,
        limits.MAX_POLICIES,
        limits.MAX_POLICY_ID,
        service.MAX_RULES,
        service.MAX_ORIGINS,
        service.MAX_ENTRY_CHARS,
    ):
        assert re.search(rf"(?<![\d,]){number:,}(?![\d,])", text), number
    for version in (call.OLDEST, call.NEWEST):
        assert version in section(CONFORMANCE, "## Versions")


def test_every_change_between_versions() -> None:
    """Each version that the code knows as a turning point is in the list of changes."""
    known = {
        value
        for name, value in vars(call).items()
        if name.endswith("_SINCE") and isinstance(value, str)
    }
    listed = {row[0] for row in rows(section(CONFORMANCE, "## Versions"))}
    assert known <= listed


# --- states and words ------------------------------------------------------------------------


def test_the_state_diagram_has_exactly_the_states() -> None:
    """Those of the picture, of the table below it, and of the code."""
    picture = (DOCS / "explanation" / "states.svg").read_text("utf-8")
    drawn = re.findall(r'<text class="state"[^>]*>([^<]+)</text>', picture)
    assert sorted(drawn) == sorted(MessageState)
    page = read("explanation/visibility.md")
    assert list(table(page, "## States")) == drawn
    for rule in LapsedReceipts:
        assert f"**`{rule}`**" in page


def words() -> set[str]:
    """Return the words that the code has for what users meet."""
    c = commands
    on_messages = (c.Put, c.Receive, c.Peek, c.Renew, c.Complete, c.Release, c.Batch, c.Clear)
    verbs = {kind.__name__.lower() for kind in on_messages}
    facts = {
        re.sub(r"_(at_)?ms$", "", field).replace("_", " ").removesuffix(" at")
        for field in Message._fields
    }
    reasons = get_args(get_type_hints(LeaseLost.__init__)["reason"])
    assert verbs, reasons
    things = {"account", "queue", "message", "lease", "receipt", "metadata", "stored policy"}
    things |= {"visibility timeout", "time to live", "poison queue", "dialect", "batch", "store"}
    return things | verbs | facts | set(reasons) | set(MessageState) | set(LapsedReceipts)


def test_every_word_is_in_the_glossary() -> None:
    """States, verbs, facts about messages, rules and things are explained, each once a table."""
    explained = [re.sub(r"\*", "", row[0]) for row in rows(GLOSSARY)]
    assert words() - set(explained) == set()


def test_the_glossary_uses_no_word_twice_in_a_section() -> None:
    """One word for one thing."""
    for heading in re.findall(r"^## .+$", GLOSSARY, re.MULTILINE):
        listed = [row[0] for row in rows(section(GLOSSARY, heading))]
        assert len(listed) == len(set(listed)), heading


def test_words_with_two_meanings_are_kept_apart() -> None:
    """What two sections of the glossary have, the list says how to tell apart."""
    apart = {row[0] for row in rows(section(GLOSSARY, "## Words with two meanings"))}
    headings = set(re.findall(r"^(## .+?)(?: \{.*)?$", GLOSSARY, re.MULTILINE))
    headings.remove("## Words with two meanings")
    listed = Counter(
        row[0].replace("**to ", "**")
        for heading in headings
        for row in rows(section(GLOSSARY, heading))
        if row[0].startswith("**")
    )
    twice = {word for word, times in listed.items() if times > 1}
    assert "**stage**" in twice
    assert twice - apart == set()
    assert apart - set(listed) - {"Word", "**commit**"} == set()


# --- the database ----------------------------------------------------------------------------


def test_the_format_of_the_database(tmp_path: Path) -> None:
    """Tables, columns, indexes, settings and noted values of a new database are on the page."""
    page = read("reference/sqlite-format.md")
    store = SqliteStore(tmp_path)
    try:
        connection = store._connection
        found = connection.execute("SELECT type, name FROM sqlite_schema").fetchall()
        for kind, name in found:
            if kind == "table":
                columns = connection.execute(f"SELECT name FROM pragma_table_info('{name}')")
                text = section(page, f"### {name}")
                if name != "meta":
                    assert {column for (column,) in columns} <= set(code(text)), name
            elif kind == "trigger":
                assert f"`{name}`" in page
            elif not str(name).startswith("sqlite_"):
                assert name in table(page, "## Indexes")
        values = {name for (name,) in connection.execute("SELECT name FROM meta")}
        assert set(table(page, "### meta")) == values
        for name, row in table(page, "# SQLite format").items():
            if name in {"user_version", "page_size", "synchronous", "auto_vacuum"}:
                assert str(connection.pragma(name)) in row[1], name
    finally:
        store.close()
    assert f"0x{APPLICATION_ID:X}" in page
