"""Statistics, verdicts, the comparison itself, history and reports."""
