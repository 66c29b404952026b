"""The report of an analysis: one page that works offline, and all of it as JSON and CSV.

It needs the extra ``analysis``.
"""

from leasehold.analysis.report.files import write_report
from leasehold.analysis.report.page import render

__all__ = ["render", "write_report"]
