"""Whatever a message, a worker or an address says is shown as text, and changes no page."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Final

import pytest
from playwright.sync_api import Browser, Route

from leasehold.client.errors import LeaseholdClientError, ServerProblem
from leasehold.client.models import ErrorReport, NewMessage
from leasehold.wire.flows import ExecutorReport, PipelineReport, StageReport
from tests.console.harness import Visit, World

HOSTILE: Final = (
    "\"'><img class=pwned src=x onerror='window.__pwned=1'><script>window.__pwned=2</script>"
    "<svg class=pwned onload='window.__pwned=3'><iframe class=pwned srcdoc='<script>'></iframe>"
    "<a class=pwned href='javascript:window.__pwned=4'>x</a></td></table></style></title>"
    "${window.__pwned=5}{{window.__pwned=6}}<style>main{display:none!important}</style>"
)
"""Ends attributes, elements and tables, and runs a script in whatever way one can."""
SHORT: Final = '"><img class=pwned src=x onerror="window.__pwned=7">'
"""The same for what may be 64 characters long."""
PART: Final = "onerror="
"""What is seen of it where it is shown as it is."""
SHOWN: Final = frozenset(
    {
        *("hostile-messages", "hostile-groups", "plain-messages", "streamed", "group", "workers"),
        *("worker", "message-json", "message-svg", "message-html", "message-failed"),
        "pipeline",
    }
)
"""Pages on which it is to be read."""

_HARM: Final = """() => [
  window.__pwned ?? null,
  document.querySelectorAll(".pwned, iframe, object, embed").length,
  document.querySelectorAll("script:not([src^='/console/static/'])").length,
  [...document.querySelectorAll("a[href], form[action]")]
    .filter((each) => /^\\s*(javascript|data|vbscript):/i.test(each.href ?? each.action)).length,
  [...document.querySelectorAll("*")]
    .filter((each) => each.getAttributeNames().some((name) => /^on/i.test(name))).length,
]"""
_UNFOLD: Final = """() => {
  for (const each of document.querySelectorAll("main details")) each.open = true;
}"""
_UNHARMED: Final = [None, 0, 0, 0, 0]


def fill(world: World, stack: contextlib.ExitStack) -> dict[str, str]:
    """Put hostile text wherever the API takes any; return the addresses of the pages."""
    client = world.client
    queue = client.queue("hostile")
    queue.create(
        metadata={"note": HOSTILE},
        settings={"failure_policy": {"max_failures": 1}, "groups": {"order": "fifo"}},
    )
    plain = client.queue("plain")
    plain.create(settings={"failure_policy": {"max_failures": 9}})
    plain.pause(reason=HOSTILE[:200])
    plain.resume()
    properties = {HOSTILE[:100]: HOSTILE, "region": HOSTILE}
    message = NewMessage(
        json.dumps({HOSTILE: [HOSTILE, {SHORT: HOSTILE}]}),
        type=SHORT,
        properties=properties,
        group_id=HOSTILE[:120],
        dedup_key=HOSTILE[:120],
    )
    sent = queue.put_many([message, NewMessage(HOSTILE, type=SHORT, group_id="other")])
    for each in sent:
        assert not isinstance(each, ServerProblem), each
    as_image = plain.put(f"<svg xmlns='http://www.w3.org/2000/svg'>{HOSTILE}</svg>", type=SHORT)
    as_page = plain.put(f"<!doctype html><html>{HOSTILE}</html>", type="text/html")
    failed = plain.put(HOSTILE, type=SHORT, properties=properties)
    session = stack.enter_context(client.session(HOSTILE, timeout_s=3600, heartbeat=None))
    (held,) = queue.receive(1, session=session)
    session.progress(held, 0.5, HOSTILE[:200])
    queue.cancel(held.id, HOSTILE[:200])
    session.beat()
    queue.halt_group(HOSTILE[:120], HOSTILE[:200])
    over = client.session(HOSTILE, timeout_s=3600, heartbeat=None)
    over.open()
    over.close(HOSTILE[:200])
    report = ErrorReport(text=HOSTILE, type=SHORT, fingerprint=SHORT[:16])
    for tried in plain.receive(3, holder=HOSTILE[:200]):
        plain.release(tried, outcome="failed", delay_s=600, error=report)
    for other in queue.receive(1, holder=HOSTILE[:200]):
        queue.bury(other, report)
    fill_stream(world)
    fill_pipeline(world)
    queue.purge(dry_run=True, wait_s=5)
    return _addresses([each.id for each in (held, as_image, as_page, failed)], session.id)


def _addresses(messages: Sequence[str], session_id: str) -> dict[str, str]:
    """Return the addresses of the pages, by names of their own."""
    return {
        "overview": "#/",
        **{
            f"hostile-{tab}": f"#/queues/hostile?tab={tab}"
            for tab in ("overview", "messages", "groups", "settings", "advice")
        },
        **{f"plain-{tab}": f"#/queues/plain?tab={tab}" for tab in ("overview", "messages")},
        "streamed": "#/queues/streamed?tab=streams",
        "message-json": f"#/messages/hostile/{messages[0]}",
        "message-svg": f"#/messages/plain/{messages[1]}",
        "message-html": f"#/messages/plain/{messages[2]}",
        "message-failed": f"#/messages/plain/{messages[3]}",
        "group": f"#/groups/hostile/{_quoted(HOSTILE[:120])}",
        "workers": "#/workers",
        "worker": f"#/workers/{session_id}",
        "streams": "#/streams",
        "stream": "#/streams/streamed/reader",
        "transactions": "#/transactions",
        "transaction": "#/transactions/staged",
        "jobs": "#/jobs",
        "events": "#/events",
        "pipelines": "#/pipelines",
        "pipeline": "#/pipelines/films",
        "server": "#/server",
    }


def fill_stream(world: World) -> None:
    """Have messages in a claim, and others that are staged."""
    client = world.client
    stream = client.queue("streamed")
    stream.create()
    stream.put_many([HOSTILE] * 3)
    reader = stream.stream("reader")
    reader.attach()
    reader.open(1, limit=2, lease_s=3600, holder=HOSTILE[:200])
    client.transaction("staged").stage([HOSTILE], queue="streamed", part=SHORT)


def fill_pipeline(world: World) -> None:
    """Have a pipeline report stages, executors and a failure."""
    report = PipelineReport(
        queue="plain",
        state="failed",
        began_at_ms=1,
        stages=(StageReport(name=SHORT, working=1, failed=1),),
        executors=(ExecutorReport(name=HOSTILE[:100], tasks=1, in_work=1),),
        in_work=1,
        failure=HOSTILE,
    )
    world.client.report_pipeline("films", report)


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[World, dict[str, str]]]:
    """Give a server that is full of it, and its pages."""
    with World() as world, contextlib.ExitStack() as stack:
        yield world, fill(world, stack)


def test_on_every_page(
    stage: tuple[World, dict[str, str]], browser: Browser, subtests: pytest.Subtests
) -> None:
    """Nothing runs, nothing is added to the page, and what was written is there to be read."""
    world, pages = stage
    seen = ""
    with Visit(browser, world.url) as visit:
        visit.sign_in()
        for name, address in pages.items():
            with subtests.test(name):
                visit.open(address).settle()
                visit.page.evaluate(_UNFOLD)
                assert visit.page.evaluate(_HARM) == _UNHARMED
                assert visit.page.locator("main").is_visible()
                shown = visit.text
                seen += shown
                if name in SHOWN:
                    assert PART in shown
        assert not visit.troubles
    assert HOSTILE in seen


@pytest.mark.parametrize(
    "address",
    [
        f"#/queues/{SHORT}",
        f"#/queues/orders?tab=messages&search={SHORT}&state={SHORT}&holder={SHORT}",
        f"#/messages/orders/{SHORT}",
        f"#/groups/orders/{SHORT}",
        f"#/workers/{SHORT}",
        f"#/streams/{SHORT}/{SHORT}",
        f"#/jobs/{SHORT}",
        f"#/transactions/{SHORT}",
        f"#/events?type={SHORT}&queue={SHORT}&actor={SHORT}",
        f"#/pipelines/{SHORT}",
        f"#/{SHORT}",
        f"#sign-in-failed={SHORT}",
    ],
)
def test_in_the_address(world: World, operator: Visit, address: str) -> None:
    """A link that somebody was sent runs nothing, whatever it names."""
    operator.expect("status of 40[04]")
    world.client.queue("orders").create()
    operator.open("#/")
    operator.page.evaluate("(address) => { location.hash = address; }", address)
    operator.page.wait_for_timeout(300)
    operator.settle()
    assert operator.page.evaluate(_HARM) == _UNHARMED


@pytest.mark.parametrize("name", [SHORT, "<b>", "a&b", "a'b", 'a"b'])
def test_names_that_cannot_be_given(world: World, name: str) -> None:
    """Queues, streams and transactions have plain names, so pages show no others."""
    client = world.client
    client.queue("orders").create()
    done = PipelineReport(queue="orders", state="done", began_at_ms=1)
    for make in (
        client.queue(name).create,
        client.queue("orders").stream(name).attach,
        lambda: client.transaction(name).stage(["x"], queue="orders"),
        lambda: client.report_pipeline(name, done),
    ):
        with pytest.raises(LeaseholdClientError):
            make()


def test_in_an_error_of_the_server(world: World, operator: Visit) -> None:
    """A problem is shown as text, too, whoever has written it."""
    world.client.queue("orders").create()
    operator.expect("status of 500")

    def fail(route: Route) -> None:
        problem = {"title": HOSTILE, "detail": HOSTILE, "remedy": HOSTILE, "code": SHORT}
        route.fulfill(status=500, json=problem, content_type="application/problem+json")

    operator.page.route("**/v1/accounts/**", fail)
    operator.open("#/queues/orders")
    operator.sees(PART)
    assert operator.page.evaluate(_HARM) == _UNHARMED


def test_control_of_the_check(operator: Visit) -> None:
    """Markup that does get into the page is found, and the page's policy stops its script."""
    operator.expect("Content Security Policy|ERR_|status of 40[04]")
    operator.open()
    operator.page.evaluate(
        "(text) => document.querySelector('main').insertAdjacentHTML('beforeend', text)", HOSTILE
    )
    pwned, *found = operator.page.evaluate(_HARM)
    assert pwned is None
    assert found != _UNHARMED[1:]
