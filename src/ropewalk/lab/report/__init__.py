"""``report.html``: everything a comparison measured, on one page that needs no network and no scripts."""

from ropewalk.lab.report.page import REPORT, page, write_report

__all__ = ["REPORT", "page", "write_report"]
