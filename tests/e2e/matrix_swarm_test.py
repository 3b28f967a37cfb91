#!/usr/bin/env python3
"""`linkcpp matrix --swarm`: workers of a running swarm as rows beside this machine's backends: right, wrong, of half of
the experts, absent, refusing, hanging."""

import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest
import xml.dom.minidom

from swarm import AUSTEN, BIN, Process, Swarm, environment, run

VARIANTS = pathlib.Path("/usr/lib/x86_64-linux-gnu/ggml/backends0")
ARCHS = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests/test-llama-archs"
UNGUARDED = {"LINKCPP_CANARIES": "off", "LINKCPP_SPOT_CHECKS": "0"}
PASSAGES = ("by_row", "shuffled", "one_batch")


def variant(name):
    return ["--backend", VARIANTS / f"libggml-cpu-{name}.so"]


class MatrixSwarm(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="linkcpp-ms-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def matrix(self, swarm, *args, status=0, model=AUSTEN, backends="x64,numpy"):
        """(standard output, standard error)"""
        argv = [BIN / "linkcpp", "matrix", "-m", model, "--swarm", swarm.url, "--backends", backends, *args]
        done = subprocess.run([str(a) for a in argv], env=environment({"LINKCPP_TOKEN": swarm.token}),
                              capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def report(self, swarm, *args, **more):
        return json.loads(self.matrix(swarm, "--json", *args, **more)[0])

    @staticmethod
    def row(report, name):
        return next(b for b in report["backends"] if b["id"] == name)

    @staticmethod
    def cells(report):
        return {cell["backend"]: cell for cell in report["groups"][0]["oracle"]}

    @staticmethod
    def between(report, a, b):
        return next(c for c in report["groups"][0]["between"] if {c["a"], c["b"]} == {a, b})

    def hostile(self, swarm, *evil, name="hostile"):
        argv = [BIN / "hostile_worker", swarm.url, "--name", name, "--cache", swarm.folder / f"cache-{name}", *evil]
        swarm.workers.append(Process(name, argv, environment({"LINKCPP_TOKEN": swarm.token}), swarm.folder))

    def ready(self, swarm, name, slices):
        def there():
            return any(n["name"] == name and n["slices_ready"] == slices for n in swarm.status()["nodes"])
        swarm.wait(there, 60, f"the slices of {name}")

    def test_two_workers_of_different_kernel_classes(self):
        with Swarm(AUSTEN) as swarm:
            swarm.add_worker("--experts", "0:16", *variant("x64"), name="plain")
            swarm.add_worker("--experts", "0:16", *variant("haswell"), name="fast")
            self.ready(swarm, "plain", 64)
            self.ready(swarm, "fast", 64)
            svg = self.folder / "m.svg"
            report = self.report(swarm, "--rows", 12, "--svg", svg)
            self.assertTrue(report["inside"])
            self.assertIn("CPU/x64/", self.row(report, "plain")["kernel_class"])
            self.assertIn("CPU/haswell/", self.row(report, "fast")["kernel_class"])
            for name in ("plain", "fast"):
                row, cell = self.row(report, name), self.cells(report)[name]
                self.assertEqual((row["state"], row["name"]), ("ran", f"worker {name}"))
                self.assertIn(row["node_id"], [n["node_id"] for n in swarm.status()["nodes"]])
                for passage in PASSAGES:
                    self.assertTrue(cell[passage]["inside"], (name, passage))
                    self.assertEqual(cell[passage]["pairs"], report["groups"][0]["pairs"])
                    self.assertGreaterEqual(cell[passage]["cosine"], 0.9997)
                self.assertTrue(cell["itself"]["bit_identical"], "any order and company, the same bits")
            with self.subTest("the same kernel class as a row of this machine: the same bits"):
                same = self.between(report, "x64", "plain")
                self.assertTrue(same["same_class"] and same["figures"]["bit_identical"])
            with self.subTest("another class: near, and not the same bits"):
                other = self.between(report, "plain", "fast")
                self.assertFalse(other["same_class"] or other["figures"]["bit_identical"])
                self.assertGreaterEqual(other["figures"]["cosine"], 0.99999)
                self.assertGreaterEqual(other["figures"]["combined_cosine"], 0.9997)
            with self.subTest("in the picture"):
                text = " ".join(n.firstChild.data for n in xml.dom.minidom.parse(str(svg)).getElementsByTagName("text"))
                for words in ("worker plain", "worker fast", self.row(report, "fast")["kernel_class"], "share of bound", "NMSE"):
                    self.assertIn(words, text)
            with self.subTest("in the table, one of them chosen by name"):
                out, _ = self.matrix(swarm, "--rows", 2, "--node", "plain")
                self.assertRegex(out, r"worker plain +[\d.]+ s  ggml-.*/CPU/x64/")
                self.assertRegex(out, r"3 worker plain +Q8_K .* inside\n")
                self.assertRegex(out, r"share of bound +of likely")
                self.assertNotIn("worker fast", out)
                self.assertRegex(out, r"\n +1 +=.* =\n", "x64 and the worker have the same bits")
            self.assertEqual(swarm.status()["backbones"], [], "it has detached")

    def test_workers_that_hold_halves_and_one_that_holds_a_corner(self):
        with Swarm(AUSTEN) as swarm:
            swarm.add_worker("--experts", "0:8", name="low")
            swarm.add_worker("--experts", "8:16", *variant("x64"), name="high")
            self.ready(swarm, "low", 32)
            self.ready(swarm, "high", 32)
            report = self.report(swarm, "--rows", 12)
            cells, group = self.cells(report), report["groups"][0]
            for passage in PASSAGES:
                self.assertEqual(sum(cells[n][passage]["pairs"] for n in ("low", "high")), group["pairs"])
                self.assertTrue(all(cells[n][passage]["inside"] and cells[n][passage]["pairs"] > 0 for n in ("low", "high")))
            apart = self.between(report, "low", "high")["figures"]
            self.assertEqual((apart["pairs"], apart["bit_identical"]), (0, False), "no pair is computed by both")
            self.assertGreaterEqual(apart["combined_cosine"], 0.9997, "but the router's sums are, together")
            self.assertTrue(self.between(report, "x64", "high")["figures"]["bit_identical"])
            self.assertRegex(self.matrix(swarm, "--rows", 2)[0], r"worker low .* inside, of \d+ pairs\n")

            swarm.add_worker("--layers", "1", "--experts", "7", name="corner")
            self.ready(swarm, "corner", 1)
            with self.subTest("of whom nothing would be asked by the router's choice alone"):
                report = self.report(swarm, "--rows", 1, "--node", "corner", "--layer", "1")
                self.assertEqual(self.cells(report)["corner"]["by_row"]["pairs"], 1)
            with self.subTest("of whom nothing is asked"):
                out, error = self.matrix(swarm, "--rows", 1, "--layer", "0", "--experts", "7")
                self.assertRegex(out, r"worker corner +skipped: it holds none of the experts .*; it holds layer 1: 7\n")
                self.matrix(swarm, "--rows", 1, "--layer", "0", "--experts", "7", "--require", "corner", status=1)

    def test_who_is_not_there_is_a_line(self):
        with Swarm(AUSTEN) as swarm:
            out, _ = self.matrix(swarm, "--rows", 1)
            self.assertIn("every backend that ran is inside", out, "a swarm without workers")
            swarm.add_worker(name="there")
            swarm.wait_covered()
            out, error = self.matrix(swarm, "--rows", 1, "--node", "ghost", "there", status=1)
            self.assertRegex(out, "worker ghost +skipped: no worker of the swarm is called that; there are: there")
            self.assertRegex(out, r"worker there .* inside\n")
            self.assertIn("ghost is required and did not run", error)
            with self.subTest("a worker that hangs"):
                hanging = swarm.add_worker(name="hanging")
                self.ready(swarm, "hanging", 64)
                hanging.popen.send_signal(signal.SIGSTOP)
                try:
                    out, _ = self.matrix(swarm, "--rows", 1, status=1)
                finally:
                    hanging.popen.send_signal(signal.SIGCONT)
                self.assertRegex(out, "worker hanging +failed: .*has not dialled in")
                self.assertRegex(out, r"worker there .* inside\n")

    def test_wrong_numbers_are_outside_and_the_exit_status_says_so(self):
        for evil in ("scale", "nan", "zero"):
            with self.subTest(evil), Swarm(AUSTEN, env=UNGUARDED) as swarm:
                swarm.add_worker(name="honest")
                self.hostile(swarm, "--evil", evil)
                self.ready(swarm, "honest", 64)
                self.ready(swarm, "hostile", 64)
                report = self.report(swarm, "--rows", 4, status=1)
                cells = self.cells(report)
                self.assertTrue(cells["honest"]["inside"])
                self.assertFalse(cells["hostile"]["inside"] or report["inside"])
                claimed = self.between(report, "honest", "hostile")
                self.assertTrue(claimed["same_class"] and claimed["contradiction"], "the class of the honest one, other bits")
                out, _ = self.matrix(swarm, "--rows", 4, status=1)
                self.assertRegex(out, r"worker hostile .* OUTSIDE\n")
                self.assertRegex(out, r"worker honest .* inside\n")
                self.assertIn("are of one kernel class and DIFFER", out)
                self.assertIn("NOT every backend", out)

    def test_frames_that_break_the_rules_are_a_failed_row(self):
        for evil, words in (("drop", "rows of 256 values"), ("stale", "which is not outstanding")):
            with self.subTest(evil), Swarm(AUSTEN, env=UNGUARDED) as swarm:
                self.hostile(swarm, "--evil", evil)
                self.ready(swarm, "hostile", 64)
                out, error = self.matrix(swarm, "--rows", 4, status=1)
                self.assertRegex(out, f"worker hostile +failed: .*{words}")
                self.assertRegex(out, r"x86-64 baseline .* inside\n", error)

    def test_wrong_usage_and_another_swarm(self):
        with Swarm(AUSTEN) as swarm:
            toys = self.folder / "toys"
            toys.mkdir()
            run([ARCHS, "-o", toys, "-s", "1"])
            _, error = self.matrix(swarm, "--experts", "0", model=toys / "qwen3moe-moe.gguf", status=1)
            self.assertIn("serves another model", error)
            for args, words in ((["--swarm", swarm.url], "model"), (["-m", AUSTEN, "--node", "x"], "--swarm"),
                                (["-m", AUSTEN, "-m", AUSTEN, "--swarm", swarm.url], "--swarm needs -m, once"),
                                (["-m", AUSTEN, "--swarm", swarm.url], "which token?")):
                done = run([BIN / "linkcpp", "matrix", *args], check=False)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(words, done.stdout)
            env = environment({"LINKCPP_TOKEN": "lk_wrong"})
            done = run([BIN / "linkcpp", "matrix", "-m", AUSTEN, "--swarm", swarm.url], env=env, check=False)
            self.assertEqual(done.returncode, 1, done.stdout)
            done = run([BIN / "linkcpp", "matrix", "-m", AUSTEN, "--swarm", "http://127.0.0.1:1"], env=env, check=False)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("is `linkcpp serve` running there?", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
