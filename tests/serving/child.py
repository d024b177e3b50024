"""A server that misbehaves on demand: run as a child by the tests of `serving` (`python child.py --port N …`).

It logs the few lines that vLLM logs, binds early and listens late like vLLM, serves /health, /metrics and
/v1/completions, and can ignore SIGTERM, leave grandchildren, hold shared memory, flood its log, or die.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("model", nargs="?", default="tiny")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--bind", default="127.0.0.1")
parser.add_argument("--load-s", type=float, default=0.0, help="seconds before it listens")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--grandchild", choices=["group", "session", "orphan"], help="leave another process behind")
parser.add_argument("--grandchild-ignores-term", action="store_true")
parser.add_argument("--shm", action="store_true", help="hold a shared-memory segment and never remove it")
parser.add_argument("--flood", type=int, default=0, help="log so many lines once ready")
parser.add_argument("--no-token-file", help="give no token while this file exists")
parser.add_argument("--sick-file", help="answer /health with 503 while this file exists")
parser.add_argument("--die-after-s", type=float, help="end by itself so long after it listens")
parser.add_argument("--exit-code", type=int, default=0)
parser.add_argument("--die-loading", action="store_true")
parser.add_argument("--say", default="", help="one more line before it dies")
parser.add_argument("--no-completions", action="store_true", help="a pooling model: only /v1/embeddings")
args = parser.parse_args()

tokens = 0
running = 0


def say(text: str) -> None:
    now = time.strftime("%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):  # as logging does: a full disk ends no server
        print(f"(APIServer pid={os.getpid()}) INFO {now} [child.py:1] {text}", flush=True)


def leave_grandchild(kind: str) -> None:
    import subprocess

    code = "import signal,time\n"
    if args.grandchild_ignores_term:
        code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "time.sleep(300)"
    command = [sys.executable, "-c", code]
    if kind == "orphan":  # re-parented at once, in a session of its own
        starter = f"import subprocess,sys\nsubprocess.Popen({command!r}, start_new_session=True)"
        subprocess.run([sys.executable, "-c", starter], check=True)
    else:
        subprocess.Popen(command, start_new_session=kind == "session")


def answer(method: str, path: str) -> tuple[int, str]:
    """Status and body of one request."""
    global tokens
    if path == "/health":
        return (503 if args.sick_file and os.path.exists(args.sick_file) else 200), ""
    if path == "/metrics":
        lines = [
            f'vllm:num_requests_running{{engine="0"}} {float(running)}',
            'vllm:num_requests_waiting{engine="0"} 0.0',
            f'vllm:generation_tokens_total{{engine="0"}} {float(tokens)}',
            'vllm:kv_cache_usage_perc{engine="0"} 0.25',
        ]
        return 200, "\n".join(lines) + "\n"
    if path == "/v1/models":
        return 200, json.dumps({"data": [{"id": args.model, "owned_by": "vllm"}]})
    if method == "POST" and path == "/v1/embeddings" and args.no_completions:
        return 200, '{"data": [{"embedding": [0.5]}]}'
    if method == "POST" and path == "/v1/completions" and not args.no_completions:
        while args.no_token_file and os.path.exists(args.no_token_file):
            time.sleep(0.05)
        tokens += 1
        say("POST /v1/completions")
        return 200, '{"choices": [{"text": "!"}]}'
    return 404, ""


def serve(connection: socket.socket) -> None:
    """Answer one request and close; a hand-made server, because `http.server` takes longer to import than it lives."""
    with connection:
        raw = connection.recv(65536)
        if not raw:
            return
        method, path = raw.split(b" ", 2)[:2]
        key = os.environ.get("VLLM_API_KEY")
        if key and path.startswith(b"/v1") and f"Authorization: Bearer {key}".encode() not in raw:
            status, body = 401, '{"error": "Unauthorized"}'
        else:
            status, body = answer(method.decode(), path.decode())
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall((head + body).encode())


def main() -> None:
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(args.exit_code))
    say("vLLM server version 0.33.0, serving model tiny")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((args.bind, args.port))
    if args.shm:
        from multiprocessing import shared_memory

        segment = shared_memory.SharedMemory(create=True, size=4096)
        segment.buf[0] = 1
        say(f"segment {segment.name}")
    if args.grandchild:
        leave_grandchild(args.grandchild)
    say("Starting to load model tiny...")
    time.sleep(args.load_s)
    if args.die_loading:
        if args.say:
            print(args.say, flush=True)
        os._exit(args.exit_code)
    listener.listen(16)
    say("Application startup complete.")
    if args.die_after_s is not None:

        def die() -> None:
            time.sleep(args.die_after_s)
            if args.say:
                print(args.say, flush=True)
            os._exit(args.exit_code)

        threading.Thread(target=die, daemon=True).start()
    if args.flood:
        for number in range(args.flood):
            print(f"flood {number} " + "x" * 200, flush=False)
        sys.stdout.flush()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


main()
