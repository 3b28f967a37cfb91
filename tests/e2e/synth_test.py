#!/usr/bin/env python3
"""Made models in stock tools: llama.cpp loads and runs them, gguf-py reads them, the quantiser agrees about every type.

usage: synth_test.py PATH/TO/linkcpp [unittest arguments]
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import numpy
from gguf import GGUFReader

LINKCPP = "linkcpp"
TEXT = Path(__file__).resolve().parents[2] / "assets" / "austen-moe-val.txt"


def run(*command, status=0, timeout=280):
    """Runs a command; returns its standard output, or fails with what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, timeout=timeout)
    out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    if done.returncode != status:
        raise AssertionError(f"{command} ended with {done.returncode}, not {status}:\n{out[-1000:]}\n{err[-2000:]}")
    return out if status == 0 else err


def known_models():
    return [row["name"] for row in json.loads(run(LINKCPP, "synth", "--list", "--json"))]


class Synth(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="synth_test."))
        self.addCleanup(shutil.rmtree, self.folder)

    def synth(self, like, *options, name="m.gguf"):
        """Makes a model; returns its path and the report."""
        path = self.folder / name
        return path, json.loads(run(LINKCPP, "synth", "--like", like, "-o", path, "--force", "--json", *options))

    def generate(self, path, *options):
        return run("llama-completion", "-m", path, "-p", "It is a truth", "-n", "6", "--temp", "0", "-no-cnv", "-t", "1",
                   "-c", "128", *options)


class Running(Synth):
    def test_the_reference_shape_generates(self):
        path, report = self.synth("qwen3.5-122b", "--layers", "4", "--experts", "8", "--vocab", "512")
        reader = GGUFReader(path)
        self.assertEqual(reader.fields["general.architecture"].contents(), "qwen35moe")
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.assertEqual(len(tensors), report["tensors"])
        self.assertEqual(list(tensors["blk.0.ffn_gate_exps.weight"].shape), [3072, 1024, 8])
        self.assertEqual(list(tensors["blk.3.ffn_down_exps.weight"].shape), [1024, 3072, 8])
        self.assertEqual(tensors["blk.3.ffn_down_exps.weight"].tensor_type.name, "Q6_K")
        self.assertEqual(tensors["blk.1.ffn_down_exps.weight"].tensor_type.name, "Q4_K")
        self.assertIn("blk.2.ssm_a", tensors)
        self.assertIn("blk.3.attn_q_norm.weight", tensors)
        self.assertEqual(sum(int(tensor.n_bytes) for tensor in reader.tensors if "_exps." in tensor.name),
                         report["expert_bytes"])
        text = self.generate(path)
        self.assertIn("It is a truth", text)
        self.assertGreater(len(text.strip()), len("It is a truth"))

    def test_other_architectures_generate(self):
        for like, options in {
            "qwen3-30b": ["--type", "Q4_0"],
            "gpt-oss-20b": ["--type", "MXFP4_MOE"],
            "granite-1b-a400m": ["--type", "Q8_0"],
            "olmoe-1b-7b": ["--type", "F16"],
            # Stock llama.cpp 0.7 aborts on quantised latent attention in an AMX buffer: docs/synth.md.
            "deepseek-v2-lite": [],
        }.items():
            with self.subTest(like):
                path, _ = self.synth(like, "--layers", "2", "--experts", "12", "--vocab", "512", *options)
                self.assertIn("It is a truth", self.generate(path, "--no-repack"))

    def test_activations_stay_near_one_and_every_expert_gets_work(self):
        """llama-imatrix counts, per matrix, the rows that came in and the sum of their squares."""
        path, _ = self.synth("qwen3.5-35b", "--layers", "4", "--experts", "32", "--vocab", "512")
        out = self.folder / "imatrix.gguf"
        run("llama-imatrix", "-m", path, "-f", TEXT, "--chunks", "1", "-c", "128", "-b", "128", "-t", "1", "-o", out)
        data = {tensor.name: numpy.array(tensor.data, dtype=float) for tensor in GGUFReader(out).tensors}
        n_stacks = 0
        for name in data:
            if not name.endswith(".in_sum2"):
                continue
            counts = data[name.replace(".in_sum2", ".counts")].reshape(-1)
            squares = data[name].reshape(len(counts), -1)
            rms = (squares.sum() / (counts.sum() * squares.shape[1])) ** 0.5
            with self.subTest(name, rms=rms, counts=counts):
                self.assertTrue(numpy.isfinite(squares).all())
                self.assertGreater(rms, 0.05)
                self.assertLess(rms, 5)
                if len(counts) > 1:
                    # 128 tokens × 8 of 32 experts: 32 rows each if all were equally liked, 128 if one were always taken.
                    n_stacks += 1
                    self.assertEqual(counts.sum(), 128 * 8)
                    self.assertGreaterEqual((counts > 0).sum(), 28)
                    self.assertLess(counts.max(), 110)
        self.assertEqual(n_stacks, 3 * 4)


class Types(Synth):
    def compare(self, like, mixes, *options):
        half, _ = self.synth(like, "--skeleton", "--vocab", "512", "--type", "F16", *options, name="f16.gguf")
        for mix in mixes:
            with self.subTest(like, mix=mix):
                path, _ = self.synth(like, "--skeleton", "--vocab", "512", "--type", mix, *options)
                ours = {tensor.name: tensor.tensor_type.name.lower() for tensor in GGUFReader(path).tensors}
                done = subprocess.run(["llama-quantize", "--dry-run", half, mix], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr[-500:])
                theirs = {}
                # "[ 4/ 879] NAME - [ 3072, … ], type = f16, size = 48.00 MiB -> 13.50 MiB (q4_K)"
                for line in (done.stdout + done.stderr).splitlines():
                    if found := re.search(r"\[ *\d+/ *\d+\] +(\S+) .*type = +(\w+), size.*?(?:\((\w+)\))?$", line):
                        theirs[found[1]] = (found[3] or found[2]).lower()
                self.assertEqual(ours, theirs)

    def test_the_quantiser_chooses_the_same_for_every_model(self):
        known = known_models()
        self.assertGreaterEqual(len(known), 25)
        for like in known:
            self.compare(like, ["Q4_K_M"])

    def test_the_quantiser_chooses_the_same_for_other_types(self):
        self.compare("qwen3.5-122b", ["Q8_0", "MXFP4_MOE", "Q4_K_S", "Q5_K_M", "Q3_K_M", "Q2_K", "IQ4_XS", "Q4_0"])
        self.compare("gpt-oss-120b", ["MXFP4_MOE", "Q4_K_M"], "--layers", "6", "--experts", "8")


class Skeletons(Synth):
    def test_the_reference_skeleton(self):
        path, report = self.synth("qwen3.5-122b", "--skeleton")
        self.assertEqual(report["tensors"], 879)
        self.assertEqual(report["parameters"], 122_111_526_912)
        self.assertEqual(report["expert_bytes"], 70_212_648_960)
        self.assertEqual(report["other_bytes"], 3_989_090_304)
        self.assertEqual(path.stat().st_size, report["file_bytes"])
        self.assertLess(path.stat().st_blocks * 512, 50_000_000)

        reader = GGUFReader(path)
        self.assertEqual(len(reader.tensors), 879)
        self.assertEqual(sum(int(tensor.n_elements) for tensor in reader.tensors), 122_111_526_912)
        self.assertEqual(sum(int(tensor.n_bytes) for tensor in reader.tensors), 70_212_648_960 + 3_989_090_304)
        last = max(int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors)
        self.assertLessEqual(last, path.stat().st_size)
        self.assertEqual(len(reader.fields["tokenizer.ggml.tokens"].data), 248_320)

        split = run("llama-gguf-split", "--split", "--split-max-size", "20G", "--dry-run", path, self.folder / "split")
        self.assertIn("n_split: 4", split)

    def test_llama_cpp_loads_the_skeleton_of_every_model(self):
        """llama-fit-params makes model and graphs from the header without reading weights, and says what they take."""
        for like in known_models():
            with self.subTest(like):
                vocabulary = [] if like == "qwen3.5-122b" else ["--vocab", "512"]
                path, report = self.synth(like, "--skeleton", *vocabulary)
                out = run("llama-fit-params", "-m", path, "-c", "4096", "--no-repack", "-fitp", "on", "-ngl", "0")
                # "Host 385750 274 410": MiB of weights, context and compute buffers, a line per device
                host_mib = int(re.search(r"^Host (\d+)", out, re.MULTILINE)[1])
                # Prediction layers stand behind the last layer; llama.cpp leaves them in the file.
                behind = f"blk.{report['layers']}."
                skipped = sum(int(t.n_bytes) for t in GGUFReader(path).tensors if t.name.startswith(behind)) \
                    if like.startswith("glm") else 0
                wanted = report["expert_bytes"] + report["other_bytes"] - skipped
                self.assertAlmostEqual(host_mib, wanted / 2**20, delta=2)

    def test_a_split_skeleton_is_a_split_model(self):
        path, _ = self.synth("granite-1b-a400m", "--skeleton", "--layers", "2")
        run("llama-gguf-split", "--split", "--split-max-tensors", "12", path, self.folder / "split")
        parts = sorted(self.folder.glob("split-*.gguf"))
        self.assertGreater(len(parts), 1)
        self.assertEqual(sum(len(GGUFReader(part).tensors) for part in parts), len(GGUFReader(path).tensors))


class Files(Synth):
    def test_the_same_seed_gives_the_same_file(self):
        digests = []
        for seed, threads in ((1, 1), (1, 4), (2, 2)):
            path, _ = self.synth("granite-1b-a400m", "--layers", "1", "--experts", "8", "--seed", str(seed), "--threads",
                                 str(threads))
            digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])

    def test_ctrl_c_leaves_nothing(self):
        path = self.folder / "m.gguf"
        process = subprocess.Popen([LINKCPP, "synth", "--like", "qwen3.5-122b", "--layers", "6", "-o", path],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while not Path(f"{path}.part").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertIn("stopped", err)
        self.assertEqual(os.listdir(self.folder), [])

    def test_bad_input_gets_one_clear_line(self):
        out = self.folder / "m.gguf"
        for options, status, part in (
            (["--like", "gpt-5", "-o", out], 2, "qwen3.5-122b"),
            (["--like", "qwen3.5-122b", "--layers", "0", "-o", out], 2, "0 layers"),
            (["--like", "qwen3.5-122b", "--layers", "-1", "-o", out], 2, "--layers"),
            (["--like", "qwen3.5-122b", "--experts", "99999", "-o", out], 2, "99999 experts"),
            (["--like", "qwen3.5-122b", "--type", "Q7", "-o", out], 2, "Q4_K_M"),
            (["--like", "qwen3.5-122b"], 2, "-o"),
            (["--like", "qwen3.5-122b", "-o", "/no/such/folder/m.gguf"], 1, "/no/such/folder"),
            (["--like", "kimi-k2", "--type", "F32", "--layers", "61", "-o", out], 1, "GB free"),
        ):
            with self.subTest(options):
                err = run(LINKCPP, "synth", *options, status=status)
                self.assertIn(part, err)
                self.assertFalse(out.exists())
                if "--layers" not in part:  # the option parser adds a line that points to --help
                    self.assertEqual(len(err.strip().splitlines()), 1, err)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        LINKCPP = sys.argv.pop(1)
    unittest.main(verbosity=2)
