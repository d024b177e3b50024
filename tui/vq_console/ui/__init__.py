"""The Textual console: app, screens, widgets, styles."""
