"""Scraping /metrics and turning counters into windows."""
