"""The report that people look at: one log and its verdict as a page, as JSON, as a signed statement.

Also the copy of a log that an outsider may get. Needs no torch. Never judges a log: `splitlearn.audit`
does, and the report shows what it said.
"""

from splitlearn.report.collect import collect
from splitlearn.report.document import Document, dump, load, schema
from splitlearn.report.page import render

__all__ = ["Document", "collect", "dump", "load", "render", "schema"]
