"""A stand-in vLLM in a process of its own; whatever it shows says SIMULATED."""
