"""Leasehold: a self-hosted, durable message queue in which work is held on leases."""

__version__ = "0.1.0"

__all__ = ["__version__"]
