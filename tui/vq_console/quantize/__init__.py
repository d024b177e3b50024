"""Making quantized checkpoints with LLM Compressor or ModelOpt: judged before, run as a watched job, verified after."""
