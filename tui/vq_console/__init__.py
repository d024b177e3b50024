"""vq-console: which quantized way of serving this model should I run, and is it really running that way?"""

__version__ = "0.1.0"
