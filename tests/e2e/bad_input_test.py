#!/usr/bin/env python3
"""What goes wrong in practice: each gets a clear error, loses nothing, and the rest keeps serving."""

import json
import os
import pathlib
import shutil
import signal
import socket
import struct
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


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-bad-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def test_truncated_model(self):
        for size in (3, 1000, AUSTEN.stat().st_size - 1):
            short = self.folder / "short.gguf"
            short.write_bytes(AUSTEN.read_bytes()[:size])
            fails([BIN / "linkcpp", "manifest", "-m", short], 1, "short.gguf")
            fails([BIN / "linkcpp", "serve", "-m", short, "--no-backbone", "--state", self.folder / "s",
                   "--listen", f"127.0.0.1:{free_port()}"], 1, "short.gguf")

    def test_absent_model(self):
        fails([BIN / "linkcpp", "serve", "-m", self.folder / "none.gguf", "--state", self.folder / "s"], 1, "none.gguf")

    def test_layer_or_expert_out_of_range(self):
        out = self.folder / "o.gguf"
        fails([BIN / "linkcpp", "shard", "-m", AUSTEN, "--layers", "0:9", "--experts", "0", "-o", out], 1, "4")
        fails([BIN / "linkcpp", "shard", "-m", AUSTEN, "--layers", "0", "--experts", "99", "-o", out], 1, "99", "0 to 15")
        fails([BIN / "linkcpp", "shard", "-m", AUSTEN, "--layers", "x", "--experts", "0", "-o", out], 2)
        self.assertFalse(out.exists())

    def test_flipped_byte_in_a_shard(self):
        out = self.folder / "o.gguf"
        run([BIN / "linkcpp", "shard", "-m", AUSTEN, "--layers", "0:2", "--experts", "0:4", "-o", out])
        data = bytearray(out.read_bytes())
        data[-100] ^= 1
        out.write_bytes(data)
        fails([BIN / "linkcpp", "shard", "-m", AUSTEN, "--verify", out], 1)

    def test_wrong_usage(self):
        for argv in ([], ["nonsense"], ["serve"], ["shard", "-m"], ["join"]):
            fails([BIN / "linkcpp", *argv], 2)


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

            with self.subTest("the port is taken"):
                fails([BIN / "linkcpp", "serve", "-m", AUSTEN, "--no-backbone", "--state", swarm.folder / "other",
                       "--listen", f"127.0.0.1:{swarm.port}"], 1, str(swarm.port))

            with self.subTest("a worker that hangs: its pairs go to another holder"):
                second = swarm.add_worker("--memory", "64M")
                swarm.wait(lambda: min(layer["min_holders"] for layer in swarm.status()["layers"]) == 2, 60, "two holders")
                time.sleep(1)
                worker.popen.send_signal(signal.SIGSTOP)
                self.assertEqual(swarm.complete(prompt, 24)[1], expected)
                worker.popen.send_signal(signal.SIGCONT)
                self.assertEqual(second.stop(), 0, "a worker leaves cleanly on SIGTERM")

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
