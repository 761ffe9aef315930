"""Reports: histories in, one page out. Also the same table for the terminal and for pandas."""

from sojourn.report.page import Section, render
from sojourn.report.table import rich_table, summary_frame

__all__ = ["Section", "render", "rich_table", "summary_frame"]
