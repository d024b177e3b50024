"""Finding vLLM installations, reading their catalogue as text, making one."""
