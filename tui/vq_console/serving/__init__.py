"""Launching, keeping, stopping and attaching servers."""
