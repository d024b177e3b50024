"""GPUs by NVML, the host by psutil."""
