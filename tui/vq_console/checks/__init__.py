"""Load generator, latency and quality checks: they produce samples, never verdicts."""
