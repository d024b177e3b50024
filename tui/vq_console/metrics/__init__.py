"""Reading a server's /metrics, windows over them, and what they advise."""
