"""Reading vLLM logs: lines, facts, phases, diagnosis."""
