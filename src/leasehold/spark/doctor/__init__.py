"""Finds what is wrong with a server or with Spark's surroundings before a query does.

Facts are gathered in :mod:`~leasehold.spark.doctor.server`,
:mod:`~leasehold.spark.doctor.machine` and :mod:`~leasehold.spark.doctor.server`; what they
mean is decided by pure functions in the modules of checks.
"""

from leasehold.spark.doctor.server import Finding, Level, worst

__all__ = ["Finding", "Level", "worst"]
