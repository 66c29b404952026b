"""The properties of the account: logging, metrics, CORS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import CorsRule, Metrics, QueueAnalyticsLogging, RetentionPolicy

from tests.e2e.azure_python.covers import covers
from tests.e2e.azure_python.refusals import refused
from tests.e2e.azure_python.sdk import Flavour, Sdk

if TYPE_CHECKING:
    from tests.e2e.server import Endpoint

OFF = {
    "analytics_logging": QueueAnalyticsLogging(),
    "hour_metrics": Metrics(),
    "minute_metrics": Metrics(),
    "cors": [],
}


@pytest.fixture
def sdk(flavour: Flavour, own_account: Endpoint) -> Sdk:
    """The SDK, with the account's properties to itself."""
    return Sdk(flavour, own_account)


def _plain(value: Any) -> Any:
    """Return models of the SDK as dictionaries, which can be compared."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if hasattr(value, "__dict__"):
        return {name: _plain(part) for name, part in vars(value).items() if name[0] != "_"}
    return value


async def _assert_kept(sdk: Sdk, **expected: Any) -> None:
    """Check that the properties are those of *expected*, and otherwise off."""
    found = await sdk.service().get_service_properties()
    assert _plain(found) == _plain(OFF | expected)


@covers(
    "QueueServiceClient.get_service_properties",
    "QueueServiceClient.set_service_properties:analytics_logging,hour_metrics,minute_metrics,cors,"
    "timeout",
)
async def test_everything_can_be_turned_off(sdk: Sdk) -> None:
    """And reads as off afterwards."""
    await sdk.service().set_service_properties(**OFF, timeout=30)
    await _assert_kept(sdk)


@pytest.mark.differs_on_azurite("fails with 500")
async def test_nothing_needs_to_be_said(sdk: Sdk) -> None:
    """An empty document changes nothing."""
    logging = QueueAnalyticsLogging(read=True)
    await sdk.service().set_service_properties(**OFF | {"analytics_logging": logging})
    await sdk.service().set_service_properties()
    await _assert_kept(sdk, analytics_logging=logging)
    await sdk.service().set_service_properties(**OFF)


@covers("QueueAnalyticsLogging", "QueueAnalyticsLogging.version", "QueueAnalyticsLogging.delete")
@covers("QueueAnalyticsLogging.read", "QueueAnalyticsLogging.write", "RetentionPolicy")
@covers("QueueAnalyticsLogging.retention_policy", "RetentionPolicy.enabled", "RetentionPolicy.days")
async def test_logging_is_kept(sdk: Sdk) -> None:
    """Each switch by itself, and for how long."""
    await sdk.service().set_service_properties(**OFF)
    for switches in ({"read": True, "write": True, "delete": True}, {"write": True}):
        logging = QueueAnalyticsLogging(
            version="1.0", retention_policy=RetentionPolicy(enabled=True, days=5), **switches
        )
        await sdk.service().set_service_properties(analytics_logging=logging)
        await _assert_kept(sdk, analytics_logging=logging)
    await sdk.service().set_service_properties(**OFF)


@covers("Metrics", "Metrics.version", "Metrics.enabled", "Metrics.include_apis")
@covers("Metrics.retention_policy")
async def test_metrics_are_kept(sdk: Sdk) -> None:
    """By the hour and by the minute."""
    await sdk.service().set_service_properties(**OFF)
    hour = Metrics(
        version="1.0",
        enabled=True,
        include_apis=True,
        retention_policy=RetentionPolicy(enabled=True, days=365),
    )
    minute = Metrics(enabled=True, include_apis=False)
    await sdk.service().set_service_properties(hour_metrics=hour)
    await _assert_kept(sdk, hour_metrics=hour)
    await sdk.service().set_service_properties(minute_metrics=minute)
    await _assert_kept(sdk, hour_metrics=hour, minute_metrics=minute)
    await sdk.service().set_service_properties(**OFF)


@covers("CorsRule", "CorsRule.allowed_origins", "CorsRule.allowed_methods")
@covers("CorsRule.max_age_in_seconds", "CorsRule.exposed_headers", "CorsRule.allowed_headers")
async def test_cors_rules_are_kept(sdk: Sdk) -> None:
    """Up to five, in order; an empty list clears them, None keeps them."""
    service = sdk.service()
    await service.set_service_properties(**OFF)
    rules = [
        CorsRule(["http://one.example", "https://two.example"], ["GET", "PUT"]),
        CorsRule(
            ["*"],
            ["DELETE", "HEAD", "MERGE", "POST", "OPTIONS"],
            allowed_headers=["x-ms-meta-data*", "x-ms-meta-abc"],
            exposed_headers=["x-ms-meta-source*", "*"],
            max_age_in_seconds=500,
        ),
        *[CorsRule([f"http://{i}.example"], ["GET"]) for i in range(3)],
    ]
    await service.set_service_properties(cors=rules)
    await _assert_kept(sdk, cors=rules)
    logging = QueueAnalyticsLogging(read=True)
    await service.set_service_properties(analytics_logging=logging)
    await _assert_kept(sdk, cors=rules, analytics_logging=logging)
    await service.set_service_properties(cors=[])
    await _assert_kept(sdk, analytics_logging=logging)
    await service.set_service_properties(**OFF)


@pytest.mark.differs_on_azurite("does not look at the values")
@pytest.mark.parametrize(
    "properties",
    [
        {"cors": [CorsRule([f"http://{i}.example"], ["GET"]) for i in range(6)]},
        {"cors": [CorsRule(["*"], ["FETCH"])]},
        {"hour_metrics": Metrics(retention_policy=RetentionPolicy(enabled=True, days=366))},
    ],
    ids=["six rules", "unknown method", "more than a year"],
)
async def test_bad_properties_are_refused(sdk: Sdk, properties: dict[str, Any]) -> None:
    """As a whole: what was there before stays."""
    service = sdk.service()
    await service.set_service_properties(**OFF)
    with refused(400):
        await service.set_service_properties(
            analytics_logging=QueueAnalyticsLogging(read=True), **properties
        )
    await _assert_kept(sdk)


async def test_cors_rules_take_effect(sdk: Sdk) -> None:
    """A browser at an allowed origin may read the answers, one elsewhere may not."""
    service = sdk.service()
    rule = CorsRule(["http://app.example"], ["GET"], exposed_headers=["x-ms-request-id"])
    await service.set_service_properties(**OFF | {"cors": [rule]})
    allowed: dict[str, str] = {}
    await service.get_service_properties(
        headers={"Origin": "http://app.example"},
        raw_response_hook=lambda response: allowed.update(
            {name.lower(): value for name, value in response.http_response.headers.items()}
        ),
    )
    assert allowed["access-control-allow-origin"] == "http://app.example"
    assert allowed["access-control-expose-headers"] == "x-ms-request-id"
    # The key is public and the address is this machine's: pages of others get no answer at all.
    with pytest.raises(HttpResponseError) as refused:
        await service.get_service_properties(headers={"Origin": "http://other.example"})
    answer: Any = refused.value.response
    assert "Access-Control-Allow-Origin" not in answer.headers
    await service.set_service_properties(**OFF)
