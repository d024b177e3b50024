"""Runs vLLM's own benchmark request function in vLLM's Python; one JSON order per line in, one answer out.

Started by `load_generators.py` with the interpreter of an engine. Imports nothing of the console.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncInput, async_request_openai_completions


async def run(order: dict) -> list[dict]:
    """All requests of an order at its concurrency, as `vllm bench serve` sends them."""
    gate = asyncio.Semaphore(order["concurrency"])
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=600)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=3600)) as session:

        async def one(number: int, prompt: str) -> dict:
            async with gate:
                found = await async_request_openai_completions(
                    RequestFuncInput(
                        prompt=prompt,
                        api_url=order["url"] + "/v1/completions",
                        prompt_len=0,
                        output_len=order["tokens"],
                        model=order["model"],
                        ignore_eos=True,
                        extra_body={"temperature": 0.0, "min_tokens": order["tokens"]},
                        request_id=f"vllm-{order['block']}-{number}",
                    ),
                    session,
                )
            return {
                "ok": found.success,
                "error": found.error[-300:],
                "ttft": found.ttft,
                "e2e": found.latency,
                "tokens": found.output_tokens,
            }

        return await asyncio.gather(*(one(k, prompt) for k, prompt in enumerate(order["prompts"])))


if __name__ == "__main__":
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(asyncio.run(run(json.loads(line)))), flush=True)
