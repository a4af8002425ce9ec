"""The report, one self-contained HTML page, and the monitor of a running study."""

from intarsia.report.page import render, write

__all__ = ["render", "write"]
