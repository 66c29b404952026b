"""From summaries of an event log to findings: which timeout, which queues, what is about to break.

Pure: it knows the statistics of :mod:`leasehold.tuning` and the words of the domain, and neither
Spark nor a server. What makes the summaries is :mod:`leasehold.spark.analytics`.
"""
