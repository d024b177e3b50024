"""The HTTP side of a simulated server: vLLM's routes, streams and errors on aiohttp."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from vq_console.simulator import wire
from vq_console.simulator.chunks import Chunks, cut_at_stop
from vq_console.simulator.engine import Engine, EngineDead, Work
from vq_console.simulator.generation import Generator, Scripted, scripted_answer
from vq_console.simulator.language import Array, LanguageModel
from vq_console.simulator.sendlog import SendLog
from vq_console.simulator.spec import SimSpec
from vq_console.simulator.wire import Asked

SERVER_HEADER = "vLLM-SIMULATED"


class Api:
    """Routes of one server. `access` is called with a line per answered request."""

    def __init__(
        self,
        spec: SimSpec,
        engine: Engine,
        model: LanguageModel,
        *,
        names: Sequence[str],
        version: str,
        max_model_len: int,
        max_logprobs: int,
        api_keys: Sequence[str],
        cache_dtype: str,
        utilization: str,
        answers: Sequence[Scripted],
        access: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._model = model
        self._names = tuple(names)
        self._version = version
        self._max_model_len = max_model_len
        self._max_logprobs = max_logprobs
        self._api_keys = tuple(api_keys)
        self._cache_dtype = cache_dtype
        self._utilization = utilization
        self._answers = tuple(answers)
        self._access = access
        self._created = int(time.time())
        self._random = random.Random(spec.seed + 1)
        self._number = 0
        self._peers: set[Any] = set()
        self._send_log = SendLog(spec.send_log) if spec.send_log else None
        self.on_request: Callable[[int], None] = lambda _: None
        """Called with the number of each generation request, before it is worked on; faults hang here."""

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[self._guard], client_max_size=64 << 20)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        if self._spec.vllm_fields:
            app.router.add_get("/version", self._show_version)
            app.router.add_get("/load", self._load)
            app.router.add_get("/ping", self._health)
            app.router.add_get("/metrics", self._metrics)
            app.router.add_post("/tokenize", self._tokenize)
            app.router.add_post("/detokenize", self._detokenize)
        app.on_response_prepare.append(self._mark)
        return app

    def close(self) -> None:
        """Write what is left of the send log."""
        if self._send_log is not None:
            self._send_log.close()

    async def _mark(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = SERVER_HEADER

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        status = 500
        try:
            if self._api_keys and request.path.startswith("/v1"):
                word, _, key = request.headers.get("Authorization", "").partition(" ")
                if word != "Bearer" or key not in self._api_keys:
                    status = 401
                    return web.json_response({"error": "Unauthorized"}, status=401)
            response: web.StreamResponse = await handler(request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            return _error(error.reason, "NotFoundError" if status == 404 else "BadRequestError", status)
        except wire.BadRequest as error:
            status = 400
            return _error(str(error), "BadRequestError", 400)
        except LookupError as error:
            status = 404
            return _error(str(error.args[0]), "NotFoundError", 404)
        except EngineDead:
            return _error(
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "InternalServerError",
                500,
            )
        finally:
            peer = request.transport.get_extra_info("peername") if request.transport else None
            host, port = (peer[0], peer[1]) if peer else ("127.0.0.1", 0)
            phrase = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}
            words = phrase.get(status, "Internal Server Error")
            self._access(f'{host}:{port} - "{request.method} {request.path_qs} HTTP/1.1" {status} {words}')

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._engine.dead.is_set() else 200)

    async def _show_version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": f"{self._version}+SIMULATED", "simulated": True})

    async def _load(self, _: web.Request) -> web.Response:
        return web.json_response({"server_load": 0})

    async def _models(self, _: web.Request) -> web.Response:
        owner = "vllm" if self._spec.vllm_fields else "simulated"
        rows = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": owner,
                "root": name,
                "parent": None,
                "simulated": True,
                **({"max_model_len": self._max_model_len} if self._spec.vllm_fields else {}),
            }
            for name in self._names
        ]
        return web.json_response({"object": "list", "data": rows})

    async def _metrics(self, _: web.Request) -> web.Response:
        text = self._engine.counters.text(
            model=self._names[0],
            kv_tokens=self._engine.kv_tokens,
            cache_dtype=self._cache_dtype,
            utilization=self._utilization,
        )
        return web.Response(text=text, content_type="text/plain")

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await _body(request)
        if isinstance(body.get("messages"), list):
            text = wire.render_chat(
                body["messages"], generation_prompt=body.get("add_generation_prompt", True) is not False
            )
        elif isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            raise wire.BadRequest("prompt or messages: one of both is needed")
        tokens = self._model.tokenizer.encode(text)
        value: dict[str, Any] = {"count": len(tokens), "max_model_len": self._max_model_len, "tokens": tokens}
        value["token_strs"] = (
            [self._model.tokenizer.piece(t) for t in tokens] if body.get("return_token_strs") else None
        )
        return web.json_response(value)

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await _body(request)
        tokens = body.get("tokens")
        if not isinstance(tokens, list):
            raise wire.BadRequest("tokens: a list was expected")
        return web.json_response({"prompt": self._model.tokenizer.decode(tokens, special=True)})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        arrival_ns = time.perf_counter_ns()
        body = await _body(request)
        asked = wire.parse_request(
            body,
            chat=chat,
            tokenizer=self._model.tokenizer,
            models=self._names,
            max_model_len=self._max_model_len,
            max_logprobs=self._max_logprobs,
            vllm_fields=self._spec.vllm_fields,
        )
        if self._engine.dead.is_set():
            raise EngineDead
        self._number += 1
        self.on_request(self._number)
        faults = self._spec.faults
        if faults.error is not None and self._random.random() < faults.error:
            return _error("a planted error", "InternalServerError", 500)
        request_id = request.headers.get("X-Request-Id") or secrets.token_hex(8)
        if asked[0].stream:
            if len(asked) != 1:
                raise wire.BadRequest("stream: one prompt was expected")
            return await self._stream(request, asked[0], request_id, arrival_ns)
        choices = []
        totals = [0, 0]
        for index, one in enumerate(asked):
            choice, produced = await self._whole(one, index)
            choices.append(choice)
            totals[0] += len(one.prompt)
            totals[1] += produced
        kind = ("chatcmpl", "chat.completion") if chat else ("cmpl", "text_completion")
        value = {
            "id": f"{kind[0]}-{request_id}",
            "object": kind[1],
            "created": int(time.time()),
            "model": asked[0].model,
            "choices": choices,
            "system_fingerprint": f"vllm-{self._version}-SIMULATED",
            "usage": wire.usage(*totals),
        }
        if chat:
            first = asked[0]
            value["prompt_logprobs"] = choices[0].pop("prompt_logprobs", None)
            value["prompt_token_ids"] = list(first.prompt) if first.token_ids else None
        return web.json_response(value)

    def _generator(self, asked: Asked) -> Generator:
        answer = scripted_answer(self._spec, self._answers, asked.last_user, len(asked.prompt), asked.user_turns)
        return Generator(
            self._model, self._spec, asked.prompt, asked.sampling, answer=answer, jitter=self._random.randrange(1 << 30)
        )

    def _work(self, asked: Asked) -> Work:
        tokens = asked.sampling.max_tokens
        short = self._spec.faults.short
        if short is not None and tokens > 1 and self._random.random() < short:
            tokens //= 2
        return Work(asked.prompt, tokens, asked.salt, asked.prompt_logprobs is None)

    async def _whole(self, asked: Asked, index: int) -> tuple[dict[str, Any], int]:
        generator = self._generator(asked)
        tokens: list[int] = []
        rows: list[Array] = []
        reason = "length"
        run = self._engine.run(self._work(asked))
        try:
            async for produced in run:
                while len(tokens) < produced and reason == "length":
                    token, row = generator.step()
                    tokens.append(token)
                    if row is not None:
                        rows.append(row)
                    if generator.ends(token):
                        reason = "stop"
                if reason == "stop" or self._stopped(tokens, asked):
                    reason = "stop"
                    break
        except asyncio.CancelledError:
            self._engine.counters.finished["abort"] += 1
            raise
        finally:
            await run.aclose()
        self._engine.counters.finished[reason] += 1
        tokenizer = self._model.tokenizer
        text = cut_at_stop(tokenizer.decode(tokens), asked.stop)
        choice: dict[str, Any] = {"index": index}
        logprobs = None
        if asked.logprobs is not None:
            make = wire.chat_logprobs if asked.chat else None
            logprobs = (
                make(tokens, rows, asked.logprobs, tokenizer, asked.tokens_as_ids)
                if make
                else wire.completion_logprobs(tokens, rows, asked.logprobs, tokenizer, asked.tokens_as_ids, 0)
            )
        if asked.chat:
            choice["message"] = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": []}
        else:
            choice["text"] = text
        choice.update(logprobs=logprobs, finish_reason=reason, stop_reason=None)
        choice["token_ids"] = tokens if asked.token_ids else None
        choice["prompt_logprobs"] = await self._prompt_logprobs(asked)
        if not asked.chat:
            choice["prompt_token_ids"] = list(asked.prompt) if asked.token_ids else None
        return choice, len(tokens)

    async def _prompt_logprobs(self, asked: Asked) -> list[dict[str, Any] | None] | None:
        count = asked.prompt_logprobs
        if count is None:
            return None
        jitter = self._random.randrange(1 << 30)
        rows = await asyncio.to_thread(self._model.log_probabilities, asked.prompt, 1, jitter=jitter)
        tokenizer = self._model.tokenizer
        entries = [
            wire.prompt_logprob_entry(row, token, count, tokenizer)
            for row, token in zip(rows[:-1], asked.prompt[1:], strict=True)
        ]
        return [None, *entries]

    def _stopped(self, tokens: Sequence[int], asked: Asked) -> bool:
        if not asked.stop:
            return False
        text = self._model.tokenizer.decode(tokens)
        return any(stop in text for stop in asked.stop)

    def _reused(self, request: web.Request) -> bool:
        """Whether this connection has carried a request before."""
        peer = request.transport.get_extra_info("peername") if request.transport else None
        known = peer in self._peers
        self._peers.add(peer)
        return known

    async def _stream(self, request: web.Request, asked: Asked, request_id: str, arrival_ns: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        chunks = Chunks(asked, request_id, self._model)
        generator = self._generator(asked)
        record = self._send_log.begin(request_id, arrival_ns, len(asked.prompt)) if self._send_log else None
        run = self._engine.run(self._work(asked))
        reason = None
        try:
            if self._spec.keepalive_stall_ms and self._reused(request):
                await asyncio.sleep(self._spec.keepalive_stall_ms / 1000)
            await response.prepare(request)
            if asked.chat:
                await response.write(chunks.role())
            async for produced in run:
                tokens: list[int] = []
                rows: list[Array | None] = []
                while generator.produced < produced and reason is None:
                    token, row = generator.step()
                    tokens.append(token)
                    rows.append(row)
                    if generator.ends(token):
                        reason = "stop"
                if reason is None and generator.produced >= asked.sampling.max_tokens:
                    reason = "length"
                data, stopped = chunks.tokens(tokens, rows, reason)
                if stopped:
                    reason = "stop"
                if record is not None:
                    record.sent(time.perf_counter_ns(), len(tokens))
                await response.write(data)
                if reason is not None:
                    break
            if reason is None:
                reason = "abort"
                await response.write(chunks.tokens([], [], "abort")[0])
            tail = b""
            if asked.include_usage and self._spec.usage:
                tail = chunks.usage(generator.produced)
            await response.write(tail + b"data: [DONE]\n\n")
            await response.write_eof()
        except asyncio.CancelledError:
            reason = "abort"
            raise
        except ConnectionError:
            reason = "abort"
        except EngineDead:
            reason = "error"
            value = {
                "error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}
            }
            await response.write(wire.event(value) + b"data: [DONE]\n\n")
        finally:
            await run.aclose()
            self._engine.counters.finished[reason or "abort"] += 1
            if record is not None and self._send_log is not None:
                self._send_log.end(record, reason or "abort")
        return response


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        value = await request.json()
    except ValueError as error:
        raise wire.BadRequest(f"JSON decode error: {error}") from error
    if not isinstance(value, dict):
        raise wire.BadRequest("a JSON object was expected")
    return value


def _error(message: str, kind: str, status: int) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status
    )
