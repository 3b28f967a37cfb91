#!/usr/bin/env python3
"""`linkcpp verify expert --swarm`: a worker of a running swarm against the oracle: right, wrong, absent, refusing."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

from swarm import AUSTEN, BIN, Process, Swarm, environment, run

ARCHS = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests/test-llama-archs"
UNGUARDED = {"LINKCPP_CANARIES": "off", "LINKCPP_SPOT_CHECKS": "0"}
NUMBER_EVILS = ["swap", "zero", "renormalise", "nan", "other-layer", "wrong-row", "nibble", "scale", "activation"]


def verify(*args, env=None, status=0):
    done = subprocess.run([str(a) for a in (BIN / "linkcpp", "verify", "expert", "--json", *args)], env=env or environment(),
                          capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == status, f"{args}: status {done.returncode}\n{done.stdout}{done.stderr}"
    if status == 2:
        return done.stdout + done.stderr
    said = json.loads(done.stdout)
    return said["error"]["message"] if "error" in said else said


class VerifyWorker(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-vw-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def hostile(self, swarm, *evil, name="hostile"):
        argv = [BIN / "hostile_worker", swarm.url, "--name", name, "--cache", swarm.folder / "hostile-cache", *evil]
        worker = Process(name, argv, environment({"LINKCPP_TOKEN": swarm.token}), swarm.folder)
        swarm.workers.append(worker)
        return worker

    def test_a_right_worker_has_the_figures_of_its_kernel_class(self):
        with Swarm(AUSTEN) as swarm:
            env = environment({"LINKCPP_TOKEN": swarm.token})
            swarm.add_worker("--layers", "0:2", name="first")
            swarm.add_worker("--layers", "2:4", name="second")
            swarm.wait_covered()
            for layer in (0, 2):  # down in Q4_K and in Q6_K
                for rows in (1, 9):
                    with self.subTest(layer=layer, rows=rows):
                        asked = ["-m", AUSTEN, "--layer", layer, "--experts", "0:3,15", "--rows", rows]
                        here = verify(*asked)
                        there = verify(*asked, "--swarm", swarm.url, env=env)
                        self.assertIn("worker first" if layer == 0 else "worker second", there["device"])
                        self.assertEqual(there["all"], here["all"], "the same kernel class gives the same bits")
                        self.assertEqual(there["experts"], here["experts"])
                        self.assertTrue(there["all"]["inside"])
            node = next(n for n in swarm.status()["nodes"] if n["name"] == "second")["node_id"]
            with self.subTest("by name, by id, by the beginning of it; a token from a file"):
                token = self.folder / "token"
                token.write_text(swarm.token)
                for name in ("second", node, node[:10]):
                    said = verify("-m", AUSTEN, "--layer", "3", "--swarm", swarm.url, "--node", name, "--token-file", token)
                    self.assertIn(node, said["device"])
            self.assertEqual(swarm.status()["backbones"], [], "it has detached")

            with self.subTest("what does not fit"):
                ask = ["-m", AUSTEN, "--swarm", swarm.url]
                self.assertIn("no worker is called third", verify(*ask, "--node", "third", env=env, status=1))
                said = verify(*ask, "--node", "first", "--layer", "3", "--experts", "5", env=env, status=1)
                self.assertIn("worker first does not hold expert 5 of layer 3", said)
                said = verify("-m", AUSTEN, "--swarm", swarm.url, env=environment(), status=2)
                self.assertIn("which token?", said)
                self.assertIn("token", verify(*ask, env=environment({"LINKCPP_TOKEN": "lk_wrong"}), status=1))
                self.assertIn("is `linkcpp serve` running there?", verify("-m", AUSTEN, "--swarm", "http://127.0.0.1:1", env=env, status=1))
                toys = self.folder / "toys"
                toys.mkdir()
                run([ARCHS, "-o", toys, "-s", "1"])
                said = verify("-m", toys / "qwen3moe-moe.gguf", "--experts", "0", "--swarm", swarm.url, env=env, status=1)
                self.assertIn("serves another model", said)
                other = self.folder / "other.gguf"  # the same header, other weights: only hashed slabs can tell
                data = bytearray(AUSTEN.read_bytes())
                for i in range(len(data) // 2, len(data), 997):
                    data[i] ^= 0x10
                other.write_bytes(data)
                self.assertIn("differs", verify("-m", other, "--swarm", swarm.url, env=env, status=1))
                for wrong in (["--swarm", "x", "--device", "cpu"], ["--node", "first"], ["--token-file", "x"]):
                    verify("-m", AUSTEN, *wrong, status=2)

            with self.subTest("a worker that hangs"):
                first = swarm.workers[0]
                first.popen.send_signal(signal.SIGSTOP)
                try:
                    self.assertIn("has not dialled in", verify(*ask, "--node", "first", env=env, status=1))
                finally:
                    first.popen.send_signal(signal.SIGCONT)

    def test_no_workers(self):
        with Swarm(AUSTEN) as swarm:
            said = verify("-m", AUSTEN, "--swarm", swarm.url, env=environment({"LINKCPP_TOKEN": swarm.token}), status=1)
            self.assertIn("no workers", said)

    def test_half_of_the_experts_is_said(self):
        with Swarm(AUSTEN) as swarm:
            env = environment({"LINKCPP_TOKEN": swarm.token})
            swarm.add_worker("--experts", "0:8")
            swarm.wait(lambda: swarm.status()["slices_covered"] == 32, 60, "half of the slices")
            said = verify("-m", AUSTEN, "--experts", "6:10", "--swarm", swarm.url, env=env, status=1)
            self.assertIn("no worker holds all of the experts", said)
            self.assertIn("experts 0:8", said)
            self.assertTrue(verify("-m", AUSTEN, "--experts", "6:8", "--swarm", swarm.url, env=env)["all"]["inside"])

    def test_wrong_numbers_are_outside_the_bound(self):
        for evil in NUMBER_EVILS:
            with self.subTest(evil), Swarm(AUSTEN, env=UNGUARDED) as swarm:
                worker = self.hostile(swarm, "--evil", evil)
                swarm.wait_covered()
                env = environment({"LINKCPP_TOKEN": swarm.token, **UNGUARDED})
                report = verify("-m", AUSTEN, "--experts", "all", "--rows", "3", "--swarm", swarm.url, env=env, status=1)
                self.assertGreater(worker.text().count("evil "), 0)
                self.assertFalse(report["all"]["inside"])
                if evil not in ("zero", "wrong-row"):  # those leave single rows right
                    self.assertTrue(all(not e["measure"]["inside"] for e in report["experts"]), "every expert is seen")

    def test_frames_that_break_the_rules_are_named(self):
        for evil, words in (("drop", "asked for 3 rows of 256 values of type 0, the answer has 2"), ("stale", "which is not outstanding"),
                            ("twice", "which is not outstanding")):
            with self.subTest(evil), Swarm(AUSTEN, env=UNGUARDED) as swarm:
                self.hostile(swarm, "--evil", evil)
                swarm.wait_covered()
                env = environment({"LINKCPP_TOKEN": swarm.token, **UNGUARDED})
                said = verify("-m", AUSTEN, "--experts", "all", "--rows", "3", "--swarm", swarm.url, env=env, status=1)
                self.assertIn(words, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
