#!/usr/bin/env python3
"""The oracle against another implementation: Python's gguf package (dequantisation, bit for bit) and numpy (a MoE layer).

usage: oracle_python_test.py LINKCPP MODEL

Every type gets blocks that the package quantised itself where it can, and random valid blocks in any case: every byte
random, except that half-precision scales are finite.
"""
import json
import subprocess
import sys
import unittest

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

LINKCPP, MODEL = sys.argv[1:3]

# type -> offsets of half-precision numbers in a block
HALVES = {
    T.F16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.F32: [], T.BF16: [], T.MXFP4: [],
}
CAN_QUANTISE = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4]
N_BLOCKS = 4096


def random_blocks(rng, qtype):
    block_bytes = gguf.GGML_QUANT_SIZES[qtype][1]
    blocks = rng.integers(0, 256, (N_BLOCKS, block_bytes), dtype=np.uint8)
    for offset in HALVES[qtype]:
        # any finite half: an exponent of 31 loses its top bit
        infinite = (blocks[:, offset + 1] & 0x7C) == 0x7C
        blocks[infinite, offset + 1] &= 0xBF
    if qtype in (T.F32, T.BF16):  # any finite number
        infinite = ((blocks[:, -1] & 0x7F) == 0x7F) & (blocks[:, -2] >= 0x80)
        blocks[infinite, -1] &= 0xBF
    return blocks


def linkcpp(*arguments, stdin=None):
    return subprocess.run([LINKCPP, *arguments], input=stdin, capture_output=True, check=False)


def oracle_dequantise(qtype, blocks):
    done = linkcpp("oracle", "--dequantise", qtype.name, stdin=blocks.tobytes())
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(done.stdout, dtype=np.uint32)


class Dequantisation(unittest.TestCase):
    def check(self, qtype, blocks, what):
        with np.errstate(over="ignore", invalid="ignore"):
            theirs = quants.dequantize(blocks, qtype).ravel().view(np.uint32)
        ours = oracle_dequantise(qtype, blocks)
        self.assertEqual(ours.size, theirs.size)
        differing = np.flatnonzero(ours != theirs)
        at = differing[0] if differing.size else 0
        self.assertEqual(differing.size, 0, f"{what} {qtype.name}: element {at}: {ours[at]:#x} against {theirs[at]:#x}")
        print(f"{qtype.name:7} {what:9}: {ours.size} elements, bit-identical")

    def test_random_blocks_of_every_type(self):
        rng = np.random.default_rng(1)
        for qtype in HALVES:
            with self.subTest(qtype=qtype.name):
                self.check(qtype, random_blocks(rng, qtype), "random")

    def test_blocks_the_package_quantised(self):
        rng = np.random.default_rng(2)
        for qtype in CAN_QUANTISE:
            with self.subTest(qtype=qtype.name):
                weights = rng.standard_normal((64, 256)).astype(np.float32)
                self.check(qtype, quants.quantize(weights, qtype), "quantised")

    def test_real_experts(self):
        for tensor in gguf.GGUFReader(MODEL).tensors:
            if "_exps.weight" in tensor.name:
                self.check(tensor.tensor_type, np.asarray(tensor.data), tensor.name)

    def test_a_type_without_an_oracle_is_refused_by_name(self):
        done = linkcpp("oracle", "--dequantise", "iq2_xxs", stdin=b"")
        self.assertEqual(done.returncode, 2)
        self.assertIn("iq2_xxs", done.stderr.decode())

    def test_a_part_of_a_block_is_refused(self):
        done = linkcpp("oracle", "--dequantise", "q6_k", stdin=bytes(211))
        self.assertEqual(done.returncode, 1)
        self.assertIn("Q6_K", done.stderr.decode())


class Layer(unittest.TestCase):
    """Softmax over all experts, the best k renormalised, SWIGLU: what austen-moe's architecture says, written in numpy."""

    def layer(self, reader, number, x):
        w = {}
        for tensor in reader.tensors:
            if tensor.name.startswith(f"blk.{number}.ffn_"):
                data = quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
                w[tensor.name.split(".", 2)[2]] = data.astype(np.float64)
        n_used = int(reader.fields["qwen3moe.expert_used_count"].parts[-1][0])
        logits = w["ffn_gate_inp.weight"] @ x
        p = np.exp(logits - logits.max())
        p /= p.sum()
        chosen = np.argsort(-p, kind="stable")[:n_used]
        weights = p[chosen] / p[chosen].sum()
        y = np.zeros(w["ffn_down_exps.weight"].shape[1])
        for expert, weight in zip(chosen, weights):
            gate = w["ffn_gate_exps.weight"][expert] @ x
            up = w["ffn_up_exps.weight"][expert] @ x
            y += weight * (w["ffn_down_exps.weight"][expert] @ (gate / (1 + np.exp(-gate)) * up))
        return chosen, weights, y

    def test_every_layer_of_the_model(self):
        reader = gguf.GGUFReader(MODEL)
        for number in range(int(reader.fields["qwen3moe.block_count"].parts[-1][0])):
            for rows in ("gaussian", "embeddings"):
                done = linkcpp("oracle", "-m", MODEL, "--layer", str(number), "--tokens", "3", "--rows", rows,
                               "--shards", "1,2,16", "--json", "--values")
                self.assertEqual(done.returncode, 0, done.stderr.decode())
                report = json.loads(done.stdout)
                for row in report["rows"]:
                    x = np.array(row["x"], dtype=np.float32).astype(np.float64)
                    chosen, weights, y = self.layer(reader, number, x)
                    self.assertEqual([c["expert"] for c in row["choices"]], chosen.tolist())
                    np.testing.assert_allclose([c["weight"] for c in row["choices"]], weights, rtol=1e-12)
                    np.testing.assert_allclose(row["y"], y, rtol=1e-11, atol=1e-13)
                for split in report["splits"]:
                    self.assertTrue(split["allclose"])
                    self.assertLessEqual(split["max_abs"], 4e-12)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
