"""Leasehold: a self-hosted, durable message queue in which work is held on leases."""

from importlib import import_module

__version__ = "0.2.0.dev0"

__all__ = ["__version__", "form"]

try:  # noqa: SIM105 - contextlib would be imported for this alone
    import_module("leasehold_compiled").install(__name__, __path__[0])
except ModuleNotFoundError:  # it is a wheel of its own
    pass


def form() -> str:
    """Return "compiled" if the modules of the hot path are, otherwise "pure"."""
    from importlib.util import find_spec  # noqa: PLC0415 - whoever imports this needs it rarely

    spec = find_spec(f"{__name__}.http.connection")
    return "pure" if spec is None or str(spec.origin).endswith(".py") else "compiled"
