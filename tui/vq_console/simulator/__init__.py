"""A stand-in vLLM in a process of its own; whatever it shows says SIMULATED.

Owns no measurement and knows nothing of the checks: it is a server like any other, with programmed timing, a tiny
language model whose KL divergence to its noisy twin is exact, and faults on request. Start it with
`python -m vq_console.simulator serve MODEL [vLLM flags]`; `VQ_SIM_SPEC` holds the specification (`spec.py`).
"""
