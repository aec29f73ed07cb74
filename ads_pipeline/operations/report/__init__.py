"""The report: one HTML file that shows which days are safe to read."""
