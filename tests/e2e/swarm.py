"""Real processes on loopback for the end-to-end tests: a coordinator, workers, stock llama.cpp programs.

Every process is started here, ended by its id, and its output kept in the test's scratch folder. Programs are found
through LINKCPP_BIN (the build's bin folder); nothing is mocked.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("LINKCPP_BIN", ROOT / "build/release/bin"))
PLUGIN = BIN.parent / "lib/libggml-linkcpp.so"
AUSTEN = ROOT / "assets/austen-moe-q4km.gguf"
AUSTEN_TEXT = ROOT / "assets/austen-moe-val.txt"

# libgomp's threads spin after each region and starve each other on few cores; a short spin changes no result.
HOST_ENV = {"GOMP_SPINCOUNT": "1000"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(extra=None):
    """This process's environment without settings of ours or of llama.cpp that would leak into a test."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LINKCPP_", "GGML_", "LLAMA_ARG_", "LD_PRELOAD"))}
    env.update(HOST_ENV)
    env.update(extra or {})
    return env


class Process:
    def __init__(self, name, argv, env, folder):
        self.name = name
        self.log_path = pathlib.Path(folder) / f"{name}.log"
        self.log = open(self.log_path, "wb")
        self.popen = subprocess.Popen([str(a) for a in argv], env=env, stdout=self.log, stderr=subprocess.STDOUT,
                                      stdin=subprocess.DEVNULL)

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def text(self):
        return self.log_path.read_text(errors="replace")

    def kill(self):
        if self.alive():
            self.popen.kill()
        self.popen.wait()
        self.log.close()

    def stop(self, patience=15):
        """SIGTERM, then the exit status; a process that does not end is a failure of its own."""
        if self.alive():
            self.popen.send_signal(signal.SIGTERM)
        try:
            status = self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f"{self.name} did not end within {patience} s of SIGTERM:\n{self.text()[-2000:]}")
        self.log.close()
        return status


class Swarm:
    """A coordinator for one model, and workers. Use as a context manager."""

    def __init__(self, model, backbone=False, serve_args=(), host_args=(), env=None, folder=None, local="deny",
                 listen="127.0.0.1", program=BIN / "linkcpp"):
        self.model = pathlib.Path(model)
        self.backbone = backbone
        self.serve_args = list(serve_args)
        self.host_args = list(host_args)
        self.env = dict(env or {})
        self.own_folder = folder is None
        self.folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="linkcpp-test-"))
        self.local = local
        self.listen = listen
        self.program = program
        self.workers = []
        self.n_workers = 0
        self.serve = None
        self.url = None
        self.token = None
        self.api = None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def start(self, port=None):
        self.port = port or free_port()
        argv = [self.program, "serve", "-m", self.model, "--listen", f"{self.listen}:{self.port}",
                "--state", self.folder / "state", "--cache-dir", self.folder / "manifests", "--json", *self.serve_args]
        if self.backbone:
            self.api_port = free_port()
            argv += ["--api", f"127.0.0.1:{self.api_port}", "--local", self.local]
            if self.host_args:
                argv += ["--", *self.host_args]
        else:
            argv += ["--no-backbone"]
        self.serve = Process("serve", argv, environment(self.env), self.folder)
        self.wait(lambda: self.event("started") is not None, 120, "the coordinator to start")
        started = self.event("started")
        self.url, self.token = re.sub("//[^:/]+:", "//127.0.0.1:", started["url"]), started["token"]
        if self.backbone:
            self.api = f"http://127.0.0.1:{self.api_port}"

    def events(self):
        for line in self.serve.text().splitlines():
            if line.startswith("{"):
                try:
                    yield json.loads(line)
                except ValueError:
                    pass

    def event(self, kind):
        found = None
        for event in self.events():
            if event.get("event") == kind:
                found = event
        return found

    def wait(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while True:
            if condition():
                return
            if self.serve is not None and not self.serve.alive():
                raise AssertionError(f"the coordinator ended while waiting for {what}:\n{self.serve.text()[-3000:]}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {p.name}\n{p.text()[-1500:]}" for p in [self.serve, *self.workers] if p)
                raise AssertionError(f"waited {seconds} s for {what}\n{logs}")
            time.sleep(0.02)

    def add_worker(self, *args, program="linkcpp-expert-worker", cache=None, env=None, name=None, threads=1):
        self.n_workers += 1
        name = name or f"worker{self.n_workers}"
        argv = [BIN / program, self.url, "--name", name, "--cache", cache or self.folder / f"cache-{name}",
                "--device", "cpu", "--threads", str(threads), *args]
        worker = Process(name, argv, environment({"LINKCPP_TOKEN": self.token, **(env or {})}), self.folder)
        self.workers.append(worker)
        return worker

    def call(self, path, token=None, method="GET", body=None, timeout=10):
        request = urllib.request.Request(self.url.split("#")[0] + path, method=method, data=body)
        request.add_header("Authorization", f"Bearer {self.token if token is None else token}")
        # Off loopback the certificate is the coordinator's own; workers pin it, this test's questions do not matter.
        context = ssl._create_unverified_context() if self.url.startswith("https") else None
        with urllib.request.urlopen(request, timeout=timeout, context=context) as reply:
            return reply.read()

    def status(self):
        return json.loads(self.call("/api/status"))

    def wait_covered(self, seconds=60):
        def covered():
            status = self.status()
            return status["slices_covered"] == status["n_slices"]
        self.wait(covered, seconds, "full coverage")

    def host_env(self, **extra):
        return environment({"GGML_BACKEND_PATH": str(PLUGIN), "LINKCPP_COORDINATOR": self.url, "LINKCPP_TOKEN": self.token,
                            "LINKCPP_LOCAL": self.local, "LINKCPP_WAIT_S": "30", **extra})

    def wait_api(self, seconds=120):
        self.wait(lambda: self.event("ready") is not None, seconds, "llama-server to be healthy")

    def complete(self, prompt, n_predict=64, timeout=120, **fields):
        return complete(self.api, prompt, n_predict, timeout, **fields)

    def __exit__(self, kind, error, trace):
        for worker in self.workers:
            worker.kill()
        if self.serve is not None and self.serve.alive():
            try:
                self.serve.stop()
            except AssertionError as late:
                print(late, file=sys.stderr)
        if kind is not None:
            for process in [self.serve, *self.workers]:
                if process is not None:
                    print(f"--- {process.name}\n{process.text()[-3000:]}", file=sys.stderr)
        if self.own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def complete(api, prompt, n_predict=64, timeout=120, **fields):
    """Greedy continuation by llama-server's own endpoint; returns (text, token ids)."""
    body = json.dumps({"prompt": prompt, "n_predict": n_predict, "temperature": 0, "top_k": 1, "seed": 1,
                       "cache_prompt": False, "return_tokens": True, **fields}).encode()
    request = urllib.request.Request(api + "/completion", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        answer = json.loads(reply.read())
    return answer["content"], answer["tokens"]


class HostAlone:
    """The same llama-server without us."""

    def __init__(self, model, args=(), folder=None):
        self.folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="linkcpp-host-"))
        self.own_folder = folder is None
        self.port = free_port()
        self.api = f"http://127.0.0.1:{self.port}"
        self.process = Process("host-alone", ["llama-server", "-m", model, "--host", "127.0.0.1", "--port", str(self.port),
                                              "--no-warmup", *args], environment(), self.folder)

    def __enter__(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.alive(), self.process.text()[-2000:]
            try:
                with urllib.request.urlopen(self.api + "/health", timeout=2) as reply:
                    if reply.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError("llama-server did not become healthy:\n" + self.process.text()[-2000:])

    def complete(self, prompt, n_predict=64, timeout=120, **fields):
        return complete(self.api, prompt, n_predict, timeout, **fields)

    def __exit__(self, *_):
        self.process.stop()
        if self.own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def run(argv, env=None, timeout=600, check=True, **more):
    more = {"stderr": subprocess.STDOUT, **more}
    done = subprocess.run([str(a) for a in argv], env=env or environment(), timeout=timeout, stdout=subprocess.PIPE,
                          text=True, errors="replace", stdin=subprocess.DEVNULL, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{argv[0]} ended with status {done.returncode}:\n{done.stdout[-3000:]}")
    return done


def logits(model, out, env, n_prompt=24, n_steps=8, n_batches=1):
    return run([BIN / "host_logits", model, out, n_prompt, n_steps, n_batches], env=env)
