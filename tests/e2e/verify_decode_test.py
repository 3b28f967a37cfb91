#!/usr/bin/env python3
"""`linkcpp verify decode`: right swarms pass, wrong ones fail, bad input is named, and nothing is left behind.

Wrong swarms are real ones with a worker that computes something else (hostile_worker). It claims the host's kernel
class, where one differing bit is a failure, or another, where only a result beyond the measured bound is.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from swarm import AUSTEN, AUSTEN_TEXT, BIN, Process, Swarm, environment, run

ARCHS = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests/test-llama-archs"
TOYS = ["qwen3moe", "gpt-oss", "qwen35moe", "deepseek2"]  # separate, with biases, merged gate_up, leading dense layers
OTHER_CLASS = "ggml-0.27.0/Other/made-up"


# No canaries and no spot checks: here the numbers themselves must give a wrong worker away.
UNGUARDED = {"LINKCPP_CANARIES": "off", "LINKCPP_SPOT_CHECKS": "0"}


class VerifyDecode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-toys-"))
        run([ARCHS, "-o", cls.models, "-s", "1"])

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.models, True)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-vd-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.tmp = self.folder / "tmp"
        self.tmp.mkdir()

    def env(self, **more):
        return environment({"TMPDIR": str(self.tmp), **more})

    def verify(self, *args, env=None, status=0):
        """The report, or the error's text; the exit status is checked, and that nothing is left."""
        done = subprocess.run([str(a) for a in (BIN / "linkcpp", "verify", "decode", "--json", *args)], env=env or self.env(),
                              capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, status, f"{args}\n{done.stdout}{done.stderr}")
        self.assert_clean()
        if status == 2:
            return done.stdout + done.stderr
        said = json.loads(done.stdout)
        return said["error"]["message"] if "error" in said else said

    def assert_clean(self):
        self.assertEqual(list(self.tmp.iterdir()), [], "files are left")
        self.assertEqual(self.children(), [], "processes are left")

    def children(self):
        """Processes that were started from a folder of this test's, by their command lines."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes()
            except OSError:
                continue
            if str(self.tmp).encode() in line:
                found.append((int(entry.parent.name), line.replace(b"\0", b" ").decode(errors="replace")))
        return found

    # ---- swarms of its own

    def test_the_default_on_a_trained_model(self):
        report = self.verify("-m", AUSTEN)
        self.assertEqual(report["verdict"], "bit-identical")
        self.assertTrue(report["bit_identical"])
        self.assertEqual((report["nmse"], report["kl_mean"], report["kl_max"], report["top1_agreement"]), (0, 0, 0, 1))
        self.assertIsNone(report.get("first_differing_position"))
        self.assertEqual((report["tokens"], report["in_batches"], report["one_by_one"]), (128, 96, 32))
        # 4 layers, 4 experts a token: all of them asked of workers, none computed here.
        self.assertEqual((report["pairs"], report["pairs_by_workers"], report["pairs_local"]), (2048, 2048, 0))
        self.assertEqual([w["name"] for w in report["workers"]], ["worker1", "worker2"])
        self.assertTrue(all(w["pairs"] > 0 and w["same_class"] for w in report["workers"]))

    def test_other_texts_batches_and_numbers_of_workers(self):
        for args in (["--text", "It is a truth universally acknowledged, that a single man"], ["--workers", "1", "--tokens", "1"],
                     ["--prompt-file", AUSTEN_TEXT, "--tokens", "200", "--batch", "7", "--workers", "5"],
                     ["--tokens", "3", "--batch", "1", "--threads", "1"]):
            with self.subTest(args):
                report = self.verify("-m", AUSTEN, *args)
                self.assertEqual(report["verdict"], "bit-identical")
                self.assertEqual(report["pairs_by_workers"], 16 * report["tokens"])

    def test_toys_of_other_architectures(self):
        for toy in TOYS:
            with self.subTest(toy):
                report = self.verify("-m", self.models / f"{toy}-moe.gguf", "--tokens", "40", "--batch", "16")
                self.assertEqual(report["text"], "built-in")
                self.assertEqual(report["verdict"], "bit-identical")
                self.assertGreater(report["pairs_by_workers"], 0)
                self.assertEqual(report["pairs_local"], 0)

    def test_a_model_in_several_files_whichever_is_named(self):
        run(["llama-gguf-split", "--split", "--split-max-tensors", "30", AUSTEN, self.folder / "austen"])
        files = sorted(self.folder.glob("austen-0000*.gguf"))
        self.assertGreater(len(files), 1)
        for file in (files[0], files[-1]):
            report = self.verify("-m", file, "--tokens", "16")
            self.assertEqual((report["verdict"], report["pairs_by_workers"]), ("bit-identical", 256))

    # ---- a swarm that runs already

    def test_a_running_swarm(self):
        with Swarm(AUSTEN) as swarm:
            env = self.env(LINKCPP_TOKEN=swarm.token)
            with self.subTest("no workers"):
                self.assertIn("no workers", self.verify("-m", AUSTEN, "--swarm", swarm.url, env=env, status=1))
            swarm.add_worker("--experts", "0:8")
            swarm.wait(lambda: swarm.status()["slices_covered"] == 32, 60, "half of the slices")
            with self.subTest("half of the slices: the rest is computed here, and that is said"):
                report = self.verify("-m", AUSTEN, "--swarm", swarm.url, "--wait", "1", "--tokens", "64", env=env)
                self.assertEqual(report["verdict"], "bit-identical")
                self.assertGreater(report["pairs_local"], 0)
                self.assertGreater(report["pairs_by_workers"], 0)
                self.assertEqual(report["pairs_local"] + report["pairs_by_workers"], 1024)
            with self.subTest("half of the slices and nothing may be computed here"):
                said = self.verify("-m", AUSTEN, "--swarm", swarm.url, "--wait", "1", "--local", "deny", env=env, status=1)
                self.assertRegex(said, r"layer \d+, expert \d+: no worker holds it")
            with self.subTest("workers that can not reach us: everything was computed here, so nothing was verified"):
                report = self.verify("-m", AUSTEN, "--swarm", swarm.url, "--wait", "2", "--tokens", "16", status=1,
                                     env=self.env(LINKCPP_TOKEN=swarm.token, LINKCPP_DATA_ADVERTISE="127.0.0.1:1"))
                self.assertEqual(report["verdict"], "not-computed")
                self.assertEqual((report["pairs_by_workers"], report["pairs_local"]), (0, 256))
                self.assertIn("none of the 256 pairs", report["why"])
            swarm.add_worker("--experts", "8:16")
            swarm.wait_covered()
            with self.subTest("the whole of it, the token from a file"):
                token = self.folder / "token"
                token.write_text(swarm.token + "\n")
                report = self.verify("-m", AUSTEN, "--swarm", swarm.url, "--token-file", token)
                self.assertEqual((report["verdict"], report["pairs_local"]), ("bit-identical", 0))
                self.assertEqual(swarm.status()["backbones"], [], "it has detached")
            with self.subTest("bad input"):
                other = self.models / "qwen3moe-moe.gguf"
                self.assertIn("serves another model", self.verify("-m", other, "--swarm", swarm.url, env=env, status=1))
                self.assertIn("which token?", self.verify("-m", AUSTEN, "--swarm", swarm.url, status=2))
                wrong = self.env(LINKCPP_TOKEN="lk_" + "0" * 64)
                said = self.verify("-m", AUSTEN, "--swarm", swarm.url, env=wrong, status=1)
                self.assertIn("token", said)
                self.assertNotIn("0" * 64, said)
                away = swarm.url.rsplit(":", 1)[0] + ":1"
                self.assertIn("is `linkcpp serve` running there?", self.verify("-m", AUSTEN, "--swarm", away, env=env, status=1))

    def test_a_swarm_off_loopback_and_ports_that_are_not_ours(self):
        with Swarm(AUSTEN, listen="0.0.0.0") as swarm:
            self.assertRegex(swarm.url, "^https://")
            swarm.add_worker("--memory", "64M")
            swarm.wait_covered()
            env = self.env(LINKCPP_TOKEN=swarm.token)
            for more in ([], ["--data-listen", "0.0.0.0:0"]):
                report = self.verify("-m", AUSTEN, "--swarm", swarm.url, "--tokens", "32", *more, env=env)
                self.assertEqual((report["verdict"], report["pairs_local"]), ("bit-identical", 0))
            digit = "0" if swarm.url[-1] != "0" else "1"
            self.assertIn("certificate", self.verify("-m", AUSTEN, "--swarm", swarm.url[:-1] + digit, env=env, status=1))
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                said = self.verify("-m", AUSTEN, "--swarm", swarm.url, "--data-listen", f"127.0.0.1:{port}", env=env, status=1)
                self.assertIn(str(port), said)

    def swarm_with(self, *evil):
        """One worker, which holds everything and does that."""
        swarm = Swarm(AUSTEN, env=UNGUARDED)
        swarm.start()
        self.addCleanup(swarm.__exit__, None, None, None)
        argv = [BIN / "hostile_worker", swarm.url, "--cache", swarm.folder / "hostile-cache", *evil]
        worker = Process("hostile", argv, environment({"LINKCPP_TOKEN": swarm.token}), swarm.folder)
        swarm.workers.append(worker)
        swarm.wait_covered()
        return swarm, worker

    def test_a_worker_of_the_hosts_class_that_computes_wrong_is_seen(self):
        for evil in ("swap", "zero", "renormalise", "other-layer", "wrong-row", "nibble", "scale", "activation", "nan"):
            with self.subTest(evil):
                swarm, worker = self.swarm_with("--evil", evil, "--after", "30", "--share", "0.05")
                report = self.verify("-m", AUSTEN, "--swarm", swarm.url, env=self.env(LINKCPP_TOKEN=swarm.token, **UNGUARDED),
                                     status=1)
                self.assertIn("evil 1:", worker.text(), "the worker did nothing wrong: nothing was proved")
                self.assertEqual(report["verdict"], "outside-bound")
                self.assertFalse(report["bit_identical"])
                self.assertIsNotNone(report["first_differing_position"])

    def test_a_worker_of_another_class(self):
        with self.subTest("right"):
            swarm, _ = self.swarm_with("--evil", "none", "--class", OTHER_CLASS)
            report = self.verify("-m", AUSTEN, "--swarm", swarm.url, env=self.env(LINKCPP_TOKEN=swarm.token))
            self.assertEqual(report["verdict"], "bit-identical")
            self.assertFalse(report["workers"][0]["same_class"])
        for evil in ("swap", "zero", "renormalise", "other-layer", "wrong-row", "nibble", "scale", "activation", "nan"):
            with self.subTest(evil):
                swarm, worker = self.swarm_with("--evil", evil, "--class", OTHER_CLASS)
                report = self.verify("-m", AUSTEN, "--swarm", swarm.url, env=self.env(LINKCPP_TOKEN=swarm.token, **UNGUARDED),
                                     status=1)
                self.assertIn("evil 1:", worker.text())
                self.assertEqual(report["verdict"], "outside-bound")
                if report["not_finite"] == 0:  # a NaN may become a zero where the host rounds rows to 8 bits
                    self.assertGreater(report["nmse"], report["bound"]["nmse"])
                    print(f"{evil}: NMSE {report['nmse']:.2e}, bound {report['bound']['nmse']:.2e}", flush=True)

    def test_workers_that_really_round_differently(self):
        # Mesa's software Vulkan device: float32 and half rows where the host has Q8_K ones. The first run compiles shaders.
        report = self.verify("-m", AUSTEN, "--worker-device", "Vulkan0", env=self.env(GGML_VK_VISIBLE_DEVICES="0"))
        self.assertEqual(report["verdict"], "inside-bound")
        self.assertFalse(report["bit_identical"])
        self.assertEqual((report["pairs_by_workers"], report["pairs_local"]), (2048, 0))
        self.assertTrue(all("Vulkan" in w["kernel_class"] and not w["same_class"] for w in report["workers"]))
        self.assertGreater(report["nmse"], 0)
        self.assertLess(report["nmse"], report["bound"]["nmse"])
        self.assertLess(report["kl_mean"], report["bound"]["kl_mean"])
        self.assertGreater(report["top1_agreement"], 0.9)

    # ---- bad input, and ends

    def test_bad_input(self):
        self.assertIn("none.gguf", self.verify("-m", self.folder / "none.gguf", status=2))
        self.assertIn("dense model", self.verify("-m", self.models / "llama-dense.gguf", status=2))
        short = self.folder / "short.gguf"
        short.write_bytes(AUSTEN.read_bytes()[:100_000])
        self.assertIn("short.gguf", self.verify("-m", short, status=2))
        self.assertIn("context of 2048", self.verify("-m", AUSTEN, "--tokens", "2049", status=2))
        self.assertIn("context of 2048", self.verify("-m", AUSTEN, "--prompt-file", AUSTEN_TEXT, status=1))
        for path in (self.folder / "none.txt", self.folder):
            self.assertIn(str(path), self.verify("-m", AUSTEN, "--prompt-file", path, status=2))
        empty = self.folder / "empty.txt"
        empty.touch()
        self.assertIn("no tokens", self.verify("-m", AUSTEN, "--prompt-file", empty, status=1))
        self.assertIn("no tokens", self.verify("-m", AUSTEN, "--text", "", status=2))
        self.assertIn("no device called", self.verify("-m", AUSTEN, "--worker-device", "Abacus7", status=2))
        self.assertIn("more than", self.verify("-m", self.models / "qwen3moe-moe.gguf", "--workers", "64", status=1))
        self.assertIn("TMPDIR", self.verify("-m", AUSTEN, status=1, env=environment({"TMPDIR": str(self.folder / "none")})))
        with self.subTest("without its own programs"):
            alone = self.folder / "bin/linkcpp"
            alone.parent.mkdir()
            shutil.copy(BIN / "linkcpp", alone)
            said = run([alone, "verify", "decode", "-m", AUSTEN], env=self.env(), check=False)
            self.assertEqual(said.returncode, 1)
            self.assertIn("linkcpp-decode is not there", said.stdout)
        for args in (["--tokens", "0"], ["--tokens", "-3"], ["--workers", "0"], ["--workers", "2", "--swarm", "http://x"],
                     ["--token-file", "x"], ["--text", "a", "--prompt-file", "b"], ["--batch", "0"]):
            self.verify("-m", AUSTEN, *args, status=2)
        self.verify(status=2)

    def start(self, *args):
        return subprocess.Popen([str(a) for a in (BIN / "linkcpp", "verify", "decode", "-m", AUSTEN, *args)], env=self.env(),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)

    def wait_for_child(self, word, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for pid, line in self.children():
                if word in line:
                    return pid
            time.sleep(0.002)
        self.fail(f"no child with '{word}'")

    def test_ctrl_c_cleans_up(self):
        for word in ("alone.logits", "linkcpp-expert-worker", "with workers.logits"):
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(word=word, signal=number):
                    command = self.start("--tokens", "1024")
                    self.wait_for_child(word)
                    command.send_signal(number)
                    said, _ = command.communicate(timeout=60)
                    self.assertEqual(command.returncode, 1, said)
                    self.assertIn("interrupted", said)
                    self.assert_clean()

    def test_one_of_each_is_one(self):
        done = run([BIN / "linkcpp", "verify", "decode", "-m", AUSTEN, "--workers", "1", "--tokens", "1"], env=self.env())
        for words in (": 1 token (", "on 1 worker,", "bit-identical at 1 position\n", "at 1 of 1 position ("):
            self.assertIn(words, done.stdout)
        self.assertNotRegex(done.stdout, r"\b1 (tokens|workers|positions|pairs)\b")

    def test_children_that_die(self):
        for word in ("alone.logits", "linkcpp-expert-worker", "with workers.logits"):
            with self.subTest(word):
                command = self.start("--tokens", "1024")
                os.kill(self.wait_for_child(word), signal.SIGKILL)
                said, _ = command.communicate(timeout=60)
                self.assertEqual(command.returncode, 1, said)
                self.assertIn("by signal 9", said)
                self.assert_clean()

    def test_the_children_of_a_command_that_is_killed_end_too(self):
        command = self.start("--tokens", "1024")
        self.wait_for_child("with workers.logits")
        command.kill()
        command.communicate(timeout=60)
        deadline = time.monotonic() + 20
        while self.children() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(self.children(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
