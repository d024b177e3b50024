"""The profile format, the store, sharing, exports, facts of checkpoints."""
