#!/usr/bin/env python3
"""The plug-in beside others: parallel requests, several backbones on one swarm, TLS, an unmapped file, a GPU backbone.

The GPU is Mesa's software Vulkan device (lavapipe), so -ngl 99 runs everywhere.
"""

import concurrent.futures
import pathlib
import re
import shutil
import tempfile
import time
import unittest

from swarm import AUSTEN, BIN, HostAlone, Swarm, environment, logits, run

PROMPTS = ["It is a truth universally acknowledged,", "Mr. Darcy said unto them,", "In the beginning", "And the king answered"]


class Neighbours(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-near-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def test_four_requests_at_once(self):
        # Batches mix differently from run to run, and a row's bits may depend on its batch in the backbone's own
        # matmuls, so each slot's text is compared with the host alone doing one request at a time: greedy text of a
        # trained model is stable against last bits.
        with HostAlone(AUSTEN, ["-np", "4", "-c", "2048"]) as alone:
            expected = [alone.complete(p, 32)[1] for p in PROMPTS]
        with Swarm(AUSTEN, backbone=True, local="deny", serve_args=["--wait-coverage", "30"], host_args=["-np", "4", "-c", "2048"]) as swarm:
            for _ in range(2):
                swarm.add_worker("--memory", "64M")
            swarm.wait_covered()
            swarm.wait_api()
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                ours = [tokens for _, tokens in pool.map(lambda p: swarm.complete(p, 32), PROMPTS)]
            self.assertEqual(ours, expected)
            time.sleep(1.2)
            report = swarm.status()["backbones"][0]["report"]
            self.assertEqual(report["failed"], 0)
            self.assertEqual(report["round_trips"], report["dispatches"], "one round trip per layer and batch")

    def test_two_backbones_share_one_swarm(self):
        logits(AUSTEN, self.folder / "alone.bin", environment(), 32, 32)
        with Swarm(AUSTEN) as swarm:
            for _ in range(2):
                swarm.add_worker("--memory", "4M")
            swarm.wait_covered()
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda i: logits(AUSTEN, self.folder / f"{i}.bin", swarm.host_env(), 32, 32), range(2)))
        for i in range(2):
            self.assertEqual((self.folder / f"{i}.bin").read_bytes(), (self.folder / "alone.bin").read_bytes())

    def test_off_loopback_everything_is_tls(self):
        logits(AUSTEN, self.folder / "alone.bin", environment(), 32, 8)
        with Swarm(AUSTEN, listen="0.0.0.0") as swarm:
            self.assertRegex(swarm.url, "^https://127.0.0.1:[0-9]+#sha256=[0-9a-f]{64}$")
            good = swarm.url
            digit = "0" if good[-1] != "0" else "1"
            swarm.url = good[:-1] + digit
            stranger = swarm.add_worker("--memory", "64M")
            self.assertEqual(stranger.popen.wait(30), 1)
            self.assertIn("certificate", stranger.text())
            swarm.url = good
            swarm.add_worker("--memory", "64M")
            swarm.wait_covered()
            logits(AUSTEN, self.folder / "ours.bin", swarm.host_env(LINKCPP_DATA_LISTEN="0.0.0.0:0"), 32, 8)
        self.assertEqual((self.folder / "ours.bin").read_bytes(), (self.folder / "alone.bin").read_bytes())

    def test_a_host_that_does_not_map_the_file(self):
        prompt = ["-m", AUSTEN, "-p", "In the beginning", "-n", "24", "--temp", "0", "-no-cnv", "--no-warmup", "--no-perf", "-t", "2"]
        alone = run(["llama-completion", *prompt, "--load-mode", "none"]).stdout
        with Swarm(AUSTEN) as swarm:
            swarm.add_worker("--memory", "64M")
            swarm.wait_covered()
            ours = run(["llama-completion", *prompt, "--load-mode", "none"], env=swarm.host_env(LINKCPP_LOG="error")).stdout
            time.sleep(6)  # workers report every few seconds
            pairs = sum(node["pairs_computed"] for node in swarm.status()["nodes"])
            # Nobody holds anything any more: the file serves what is computed here.
            local = run(["llama-completion", *prompt, "--load-mode", "none"],
                        env=environment({"GGML_BACKEND_PATH": str(BIN.parent / "lib/libggml-linkcpp.so"), "LINKCPP_LOG": "error"})).stdout
        text = lambda said: re.search(r"In the beginning[^\n]*(?:\n[^\n]+)*", said).group(0)[:80]
        self.assertEqual(text(ours), text(alone))
        self.assertEqual(text(local), text(alone))
        self.assertGreater(pairs, 0)

    def test_the_backbone_on_a_gpu(self):
        env = {"GGML_VK_VISIBLE_DEVICES": "0"}
        devices = run(["llama-server", "--list-devices"], env=environment(env)).stdout
        self.assertIn("Vulkan0", devices, "mesa-vulkan-drivers and libggml0-backend-vulkan belong to the environment")
        prompt = "It is a truth universally acknowledged,"
        host = ["-ngl", "99", "-c", "512", "-lv", "4"]
        with Swarm(AUSTEN, backbone=True, local="deny", env=env, serve_args=["--wait-coverage", "30"], host_args=host) as swarm:
            swarm.add_worker("--memory", "64M")
            swarm.wait_covered()
            swarm.wait_api()
            ours = swarm.complete(prompt, 24)[1]
            time.sleep(1.2)
            report = swarm.status()["backbones"][0]["report"]
            log = (swarm.folder / "state/llama-server.log").read_text(errors="replace")
        self.assertGreater(report["pairs"], 24 * 4 * 4 - 1, "the experts were not asked of us")
        self.assertEqual(report["pairs_local"], 0)
        self.assertRegex(log, "Vulkan")
        with HostAlone(AUSTEN) as alone:
            expected = alone.complete(prompt, 24)[1]
        self.assertEqual(ours, expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
