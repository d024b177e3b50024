"""What every package may use: errors, places on disk, safe files, plain text, a small HTTP client.

Owns nothing about GPUs, vLLM or the screen, and imports only the standard library (platformdirs inside functions).
"""
