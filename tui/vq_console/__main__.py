"""`python -m vq_console` is the `vq-console` command."""

from vq_console.cli import main

raise SystemExit(main())
