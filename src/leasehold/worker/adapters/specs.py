"""Which queue, where and with which credentials: as a value that another process can open."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import UNSET, UnsetType

from leasehold.worker.adapters.envelope import ProgressForm, StagePrefixForm
from leasehold.worker.adapters.protocol import NotSupported, QueueClient

Service: TypeAlias = Literal["leasehold", "azure", "mns", "memory"]

CONNECTION_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
KEY_VARIABLE: Final = "AZURE_STORAGE_KEY"
SAS_VARIABLE: Final = "AZURE_STORAGE_SAS_TOKEN"
ID_VARIABLE: Final = "ALIBABA_CLOUD_ACCESS_KEY_ID"
SECRET_VARIABLE: Final = "ALIBABA_CLOUD_ACCESS_KEY_SECRET"  # noqa: S105 - the name, not the secret
TOKEN_VARIABLE: Final = "ALIBABA_CLOUD_SECURITY_TOKEN"  # noqa: S105 - as above

_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "leasehold": frozenset({"form", "timeout_s"}),
    "azure": frozenset({"encoding", "form", "timeout_s"}),
    "mns": frozenset({"encoding", "form", "timeout_s"}),
    "memory": frozenset(),
}
_ADAPTERS: Final[Mapping[str, tuple[str, str, str]]] = {
    "leasehold": ("native", "NativeQueue", "timeout_s"),
    "azure": ("azure", "AzureQueue", "call_timeout_s"),
    "mns": ("mns", "MnsQueue", "call_timeout_s"),
}
"""By service: module, class, and what the class calls the seconds that a request may take."""
_ENVELOPE: Final = "envelope"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_SERVICES: Final = (
    "begins with leasehold, azure, mns or memory, then perhaps +http or +https, and ://"
)
_DEVELOPMENT: Final = "UseDevelopmentStorage=true"
_DEVELOPMENT_ACCOUNT: Final = "devstoreaccount1"
_DEVELOPMENT_KEY: Final = (  # published by Microsoft for the emulator: no secret
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue that can be opened anywhere; it can be pickled, and then holds its credentials."""

    service: Service
    queue: str
    """Name of the queue."""
    connection: str = field(default="", repr=False)
    """A connection string. For Leasehold and Azure, as their SDKs take it; empty: that of the
    environment. For MNS: ``Endpoint=...;AccessKeyId=...;AccessKeySecret=...;SecurityToken=...``."""
    options: Mapping[str, str] = field(default_factory=dict)
    """``timeout_s``: seconds that one request may take. ``encoding`` (azure, mns): see there.
    ``form``: how progress is written into texts: ``envelope``, or two digits in front of the
    content, with the stage that each number stands for: ``1:scan,2:encode,3:(completed)``."""

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] | None = None) -> QueueSpec:
        """Read the form for command lines.

        ::

            leasehold:///orders                     AZURE_STORAGE_CONNECTION_STRING, or else the
                                                    development server on this machine
            leasehold+http://account:key@host:10001/orders
            azure:///orders                         AZURE_STORAGE_CONNECTION_STRING
            azure://account/orders?encoding=base64  AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN
            leasehold:///coho?form=1:scan,2:encode  two digits of state in front of the content
            azure+http://account@127.0.0.1:10001/orders
            mns+https://1234.mns.cn-hangzhou.aliyuncs.com/orders
                                                    ALIBABA_CLOUD_ACCESS_KEY_ID and _SECRET, and
                                                    ALIBABA_CLOUD_SECURITY_TOKEN if there is one
            memory:///orders

        ``+http`` and ``+https`` say how a host is reached; there, an account of Leasehold or of an
        emulator stands in the path of the requests, and without a key the same variables are
        looked up. The development account needs none. Others can see a command line, so keys are
        better in the environment; in the text, ``/``, ``+``, ``=`` and ``@`` of a key must be
        percent-encoded.

        Args:
            text: What to read.
            environment: Where variables are looked up; None: that of the process.

        Raises:
            ValueError: It is not of that form, or credentials are missing. Its text shows no key.
        """
        known = os.environ if environment is None else environment
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError(
                "the queue's address is malformed; a / in a key is written %2F"
            ) from None
        service, _, scheme = parts.scheme.partition("+")
        if service not in _OPTIONS or scheme not in {"", "http", "https"}:
            raise ValueError(f"{_no_address(text)}. An address {_SERVICES}")
        name = unquote(parts.path.removeprefix("/"))
        if not name or "/" in name or parts.fragment:
            raise ValueError(
                "a queue's address ends with /<queue>; a / or # in a key is written %2F or %23"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        check_options(service, options)
        host = parts.hostname or ""
        at = f"{host}:{port}" if port else host
        return cls(
            service=service,  # type: ignore[arg-type]  # it is one of the keys
            queue=name,
            connection=_connection(service, scheme, at, parts, known),
            options=options,
        )

    def __post_init__(self) -> None:
        if not isinstance(self.connection, str):
            raise ValueError(  # noqa: TRY004 - as all that cannot be used
                f"the connection string of queue {self.queue} is {self.connection!r}: give a str, "
                f"or leave it out for {CONNECTION_VARIABLE} or the development account"
            )
        check_options(self.service, self.options)

    @property
    def given_connection(self) -> str | UnsetType:
        """The connection string as clients take it; UNSET if that of the environment is meant."""
        return self.connection or UNSET if self.service == "leasehold" else self.connection

    def open(self) -> QueueClient:
        """Return a client of its own, to be closed by the caller. No request is made.

        Raises:
            NotSupported: The queue is in the memory of another process.
            ImportError: The SDK of the service is not installed.
            ValueError: The connection string or an option cannot be used.
        """
        if self.service == "memory":
            raise NotSupported(
                f"the queue {self.queue} is in the memory of one process; another process cannot "
                "open it"
            )
        options: dict[str, Any] = dict(self.options)
        module, name, timeout = _ADAPTERS[self.service]
        options[timeout] = float(options.pop("timeout_s", "30"))
        options["form"] = form_of(options.pop("form", _ENVELOPE))
        # Each service has an SDK that others need not have.
        adapter = getattr(import_module(f"leasehold.worker.adapters.{module}"), name)
        client = adapter.from_connection_string(self.given_connection, self.queue, **options)
        client.spec = self
        opened: QueueClient = client
        return opened


def _no_address(text: str) -> str:
    """Say that a text is no address, and what to write; what may hold a key is not shown."""
    if _NAME.fullmatch(text):
        return f"{text!r} is no address of a queue: write leasehold:///{text}"
    if ";" in text and "=" in text:
        return (
            "a connection string is no address of a queue: write "
            "NativeQueue.from_connection_string(connection, queue), or an address"
        )
    return "this is no address of a queue: write one such as leasehold:///orders"


def check_options(service: str, options: Mapping[str, str]) -> None:
    """Refuse what is no option.

    Raises:
        ValueError: One is not known, or its value is none.
    """
    unknown = sorted(options.keys() - _OPTIONS[service])
    if unknown:
        known = ", ".join(sorted(_OPTIONS[service])) or "none"
        raise ValueError(f"{unknown[0]} is no option of a {service} queue; there are: {known}")
    if options.get("encoding", "auto") not in {"auto", "none", "base64"}:
        raise ValueError("encoding is auto, none or base64")
    form_of(options.get("form", _ENVELOPE))
    try:
        usable = float(options.get("timeout_s", "1")) > 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("timeout_s is a number of seconds above 0")


def form_of(text: str) -> ProgressForm | None:
    """Return the form of progress that an option names; None: the service's own.

    Args:
        text: ``envelope``, or for two digits in front of the content the stages by their numbers,
            such as ``1:scan,2:encode,3:(completed)``.

    Raises:
        ValueError: It is neither.
    """
    if text == _ENVELOPE:
        return None
    stages: dict[int, str] = {}
    for part in text.split(","):
        number, colon, name = part.partition(":")
        digits = number.strip()
        if not (colon and name.strip() and digits.isascii() and digits.isdigit()):
            raise ValueError(
                "form is envelope, or numbers of two digits with their stages: "
                "1:scan,2:encode,3:(completed)"
            )
        if int(digits) in stages:
            raise ValueError(f"form names the number {int(digits)} twice")
        stages[int(digits)] = name.strip()
    return StagePrefixForm(stages)


def parts_of(connection: str) -> dict[str, str]:
    """Return the parts of a connection string, their names in lower case.

    Raises:
        ValueError: A part has no name. Its text shows no value.
    """
    parts: dict[str, str] = {}
    for number, part in enumerate(connection.split(";"), start=1):
        name, equals, value = part.partition("=")
        if not part.strip():
            continue
        if not equals:
            raise ValueError(f"part {number} of the connection string has no '='")
        parts[name.strip().lower()] = value.strip()
    return parts


def _connection(
    service: str, scheme: str, at: str, parts: SplitResult, known: Mapping[str, str]
) -> str:
    if service == "memory":
        if at:
            raise ValueError("the address of a queue in memory has no host: memory:///<queue>")
        return ""
    user = unquote(parts.username or "")
    secret = unquote(parts.password or "")
    if service == "mns":
        return _mns(scheme or "https", at, user, secret, known)
    if not at:
        given = known.get(CONNECTION_VARIABLE, "")
        if not given and service == "azure":
            raise ValueError(f"azure:///<queue> needs {CONNECTION_VARIABLE} to be set")
        return given or _DEVELOPMENT
    if not scheme:
        if service == "leasehold":
            raise ValueError("write leasehold+http://<host>/<queue> or leasehold+https://...")
        return _azure(at, f"https://{at}.queue.core.windows.net", secret, known)
    account = user or _DEVELOPMENT_ACCOUNT
    return _azure(account, f"{scheme}://{at}/{account}", secret, known)


def _azure(account: str, endpoint: str, key: str, known: Mapping[str, str]) -> str:
    protocol = endpoint.partition(":")[0]
    begin = f"DefaultEndpointsProtocol={protocol};AccountName={account};QueueEndpoint={endpoint};"
    sas = known.get(SAS_VARIABLE, "").removeprefix("?")
    if not key:
        # The variables are those of an account of one's own.
        is_development = account == _DEVELOPMENT_ACCOUNT
        key = _DEVELOPMENT_KEY if is_development else known.get(KEY_VARIABLE, "")
    if key:
        return f"{begin}AccountKey={key};"
    if sas:
        return f"{begin}SharedAccessSignature={sas};"
    raise ValueError(f"no key for account {account}: set {KEY_VARIABLE} or {SAS_VARIABLE}")


def _mns(scheme: str, at: str, user: str, secret: str, known: Mapping[str, str]) -> str:
    if not at:
        raise ValueError("an MNS queue needs its host: mns+https://<endpoint>/<queue>")
    if not user:
        user, secret = known.get(ID_VARIABLE, ""), known.get(SECRET_VARIABLE, "")
    if not user or not secret:
        raise ValueError(f"no access key: set {ID_VARIABLE} and {SECRET_VARIABLE}")
    token = known.get(TOKEN_VARIABLE, "")
    text = f"Endpoint={scheme}://{at};AccessKeyId={user};AccessKeySecret={secret};"
    return f"{text}SecurityToken={token};" if token else text
