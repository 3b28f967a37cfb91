#!/usr/bin/env python3
"""What goes wrong in practice: each gets a clear error, loses nothing, and the rest keeps serving."""

import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest
import urllib.error

from swarm import AUSTEN, BIN, HostAlone, Process, Swarm, environment, free_port, run


def fails(argv, status, *words, env=None):
    done = run(argv, env=env, check=False, timeout=60)
    assert done.returncode == status, f"{argv}: status {done.returncode}, not {status}:\n{done.stdout[-1500:]}"
    for word in words:
        assert word in done.stdout, f"{argv}: '{word}' is not in:\n{done.stdout[-1500:]}"
    return done.stdout


LINKCPP, WORKER = BIN / "linkcpp", BIN / "linkcpp-expert-worker"


class ExitStatus(unittest.TestCase):
    """The same mistake has the same status in every command: 2 the command line can not be right, 1 the world did not oblige."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-bad-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.state = self.folder / "state"
        self.shard = self.folder / "shard.gguf"

    def commands_with_a_model(self):
        yield "serve", "--state", self.state, "--listen", f"127.0.0.1:{free_port()}"
        yield "serve", "--no-backbone", "--state", self.state, "--listen", f"127.0.0.1:{free_port()}"
        yield "serve", "--auto", "--state", self.state, "--listen", f"127.0.0.1:{free_port()}"
        yield ("manifest",)
        yield "shard", "--layers", "0", "--experts", "0", "-o", self.folder / "out.gguf"
        yield "plan", "--ram-rate", "10", "--vram", "none"
        yield ("oracle",)
        yield "verify", "expert"
        yield "verify", "decode"
        yield "matrix", "--rows", "1"

    def test_a_model_that_is_none(self):
        whole = AUSTEN.read_bytes()
        for name, data in (("three.gguf", whole[:3]), ("header.gguf", whole[:1000]), ("short.gguf", whole[:-1]),
                           ("text.gguf", b"It is a truth universally acknowledged" * 9)):
            (self.folder / name).write_bytes(data)
        (self.folder / "folder.gguf").mkdir()
        for command in self.commands_with_a_model():
            for name in ("none", "folder", "three", "header", "short", "text"):
                with self.subTest(command=command[:2], model=name):
                    said = fails([LINKCPP, *command, "-m", self.folder / f"{name}.gguf"], 2, "--model", f"{name}.gguf")
                    self.assertEqual(said.count("\n"), 1, said)
        fails([LINKCPP, "shard", "--verify", self.folder / "none.gguf"], 2, "--verify", "none.gguf")
        self.assertEqual([path for path in (self.state, self.folder / "out.gguf") if path.exists()], [])

    def test_a_shard_is_no_model(self):
        run([LINKCPP, "shard", "-m", AUSTEN, "--layers", "0", "--experts", "0", "-o", self.shard])
        for command in (["serve", "--auto", "--state", self.state], ["serve", "--state", self.state], ["manifest"]):
            fails([LINKCPP, *command, "-m", self.shard], 2, "shard.gguf is a shard")

    def test_words_that_are_not_known(self):
        every = [["serve"], ["join"], ["status"], ["token", "new"], ["token", "list"], ["token", "revoke"], ["shard"],
                 ["manifest"], ["synth"], ["plan"], ["oracle"], ["verify", "expert"], ["verify", "decode"], ["matrix"]]
        for command in every:
            fails([LINKCPP, *command, "--no-such-option"], 2, f"linkcpp {' '.join(command)} has no option --no-such-option",
                  f"linkcpp {' '.join(command)} --help")
        fails([WORKER, "--no-such-option"], 2, "linkcpp-expert-worker has no option --no-such-option")
        for argv, said in ((["serv"], "linkcpp has no command 'serv'; did you mean serve?"),
                           (["serv", "-m", AUSTEN], "did you mean serve?"),
                           (["stauts"], "did you mean status?"),
                           (["nonsense"], "linkcpp has no command 'nonsense'; there are: join, serve"),
                           ([], "which command? There are: join, serve"),
                           (["token"], "which command? There are: new, list, revoke"),
                           (["token", "lst"], "linkcpp token has no command 'lst'; did you mean list?"),
                           (["verify", "exprt"], "did you mean expert?"),
                           (["serve", "--lisen", "127.0.0.1:1", "-m", AUSTEN], "did you mean --listen?"),
                           (["serve", "--modle", AUSTEN], "linkcpp serve has no option --modle; did you mean --model?"),
                           (["join", "--mem=4G", "http://127.0.0.1:1"], "did you mean --memory?"),
                           (["status", "what"], "linkcpp status takes no 'what'"),
                           (["serve"], "--model is required"), (["shard", "-m"], "--model"),
                           (["token", "revoke"], "id is required")):
            with self.subTest(argv=argv):
                fails([LINKCPP, *argv], 2, said)
        self.assertIn("error", json.loads(run([LINKCPP, "manifest", "-m", "none.gguf", "--json"], check=False,
                                              stderr=subprocess.DEVNULL).stdout))
        run([LINKCPP, "--help"])
        run([LINKCPP, "serve", "--help"])

    def test_values_that_make_no_sense(self):
        serve, token = ["serve", "-m", AUSTEN, "--state", self.state], {"LINKCPP_TOKEN": "lk_" + "0" * 64}
        join, url = ["join", "--cache", self.folder / "c"], "http://127.0.0.1:1"
        for argv, word, env in (
                ([*serve, "--listen", "nonsense"], "--listen", {}), ([*serve, "--api", "127.0.0.1:99999"], "--api", {}),
                ([*serve, "--api", "127.0.0.1:0"], "--api", {}), ([*serve, "--data-listen", "1"], "--data-listen", {}),
                ([*serve, "--wait-coverage", "-1"], "--wait-coverage", {}), ([*serve, "--local", "maybe"], "--local", {}),
                ([*serve, "--plugin", self.folder / "none.so"], "none.so", {}),
                ([*serve, "--auto", "--nodes", self.folder / "none.json"], "none.json", {}),
                (join, "which coordinator", token), ([*join, url], "which token", {}), ([*join, "nonsense"], "nonsense", token),
                ([*join, "ftp://127.0.0.1:1"], "ftp", token), ([*join, "http://127.0.0.1:99999"], "99999", token),
                ([*join, "https://h:1#sha256=abc"], "fingerprint", token), ([*join, url], "token", {"LINKCPP_TOKEN": "lk_ 0"}),
                ([*join, url, "--token-file", self.folder / "none"], "none", {}), ([*join, url, "--memory", "lots"], "lots", token),
                ([*join, url, "--layers", "x"], "x", token), ([*join, url, "--threads", "-1"], "--threads", token),
                ([*join, url, "--name", "n" * 65], "--name", token), ([*join, url, "--backend", self.folder / "none.so"], "none.so", token),
                (["status", "--url", "nonsense"], "nonsense", token), (["status", "--url", "http://h:99999"], "99999", token),
                (["status", "--url", url], "token", {"LINKCPP_TOKEN": "lk_ 0"}),
                (["status"], "nonsense", {"LINKCPP_COORDINATOR": "nonsense", **token}),
                (["status", "--url", url, "--state", self.folder / "none"], "set LINKCPP_TOKEN", {}),
                (["token", "new", "--state", self.state, "--name", "n" * 65], "--name", {}),
                (["token", "new", "--state", self.state, "--name", "a\x1b[2J"], "--name", {}),
                (["shard", "-m", AUSTEN], "-o", {}), (["shard", "-m", AUSTEN, "--layers", "2:1", "-o", self.shard], "--layers", {}),
                (["synth"], "--like", {}), (["synth", "--like", "nobody", "-o", self.shard], "nobody", {}),
                (["synth", "--list", "--type", "Q99"], "Q99", {}), (["synth", "--threads", "0"], "--threads", {})):
            with self.subTest(argv=argv):
                fails([LINKCPP, *argv], 2, word, env=environment(env))
        self.assertEqual([path for path in (self.state, self.shard) if path.exists()], [])

    def test_what_the_world_refuses(self):
        token = {"LINKCPP_TOKEN": "lk_" + "0" * 64}
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            serve = ["serve", "-m", AUSTEN, "--state", self.state, "--cache-dir", self.folder]
            for argv, word in (([*serve, "--no-backbone", "--listen", f"127.0.0.1:{port}"], "--listen"),
                               ([*serve, "--listen", f"127.0.0.1:{free_port()}", "--api", f"127.0.0.1:{port}"], "--api")):
                fails([LINKCPP, *argv], 1, word, str(port))
        for argv, word in ((["status", "--url", f"http://127.0.0.1:{port}"], "running there?"),
                           (["status", "--state", self.folder / "none"], "no `linkcpp serve` has run"),
                           (["token", "revoke", "0000", "--state", self.folder / "none"], "there is no token 0000"),
                           (["shard", "-m", AUSTEN, "--layers", "0:9", "--experts", "0", "-o", self.shard], "0 to 3"),
                           (["shard", "-m", AUSTEN, "--layers", "0", "--experts", "99", "-o", self.shard], "0 to 15"),
                           (["synth", "--like", "qwen3-30b", "-o", self.folder / "none/x.gguf"], "none/x.gguf")):
            with self.subTest(argv=argv):
                fails([LINKCPP, *argv], 1, word, env=environment(token if argv[0] == "status" and "--url" in argv else {}))
        self.assertFalse(self.shard.exists())
        with open("/dev/full", "w") as full:
            done = subprocess.run([LINKCPP, "synth", "--list"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr.count("standard output can not be written")), (1, 1), done.stderr)

    def test_flipped_byte_in_a_shard(self):
        run([LINKCPP, "shard", "-m", AUSTEN, "--layers", "0:2", "--experts", "0:4", "-o", self.shard])
        data = bytearray(self.shard.read_bytes())
        data[-100] ^= 1
        self.shard.write_bytes(data)
        fails([LINKCPP, "shard", "--verify", self.shard], 1)


class State(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-bad-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def test_looking_makes_nothing(self):
        state = self.folder / "state"
        self.assertIn("no tokens", run([LINKCPP, "token", "list", "--state", state]).stdout)
        self.assertEqual(json.loads(run([LINKCPP, "token", "list", "--state", state, "--json"],
                                        stderr=subprocess.DEVNULL).stdout), {"tokens": []})
        fails([LINKCPP, "token", "revoke", "0000", "--state", state], 1)
        fails([LINKCPP, "status", "--state", state], 1)
        self.assertFalse(state.exists())

    def test_one_serve_a_folder(self):
        with Swarm(AUSTEN, folder=self.folder) as swarm:
            record = (self.folder / "state/serve.json").read_text()
            again = [LINKCPP, "serve", "-m", AUSTEN, "--no-backbone", "--state", self.folder / "state",
                     "--listen", f"127.0.0.1:{free_port()}"]
            fails(again, 1, f"process {swarm.serve.pid}", str(self.folder / "state"), "--state")
            self.assertEqual((self.folder / "state/serve.json").read_text(), record)
            swarm.serve.kill()  # the lock goes with the process, however that ends
            swarm.start()
            self.assertEqual(swarm.status()["nodes"], [])

    def test_the_join_line_can_be_pasted(self):
        env = {"LINKCPP_RUN_PREFIX": "env", "PATH": f"{BIN}:{os.environ['PATH']}"}
        with Swarm(AUSTEN, folder=self.folder, env=env, program="linkcpp") as swarm:
            line = swarm.event("started")["join"]
            self.assertRegex(line, r"^LINKCPP_TOKEN=lk_\w+ env linkcpp join 'http://127.0.0.1:\d+'$")
            worker = Process("pasted", ["sh", "-c", f"exec env {line} --memory 16M --device cpu --threads 1 --cache {self.folder}/c"],
                             environment(env), self.folder)
            swarm.workers.append(worker)
            swarm.wait(lambda: swarm.status()["slices_covered"] > 0, 60, "the worker of the join line")


class Serving(unittest.TestCase):
    def test_a_swarm_that_is_mistreated(self):
        with HostAlone(AUSTEN) as alone:
            prompt = "It is a truth universally acknowledged,"
            expected = alone.complete(prompt, 24)[1]
        with Swarm(AUSTEN, backbone=True, local="deny", serve_args=["--wait-coverage", "2"]) as swarm:
            swarm.wait_api()
            with self.subTest("no holder and LINKCPP_LOCAL=deny: that request fails, the server lives"):
                with self.assertRaises(urllib.error.HTTPError) as caught:
                    swarm.complete(prompt, 8)
                self.assertEqual(caught.exception.code, 500)
                log = (swarm.folder / "state/llama-server.log").read_text(errors="replace")
                self.assertRegex(log, r"layer \d+, expert \d+: no worker holds it")

            with self.subTest("a wrong token"):
                token, swarm.token = swarm.token, "lk_" + "0" * 64
                stranger = swarm.add_worker("--memory", "16M")
                self.assertEqual(stranger.popen.wait(30), 1)
                self.assertIn("token", stranger.text())
                self.assertNotIn("0" * 64, stranger.text())
                with self.assertRaises(urllib.error.HTTPError) as caught:
                    swarm.status()
                self.assertEqual(caught.exception.code, 401)
                swarm.token = token

            with self.subTest("a revoked token stops working at once"):
                state = swarm.folder / "state"
                made = json.loads(run([BIN / "linkcpp", "token", "new", "--name", "guest", "--state", state, "--json"]).stdout)
                self.assertTrue(swarm.call("/api/status", token=made["token"]))
                run([BIN / "linkcpp", "token", "revoke", made["id"], "--state", state])
                time.sleep(1.2)
                with self.assertRaises(urllib.error.HTTPError) as caught:
                    swarm.call("/api/status", token=made["token"])
                self.assertEqual(caught.exception.code, 401)

            worker = swarm.add_worker("--memory", "64M")
            swarm.wait_covered()
            swarm.wait(lambda: self.served(swarm, prompt, expected), 30, "the right text")

            with self.subTest("a worker whose memory is less than one slice says so, here and there"):
                small = swarm.add_worker("--memory", "1K", name="small")
                def says():
                    return [node for node in swarm.status()["nodes"] if node["name"] == "small" and node["state"] == "idle"]
                swarm.wait(says, 30, "the small worker")
                self.assertIn("less than one slice", says()[0]["error"])
                self.assertIn("less than one slice", small.text())
                self.assertNotIn("ready", small.text())
                self.assertEqual(small.stop(), 0)

            with self.subTest("a URL that is llama-server's"):
                fails([LINKCPP, "status", "--url", swarm.api], 1, "no linkcpp coordinator", "llama.cpp", "control",
                      env=environment({"LINKCPP_TOKEN": swarm.token}))
                fails([LINKCPP, "join", swarm.api, "--cache", swarm.folder / "lost"], 1, "no linkcpp coordinator",
                      env=environment({"LINKCPP_TOKEN": swarm.token}))

            with self.subTest("a revoked token: its worker's link to the backbone is cut, whatever the worker does"):
                made = json.loads(run([LINKCPP, "token", "new", "--name", "guest", "--state", state, "--json"]).stdout)
                guest = swarm.add_worker("--memory", "64M", name="guest", env={"LINKCPP_TOKEN": made["token"]})
                swarm.wait(lambda: guest.text().count("connected to backbone") > 0, 60, "the guest's link")
                guest.popen.send_signal(signal.SIGSTOP)  # it can not leave by itself
                run([LINKCPP, "token", "revoke", made["id"], "--state", state])
                log = swarm.folder / "state/llama-server.log"
                swarm.wait(lambda: "is cut off: the coordinator says: its token was revoked" in log.read_text(errors="replace"), 30,
                           "the backbone to cut the guest off")
                self.assertNotIn("guest", [node["name"] for node in swarm.status()["nodes"]])
                guest.popen.send_signal(signal.SIGCONT)
                self.assertEqual(guest.popen.wait(60), 1)
                self.assertIn("refused the token", guest.text())

            with self.subTest("garbage on the data port"):
                status = swarm.status()
                host, port = status["backbones"][0]["data_address"].rsplit(":", 1)
                for garbage in (os.urandom(4096), struct.pack("<II", 0xFFFFFFFF, 16), struct.pack("<II", 16, 0xFFFFFFF0),
                                struct.pack("<II", 64, 0) + os.urandom(64), b"GET / HTTP/1.1\r\n\r\n"):
                    with socket.create_connection((host, int(port)), 5) as peer:
                        peer.sendall(garbage)
                        peer.settimeout(10)
                        try:
                            while peer.recv(4096):
                                pass
                        except ConnectionResetError:
                            pass
                self.assertEqual(swarm.complete(prompt, 24)[1], expected)

            with self.subTest("a worker that hangs: its pairs go to another holder"):
                second = swarm.add_worker("--memory", "64M")
                swarm.wait(lambda: min(layer["min_holders"] for layer in swarm.status()["layers"]) == 2, 60, "two holders")
                time.sleep(1)
                worker.popen.send_signal(signal.SIGSTOP)
                self.assertEqual(swarm.complete(prompt, 24)[1], expected)
                worker.popen.send_signal(signal.SIGCONT)
                self.assertEqual(second.stop(), 0, "a worker leaves cleanly on SIGTERM")

            with self.subTest("a worker that is killed counts no more, at once; and is dropped long before half a minute"):
                swarm.wait(lambda: swarm.status()["slices_covered"] == 64, 30, "the link of the worker that hung")
                worker.kill()
                swarm.wait(lambda: swarm.status()["slices_covered"] == 0, 20, "the coordinator to see that it is gone")
                swarm.wait(lambda: not swarm.status()["nodes"], 25, "the coordinator to drop it")

    def served(self, swarm, prompt, expected):
        try:
            tokens = swarm.complete(prompt, 24)[1]
        except urllib.error.HTTPError:
            return False  # its link is still being made
        self.assertEqual(tokens, expected)
        return True

    def test_a_coordinator_that_comes_back(self):
        with HostAlone(AUSTEN) as alone:
            prompt = "And it came to pass"
            expected = alone.complete(prompt, 24)[1]
        with Swarm(AUSTEN, local="deny") as swarm:
            swarm.add_worker("--memory", "64M")
            swarm.wait_covered()
            api_port = free_port()
            host = Process("backbone", ["llama-server", "-m", AUSTEN, "--host", "127.0.0.1", "--port", str(api_port), "--no-warmup"],
                           swarm.host_env(), swarm.folder)
            try:
                swarm.api = f"http://127.0.0.1:{api_port}"
                swarm.wait(lambda: "listening" in host.text(), 60, "the backbone")
                self.assertEqual(swarm.complete(prompt, 24)[1], expected)
                swarm.serve.kill()
                self.assertEqual(swarm.complete(prompt, 24)[1], expected, "without a coordinator")
                swarm.start(swarm.port)
                swarm.wait(lambda: len(swarm.status()["nodes"]) == 1 and len(swarm.status()["backbones"]) == 1, 60,
                           "the worker and the backbone to join again")
                swarm.wait_covered()
                self.assertEqual(swarm.complete(prompt, 24)[1], expected, "with a new coordinator")
            finally:
                host.kill()

    def test_a_backbone_with_another_model(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-bad-"))
        self.addCleanup(shutil.rmtree, folder, True)
        other = folder / "other.gguf"
        data = bytearray(AUSTEN.read_bytes())
        with Swarm(AUSTEN) as swarm:
            # The same header, other weights: only the probes can tell.
            for i in range(len(data) // 2, len(data), 997):
                data[i] ^= 0x10
            other.write_bytes(data)
            done = run([BIN / "host_logits", other, folder / "x.bin"], env=swarm.host_env(), check=False, timeout=60)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertRegex(done.stdout, "differs|another model")
            # A token that is wrong.
            env = swarm.host_env(LINKCPP_TOKEN="lk_wrong")
            done = run([BIN / "host_logits", AUSTEN, folder / "x.bin"], env=env, check=False, timeout=60)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("token", done.stdout)

    def test_settings_that_make_no_sense(self):
        for name, value in (("LINKCPP_LOCAL", "maybe"), ("LINKCPP_LOCAL_MEMORY", "64 parsecs")):
            done = run([BIN / "host_logits", AUSTEN, "/dev/null"], env=environment(
                {"GGML_BACKEND_PATH": str(BIN.parent / "lib/libggml-linkcpp.so"), name: value}), check=False, timeout=60)
            self.assertIn(f"{name}={value}", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
