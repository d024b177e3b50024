"""The profile format, the store, sharing, exports, facts of checkpoints.

Nothing here starts a server or judges a profile; it reads, writes and describes.
"""
