"""Widgets that receive frozen values and know no service."""
