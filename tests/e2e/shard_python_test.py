#!/usr/bin/env python3
"""Shards against their models, slab by slab, as Python's gguf package reads both.

usage: shard_python_test.py PATH/TO/linkcpp [unittest arguments]

The models are the trained one in assets/, split by llama-gguf-split, and toys of other architectures written by
test-llama-archs: biases (gpt-oss), scales (qwen3moe), merged gate and up (qwen3next), many experts (deepseek2).
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from gguf import GGUFReader

LINKCPP = "linkcpp"
ASSETS = Path(__file__).resolve().parents[2] / "assets"
ARCHS = [Path("/usr/libexec") / (os.uname().machine + "-linux-gnu") / "llama.cpp-tests/test-llama-archs",
         Path("/usr/libexec/llama.cpp-tests/test-llama-archs")]
EXPERT_TENSOR = re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.(weight|bias|scale|input_scale)$")


def run(*command, status=0, **options):
    """Runs a command; returns what it printed, or fails with what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, timeout=280, **options)
    out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    if done.returncode != status:
        raise AssertionError(f"{command} ended with {done.returncode}, not {status}:\n{out[-1000:]}\n{err[-2000:]}")
    return out if status == 0 else err


def expert_tensors(*paths):
    """The expert tensors of a model, by name: (tensor, layer, kind)."""
    found = {}
    for path in paths:
        for tensor in GGUFReader(path).tensors:
            match = EXPERT_TENSOR.match(tensor.name)
            if match:
                found[tensor.name] = (tensor, int(match.group(1)), match.group(3))
    return found


def key(reader, name):
    return reader.fields[name].contents()


class ShardTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="shard_test."))
        self.addCleanup(shutil.rmtree, self.folder)
        self.cache = self.folder / "cache"

    def model(self):
        path = self.folder / "austen.gguf"
        shutil.copyfile(ASSETS / "austen-moe-q4km.gguf", path)
        return path

    def toy(self, arch):
        tool = next((path for path in ARCHS if path.exists()), None)
        if tool is None:
            self.skipTest("test-llama-archs is not installed")
        run(tool, "-a", f"^{arch}$", "-s", "1", "-o", self.folder)
        return self.folder / f"{arch}-moe.gguf"

    def cut(self, model, layers, experts, status=0, out="shard.gguf", **options):
        path = self.folder / out
        said = run(LINKCPP, "shard", "-m", model, "--layers", layers, "--experts", experts, "-o", path, "--json",
                   "--cache-dir", self.cache, status=status, **options)
        return (path, json.loads(said)) if status == 0 else said

    def compare(self, shard, paths, layers, experts):
        """The shard holds exactly these experts of these layers, byte for byte, and nothing else."""
        model = expert_tensors(*paths)
        reader = GGUFReader(shard)
        self.assertEqual(list(key(reader, "linkcpp.layers")), layers)
        self.assertEqual(list(key(reader, "linkcpp.experts")), experts)
        expected = {name for name, (_, layer, _) in model.items() if layer in layers}
        self.assertEqual({tensor.name for tensor in reader.tensors}, expected)
        self.assertTrue(expected)
        n_slabs = 0
        for tensor in reader.tensors:
            original, _, kind = model[tensor.name]
            n_experts = int(original.shape[-1])
            self.assertEqual(tensor.tensor_type, original.tensor_type)
            self.assertEqual(list(tensor.shape)[:-1], list(original.shape)[:-1])
            self.assertEqual(int(tensor.shape[-1]), len(experts))
            self.assertEqual(len(tensor.shape), {"weight": 3, "bias": 2}.get(kind, 1))
            ours, theirs = bytes(tensor.data.tobytes()), bytes(original.data.tobytes())
            slab = len(theirs) // n_experts
            self.assertEqual(len(ours), slab * len(experts))
            hashes = key(reader, "linkcpp.slab_hashes." + tensor.name)
            self.assertEqual(len(hashes), len(experts))
            for local, expert in enumerate(experts):
                self.assertEqual(ours[local * slab:(local + 1) * slab], theirs[expert * slab:(expert + 1) * slab],
                                 f"{tensor.name}, expert {expert}")
                n_slabs += 1
        # Equal slabs have equal hashes; the hash function itself is the unit tests' business.
        self.assertGreater(n_slabs, 0)
        return n_slabs


class Cutting(ShardTest):
    def test_ranges_of_the_trained_model(self):
        model = self.model()
        for layers, experts, expected_layers, expected_experts in [
                ("0:2", "0:4,15", [0, 1], [0, 1, 2, 3, 15]), ("3", "7", [3], [7]), ("all", "all", [0, 1, 2, 3], list(range(16))),
                ("2,0", "9,3,3:5", [0, 2], [3, 4, 9])]:
            with self.subTest(layers=layers, experts=experts):
                shard, report = self.cut(model, layers, experts)
                self.assertEqual(report["slices"], len(expected_layers) * len(expected_experts))
                self.assertEqual(report["size_bytes"], shard.stat().st_size)
                self.compare(shard, [model], expected_layers, expected_experts)
        self.assertTrue((self.folder / "austen.gguf.linkcpp-manifest").exists())

    def test_keys_say_what_it_was_cut_from(self):
        model = self.model()
        shard, report = self.cut(model, "1", "2:4")
        manifest = json.loads(run(LINKCPP, "manifest", "-m", model, "--slabs", "--json", "--cache-dir", self.cache))
        reader = GGUFReader(shard)
        self.assertEqual(key(reader, "general.architecture"), key(GGUFReader(model), "general.architecture"))
        self.assertEqual(key(reader, "qwen3moe.block_count"), 4)
        self.assertEqual(key(reader, "qwen3moe.expert_count"), 16)
        self.assertEqual(key(reader, "linkcpp.format"), 1)
        self.assertEqual(key(reader, "linkcpp.model_id"), manifest["model_id"])
        self.assertEqual(key(reader, "linkcpp.header_hash"), manifest["header_hash"])
        self.assertEqual(report["model_id"], manifest["model_id"])
        for tensor in manifest["layers"][1]["tensors"]:
            self.assertEqual(key(reader, "linkcpp.slab_hashes." + tensor["name"]), tensor["slab_hashes"][2:4])

    def test_a_split_model(self):
        model = self.model()
        if shutil.which("llama-gguf-split") is None:
            self.skipTest("llama-gguf-split is not installed")
        run("llama-gguf-split", "--split", "--split-max-tensors", "7", model, self.folder / "split")
        splits = sorted(self.folder.glob("split-*-of-*.gguf"))
        self.assertGreater(len(splits), 3)
        shard, _ = self.cut(splits[0], "all", "0:3,8")
        self.compare(shard, splits, [0, 1, 2, 3], [0, 1, 2, 8])
        whole, _ = self.cut(model, "all", "0:3,8", out="whole.gguf")
        ours, theirs = expert_tensors(shard), expert_tensors(whole)
        for name in theirs:
            self.assertEqual(ours[name][0].data.tobytes(), theirs[name][0].data.tobytes(), name)
        os.remove(splits[2])
        self.assertIn(f"split 3 of {len(splits)}", self.cut(splits[0], "all", "0", status=2))

    def test_other_architectures(self):
        for arch, kinds, experts in [("gpt-oss", {"weight", "bias", "scale", "input_scale"}, [1]),
                                     ("qwen3moe", {"weight", "scale", "input_scale"}, [0]),
                                     ("qwen3next", {"weight", "scale", "input_scale"}, [1]),
                                     ("deepseek2", {"weight", "scale", "input_scale"}, [0, 1, 2, 40, 63])]:
            with self.subTest(arch=arch):
                model = self.toy(arch)
                tensors = expert_tensors(model)
                self.assertEqual({kind for _, _, kind in tensors.values()}, kinds)
                self.assertEqual(any("gate_up" in name for name in tensors), arch in ("qwen3next", "deepseek2"))
                layers = sorted({layer for _, layer, _ in tensors.values()})
                shard, _ = self.cut(model, "all", ",".join(map(str, experts)))
                n_slabs = self.compare(shard, [model], layers, experts)
                self.assertEqual(n_slabs, len(tensors) * len(experts))
                run(LINKCPP, "shard", "--verify", shard)

    def test_ggml_reads_it(self):
        """llama-gguf-split opens a file with ggml's reader, which checks every offset."""
        if shutil.which("llama-gguf-split") is None:
            self.skipTest("llama-gguf-split is not installed")
        shard, _ = self.cut(self.model(), "0:3", "1,5,7:9")
        run("llama-gguf-split", "--split", "--split-max-tensors", "4", shard, self.folder / "again")
        parts = sorted(self.folder.glob("again-*.gguf"))
        self.assertEqual(len(parts), 3)
        ours, theirs = expert_tensors(*parts), expert_tensors(shard)
        self.assertEqual(ours.keys(), theirs.keys())
        for name in theirs:
            self.assertEqual(ours[name][0].data.tobytes(), theirs[name][0].data.tobytes(), name)


class BadInput(ShardTest):
    def test_numbers_that_do_not_exist(self):
        model = self.model()
        self.assertIn("layer 4 is out of range: 0 to 3 exist", self.cut(model, "2:5", "0", status=1))
        self.assertIn("expert 16 is out of range: 0 to 15 exist", self.cut(model, "0", "12:20", status=1))
        self.assertFalse((self.folder / "shard.gguf").exists())

    def test_a_layer_without_experts(self):
        model = self.toy("deepseek2")  # its first layers are dense
        self.assertIn("layer 0", self.cut(model, "0", "0", status=1))

    def test_wrong_usage(self):
        model = self.model()
        for layers, experts in [("0-2", "0"), ("0", "a"), ("0", "5:5"), ("0,", "1"), ("0", "-1")]:
            self.cut(model, layers, experts, status=2)
        run(LINKCPP, "shard", "-m", model, status=2)
        run(LINKCPP, "shard", "--no-such-option", status=2)
        run(LINKCPP, "manifest", status=2)

    def test_a_dense_model(self):
        self.toy("llama")
        for command in (["shard", "-o", self.folder / "x.gguf"], ["manifest"]):
            said = run(LINKCPP, *command, "-m", self.folder / "llama-dense.gguf", status=2)
            self.assertIn("llama-dense.gguf is a dense model: it has no routed experts", said)

    def test_a_truncated_model(self):
        model = self.model()
        os.truncate(model, model.stat().st_size - 1000)
        self.assertIn("past the end of the file", self.cut(model, "0", "0", status=2))

    def test_the_model_is_never_overwritten(self):
        model = self.model()
        before = model.read_bytes()
        os.symlink(model, self.folder / "link.gguf")
        os.link(model, self.folder / "hard.gguf")
        for name in (model.name, "link.gguf", "hard.gguf"):
            self.assertIn("is the model itself", self.cut(model, "0", "0", status=1, out=name))
        self.assertEqual(model.read_bytes(), before)

    def test_a_flipped_byte_is_found(self):
        shard, _ = self.cut(self.model(), "0:2", "0:2")
        self.assertIn("intact", run(LINKCPP, "shard", "--verify", shard))
        tensor = expert_tensors(shard)["blk.1.ffn_up_exps.weight"][0]
        data = bytearray(shard.read_bytes())
        data[int(tensor.data_offset) + 5] ^= 1
        shard.write_bytes(data)
        said = run(LINKCPP, "shard", "--verify", shard, status=1)
        self.assertIn("'blk.1.ffn_up_exps.weight' of expert 0 is damaged", said)

    def test_no_part_is_left_when_writing_fails(self):
        model = self.model()
        self.cut(model, "0", "0")  # the manifest is there now

        def small_files_only():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        said = self.cut(model, "all", "all", status=1, out="large.gguf", preexec_fn=small_files_only)
        self.assertIn("large.gguf.part: File too large", said)
        self.assertEqual(list(self.folder.glob("large*")), [])

    def test_a_full_disk(self):
        model, disk = self.model(), self.folder / "disk"
        disk.mkdir()
        mount = f"mount -t tmpfs -o size=1m none {disk}"
        if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode != 0:
            self.skipTest("cannot mount a small disk here")
        command = (f"{mount} && {{ {LINKCPP} shard -m {model} -o {disk}/x.gguf --cache-dir {self.cache}; echo status $?; "
                   f"ls -A {disk}; }} 2>&1")
        said = run("unshare", "-rm", "sh", "-c", command)
        self.assertIn("the disk is full", said)
        self.assertTrue(said.rstrip().endswith("status 1"), said)


if __name__ == "__main__":
    LINKCPP = os.path.abspath(sys.argv.pop(1))
    unittest.main()
