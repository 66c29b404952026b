"""Finds what is wrong with a server or with Spark's surroundings before a query does.

Facts are gathered in :mod:`~leasehold.spark.doctor.server_facts`,
:mod:`~leasehold.spark.doctor.spark_facts` and :mod:`~leasehold.spark.doctor.programs`; what they
mean is decided by pure functions in the modules of checks.
"""

from leasehold.spark.doctor.findings import Finding, Level, worst

__all__ = ["Finding", "Level", "worst"]
