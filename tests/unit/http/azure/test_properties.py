"""Get and Set Queue Service Properties."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from leasehold.auth.types import Account
from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import GetAccountDocument, SetAccountDocument
from leasehold.domain.errors import Overloaded, StoreFull
from leasehold.http.azure import AzureDialect, service
from leasehold.http.requests import Response
from tests.unit.http.azure.support import ACCOUNT, BOM, Harness, error_of, make_request, root_of

_QUERY = "restype=service&comp=properties"
_OFF = "<RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
_METRICS_OFF = f"<Version>1.0</Version><Enabled>false</Enabled>{_OFF}"
_LOGGING = (
    "<Logging><Version>1.0</Version><Delete>true</Delete><Read>0</Read><Write>1</Write>"
    "<RetentionPolicy><Enabled>true</Enabled><Days>7</Days></RetentionPolicy></Logging>"
)
_DEFAULTS = (
    f"<Logging><Version>1.0</Version><Read>false</Read><Write>false</Write><Delete>false</Delete>"
    f"{_OFF}</Logging><HourMetrics>{_METRICS_OFF}</HourMetrics>"
    f"<MinuteMetrics>{_METRICS_OFF}</MinuteMetrics><Cors />"
)


def _rule(**replaced: str | None) -> str:
    nodes: dict[str, str | None] = {
        "AllowedOrigins": "https://a.example",
        "AllowedMethods": "GET,PUT",
        "MaxAgeInSeconds": "60",
        "ExposedHeaders": "x-ms-*",
        "AllowedHeaders": "x-ms-meta-*,content-type",
        **replaced,
    }
    inner = "".join(f"<{name}>{text}</{name}>" for name, text in nodes.items() if text is not None)
    return f"<CorsRule>{inner}</CorsRule>"


def _document(*sections: str) -> bytes:
    return f"<StorageServiceProperties>{''.join(sections)}</StorageServiceProperties>".encode()


def _set(azure: Harness, *sections: str, **options: Any) -> Response:
    return azure.send("PUT", f"/{ACCOUNT}/", _QUERY, body=_document(*sections), **options)


def _get(azure: Harness, **options: Any) -> str:
    response = azure.send("GET", f"/{ACCOUNT}", _QUERY, **options)
    assert response.status == 200
    prefix = BOM + b'<?xml version="1.0" encoding="utf-8"?><StorageServiceProperties>'
    body: bytes = response.body
    assert body.startswith(prefix)
    return body.removeprefix(prefix).decode().removesuffix("</StorageServiceProperties>")


def test_defaults(azure: Harness) -> None:
    """An account whose properties were never set has everything off."""
    assert _get(azure) == _DEFAULTS


def test_round_trip(azure: Harness) -> None:
    """All sections come back in the service's order, whatever the order of the request."""
    metrics = (
        "<RetentionPolicy><Days>365</Days><Enabled>true</Enabled></RetentionPolicy>"
        "<IncludeAPIs>true</IncludeAPIs><Enabled>true</Enabled><Version>1.0</Version>"
    )
    response = _set(
        azure,
        f"<Cors>{_rule()}{_rule(AllowedOrigins='*', ExposedHeaders='', AllowedHeaders='')}</Cors>",
        f"<MinuteMetrics>{metrics}</MinuteMetrics>",
        _LOGGING,
    )
    assert (response.status, response.body) == (202, b"")
    assert _get(azure) == (
        "<Logging><Version>1.0</Version><Read>false</Read><Write>true</Write><Delete>true</Delete>"
        "<RetentionPolicy><Enabled>true</Enabled><Days>7</Days></RetentionPolicy></Logging>"
        f"<HourMetrics>{_METRICS_OFF}</HourMetrics>"
        "<MinuteMetrics><Version>1.0</Version><Enabled>true</Enabled>"
        "<IncludeAPIs>true</IncludeAPIs>"
        "<RetentionPolicy><Enabled>true</Enabled><Days>365</Days></RetentionPolicy></MinuteMetrics>"
        "<Cors><CorsRule><AllowedMethods>GET,PUT</AllowedMethods>"
        "<AllowedOrigins>https://a.example</AllowedOrigins>"
        "<AllowedHeaders>x-ms-meta-*,content-type</AllowedHeaders>"
        "<ExposedHeaders>x-ms-*</ExposedHeaders><MaxAgeInSeconds>60</MaxAgeInSeconds></CorsRule>"
        "<CorsRule><AllowedMethods>GET,PUT</AllowedMethods><AllowedOrigins>*</AllowedOrigins>"
        "<AllowedHeaders /><ExposedHeaders /><MaxAgeInSeconds>60</MaxAgeInSeconds></CorsRule>"
        "</Cors>"
    )


def test_missing_section_keeps_its_value(azure: Harness) -> None:
    """What a request leaves out stays; an empty Cors clears the rules."""
    _set(azure, _LOGGING, f"<Cors>{_rule()}</Cors>")
    before = _get(azure)
    _set(azure)
    assert _get(azure) == before
    _set(azure, "<Cors/>")
    assert _get(azure).endswith("<Cors />")
    assert "<Days>7</Days>" in _get(azure)


def test_off_drops_what_belongs_to_on(azure: Harness) -> None:
    """IncludeAPIs of metrics that are off, and Days of no retention, are not given back."""
    retention = "<RetentionPolicy><Enabled>false</Enabled><Days>9</Days></RetentionPolicy>"
    _set(
        azure,
        "<HourMetrics><Version>1.0</Version><Enabled>False</Enabled>"
        f"<IncludeAPIs>true</IncludeAPIs>{retention}</HourMetrics>",
    )
    assert _get(azure) == _DEFAULTS


@pytest.mark.parametrize(
    ("sections", "code"),
    [
        ("<Wrong/>", "UnsupportedXmlNode"),
        ("<Metrics/>", "UnsupportedXmlNode"),
        ("<Cors/><Cors/>", "InvalidXmlDocument"),
        ("text", "InvalidXmlDocument"),
        ("<Logging/>", "MissingRequiredXmlNode"),
        (_LOGGING.replace("<Read>0</Read>", ""), "MissingRequiredXmlNode"),
        (_LOGGING.replace("<Days>7</Days>", ""), "MissingRequiredXmlNode"),
        (_LOGGING.replace("<Read>0</Read>", "<Read>no</Read>"), "InvalidXmlNodeValue"),
        (_LOGGING.replace("<Days>7<", "<Days>0<"), "InvalidXmlNodeValue"),
        (_LOGGING.replace("<Days>7<", "<Days>366<"), "InvalidXmlNodeValue"),
        (_LOGGING.replace("<Days>7<", "<Days>seven<"), "InvalidXmlNodeValue"),
        (_LOGGING.replace("</Logging>", "<More/></Logging>"), "UnsupportedXmlNode"),
        ("<HourMetrics><Version>1.0</Version></HourMetrics>", "MissingRequiredXmlNode"),
        (
            f"<HourMetrics><Version>1.0</Version><Enabled>true</Enabled>{_OFF}</HourMetrics>",
            "MissingRequiredXmlNode",
        ),
        ("<Cors><Rule/></Cors>", "UnsupportedXmlNode"),
        ("<Cors><CorsRule/></Cors>", "MissingRequiredXmlNode"),
        (f"<Cors>{_rule(MaxAgeInSeconds=None)}</Cors>", "MissingRequiredXmlNode"),
        (f"<Cors>{_rule(ExposedHeaders=None)}</Cors>", "MissingRequiredXmlNode"),
        (f"<Cors>{_rule(AllowedOrigins='')}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(AllowedMethods='')}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(AllowedMethods='GET,BREW')}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(MaxAgeInSeconds='-1')}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(MaxAgeInSeconds='1h')}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(AllowedOrigins='https://é')}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(AllowedOrigins='a' * 257)}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(AllowedOrigins=','.join('a' * 65))}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(AllowedHeaders=','.join('a' * 65))}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(ExposedHeaders='a*,b*,c*')}</Cors>", "InvalidXmlNodeValue"),
        (f"<Cors>{_rule(Extra='x')}</Cors>", "UnsupportedXmlNode"),
        (f"<Cors>{_rule() * 6}</Cors>", "InvalidXmlDocument"),
        (
            f"<Cors>{_rule(AllowedOrigins=','.join(['a' * 200] * 3)) * 4}</Cors>",
            "InvalidXmlDocument",
        ),
    ],
)
def test_set_refusals(azure: Harness, sections: str, code: str) -> None:
    """Wrong structures and values change nothing."""
    assert error_of(_set(azure, sections))[:2] == (400, code)
    assert azure.documents == {}


@pytest.mark.parametrize("body", [b"<x/>", b"", b"<StorageServiceProperties>"])
def test_set_needs_its_document(azure: Harness, body: bytes) -> None:
    """Anything but the properties is an invalid document."""
    response = azure.send("PUT", f"/{ACCOUNT}", _QUERY, body=body)
    assert error_of(response)[1] == "InvalidXmlDocument"


@pytest.mark.parametrize(
    "rules",
    [
        _rule() * 5,
        _rule(AllowedHeaders=",".join(["a"] * 64 + ["x*", "y*"])),
        _rule(AllowedOrigins=",".join(["a"] * 64)),
        _rule(AllowedOrigins="a" * 256),
        _rule(AllowedMethods="DELETE,GET,HEAD,MERGE,POST,OPTIONS,PUT,PATCH"),
        _rule(AllowedMethods="get", MaxAgeInSeconds="0"),
        _rule(AllowedHeaders="*", ExposedHeaders="*"),
    ],
)
def test_largest_rules(azure: Harness, rules: str) -> None:
    """Five rules, 64 names and two prefixes are allowed."""
    assert _set(azure, f"<Cors>{rules}</Cors>").status == 202


def test_older_form(azure: Harness) -> None:
    """Up to 2012-02-12 there was one kind of metrics, and no CORS."""
    old = {"version": "2012-02-12"}
    metrics = (
        f"<Metrics><Version>1.0</Version><Enabled>true</Enabled><IncludeAPIs>false</IncludeAPIs>"
        f"{_OFF}</Metrics>"
    )
    assert _set(azure, metrics, **old).status == 202
    root = root_of(azure.send("GET", f"/{ACCOUNT}", _QUERY, **old))
    assert [child.tag for child in root] == ["Logging", "Metrics"]
    assert root.findtext("Metrics/Enabled") == "true"
    assert "<HourMetrics><Version>1.0</Version><Enabled>true</Enabled>" in _get(azure)
    for section in ("HourMetrics", "MinuteMetrics", "Cors"):
        assert error_of(_set(azure, f"<{section}/>", **old))[1] == "UnsupportedXmlNode"


def test_document_is_json_of_its_own_kind(azure: Harness) -> None:
    """The properties are kept as one document under a name that no other dialect uses."""
    _set(azure, _LOGGING)
    document = json.loads(azure.documents[ACCOUNT])
    assert set(document) == {"logging", "hour", "minute", "cors"}
    assert service.DOCUMENT_KIND == "azure-service-properties"


def test_accounts_have_their_own_properties(azure: Harness) -> None:
    """What is set for one account does not show at another."""
    _set(azure, _LOGGING)
    response = azure.send("GET", "/other", _QUERY)
    assert response.body.decode().count("<Enabled>true") == 0


def test_two_clients_set_different_sections_at_once(azure: Harness) -> None:
    """Neither undoes what the other one sets, however slow the store."""

    async def perform(command: AnyCommand) -> Any:
        result = await azure.perform(command)
        await asyncio.sleep(0)
        return result

    dialect = AzureDialect(
        perform=perform,
        authenticator=azure.authenticator,
        clock=azure.clock,
        accounts={ACCOUNT: Account(name=ACCOUNT, keys=(b"key",))},
    )

    async def scenario() -> list[int]:
        requests = [
            make_request("PUT", f"/{ACCOUNT}", _QUERY, body=_document(section))
            for section in (_LOGGING, f"<Cors>{_rule()}</Cors>")
        ]
        answers = await asyncio.gather(*[dialect.handle(request) for request in requests])
        return [answer.status for answer in answers]

    assert asyncio.run(scenario()) == [202, 202]
    document = json.loads(azure.documents[ACCOUNT])
    assert document["logging"]["days"] == 7
    assert len(document["cors"]) == 1


@pytest.mark.parametrize("kind", [GetAccountDocument, SetAccountDocument])
def test_store_errors_are_told(azure: Harness, kind: type) -> None:
    """A store that cannot keep the properties is not hidden."""
    azure.results[kind] = StoreFull() if kind is SetAccountDocument else Overloaded()
    assert error_of(_set(azure, _LOGGING))[:2] == (503, "ServerBusy")
