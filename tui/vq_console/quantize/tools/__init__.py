"""Scripts for the compressor's environment. Started as processes, never imported by the console."""
