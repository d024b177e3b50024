"""Making quantized checkpoints with LLM Compressor: judged before, run as a watched job, verified after."""
