"""One module per group of commands. Each has `register(subparsers)`, which must stay cheap to import:
everything that a command needs is imported inside its handler."""
