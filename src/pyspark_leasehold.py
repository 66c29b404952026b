"""Found by Spark by its name: makes ``spark.read.format("leasehold")`` work without a registration.

Spark imports every module called ``pyspark_*`` at the first look-up of a format it does not know.
"""

from leasehold.spark.source import LeaseholdDataSource as DefaultSource

__all__ = ["DefaultSource"]
