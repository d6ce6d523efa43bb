"""The report of a run as a page of HTML: what is told, and how it looks."""
