"""The five screens; each composes widgets, routes keys, and redraws what changed."""
