"""Settings of Spark's for plans as wide as ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark makes one Java method of several steps of a plan. HotSpot never compiles methods of more
# than 8,000 bytes, and interprets them, which takes twice as long as the whole plan otherwise. With
# this limit Spark makes smaller methods of such plans.
_WHILE_AT_IT: Final = {
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Rows need not be sorted by day to be written by day, as long as a task has few days.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}


@contextmanager
def well_compiled(spark: SparkSession) -> Iterator[None]:
    """Have plans of this session compiled so that Java is quick with them, as long as it lasts."""
    before = {name: str(spark.conf.get(name)) for name in _WHILE_AT_IT}
    _set(spark, _WHILE_AT_IT)
    try:
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        spark.conf.set(name, value)
