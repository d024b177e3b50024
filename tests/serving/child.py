"""A server that misbehaves on demand: run as a child by the tests of `serving` (`python child.py --port N …`).

It logs the few lines that vLLM logs, binds early and listens late like vLLM, serves /health, /metrics and
/v1/completions, and can ignore SIGTERM, leave grandchildren, hold shared memory, flood its log, or die.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory

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
    print(f"(APIServer pid={os.getpid()}) INFO {now} [child.py:1] {text}", flush=True)


def leave_grandchild(kind: str) -> None:
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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes = b"", kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(503 if args.sick_file and os.path.exists(args.sick_file) else 200)
        elif self.path == "/metrics":
            lines = [
                f'vllm:num_requests_running{{engine="0"}} {float(running)}',
                'vllm:num_requests_waiting{engine="0"} 0.0',
                f'vllm:generation_tokens_total{{engine="0"}} {float(tokens)}',
                'vllm:kv_cache_usage_perc{engine="0"} 0.25',
            ]
            self.answer(200, "\n".join(lines).encode() + b"\n", "text/plain")
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": args.model, "owned_by": "vllm"}]}).encode())
        else:
            self.answer(404)

    def do_POST(self) -> None:
        global tokens
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/v1/embeddings" and args.no_completions:
            self.answer(200, b'{"data": [{"embedding": [0.5]}]}')
        elif self.path != "/v1/completions" or args.no_completions:
            self.answer(404)
        else:
            while args.no_token_file and os.path.exists(args.no_token_file):
                time.sleep(0.05)
            tokens += 1
            self.answer(200, b'{"choices": [{"text": "!"}]}')
            say("POST /v1/completions")

    def log_message(self, *_: object) -> None:
        return


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
    server = ThreadingHTTPServer((args.bind, args.port), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_activate()
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
    server.serve_forever()


main()
