#!/usr/bin/env python3
"""linkcpp oracle and verify expert on a toy model of every architecture, and on input that is wrong.

usage: oracle_cli_test.py LINKCPP TEST_LLAMA_ARCHS MODEL
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

import gguf
import numpy as np

LINKCPP, ARCHS, MODEL = sys.argv[1:4]

# Refused for a reason that the message must give.
REFUSED = {"kimi-k3": "activation has no oracle"}
LATENT = {"maion-coder"}  # experts in a narrower space than the router: no layer from the file alone


def linkcpp(*arguments):
    done = subprocess.run([LINKCPP, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class Architectures(unittest.TestCase):
    def test_toy_models(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([ARCHS, "-o", folder, "-s", "1"], check=True, capture_output=True)
            n_moe = 0
            for path in sorted(glob.glob(os.path.join(folder, "*.gguf"))):
                reader = gguf.GGUFReader(path)
                arch = str(bytes(reader.fields["general.architecture"].parts[-1]), "utf-8")
                layers = sorted({int(t.name.split(".")[1]) for t in reader.tensors if t.name.endswith("_exps.weight")})
                with self.subTest(arch=arch, file=os.path.basename(path)):
                    if not layers:
                        status, _, error = linkcpp("verify", "expert", "-m", path)
                        self.assertEqual((status, "dense model" in error), (2, True), error)
                        continue
                    n_moe += 1
                    common = ["-m", path, "--layer", str(layers[0]), "--json"]
                    status, out, error = linkcpp("verify", "expert", *common, "--experts", "all", "--rows", "3")
                    if arch in REFUSED:
                        self.assertEqual((status, REFUSED[arch] in error), (2, True), error)
                        continue
                    self.assertEqual(status, 0, error)
                    self.assertTrue(json.loads(out)["all"]["inside"])
                    status, out, error = linkcpp("oracle", *common, "--shards", "2,3", "--split", "random", "--tokens", "2")
                    if arch in LATENT:
                        self.assertEqual((status, "latent" in error), (2, True), error)
                        continue
                    self.assertEqual(status, 0, error)
                    for split in json.loads(out)["splits"]:
                        self.assertLessEqual(split["max_abs"], 4e-12)
            self.assertGreater(n_moe, 50)


def toy(path, weights):
    """A file with one layer of two experts whose three projections have this raw type, all bytes zero."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_uint32("qwen3moe.expert_used_count", 1)
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((2, 256), dtype=np.float32))
    for name in ("gate", "up", "down"):
        data = np.zeros((2, 256, gguf.GGML_QUANT_SIZES[weights][1]), dtype=np.uint8)
        writer.add_tensor(f"blk.0.ffn_{name}_exps.weight", data, raw_dtype=weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class WrongInput(unittest.TestCase):
    def refused(self, arguments, *words, status=2):
        got, out, error = linkcpp(*arguments)
        self.assertEqual(got, status, out + error)
        for word in words:
            self.assertIn(word, error)

    def test_a_type_without_an_oracle(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            toy(file.name, gguf.GGMLQuantizationType.IQ2_XXS)
            for command in (["verify", "expert"], ["oracle"]):
                self.refused([*command, "-m", file.name], "blk.0.ffn_", "IQ2_XXS", "Q4_K")

    def test_experts_of_zeros_are_inside(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            toy(file.name, gguf.GGMLQuantizationType.Q4_K)
            status, out, error = linkcpp("verify", "expert", "-m", file.name, "--experts", "all")
            self.assertEqual(status, 0, out + error)

    def test_names_what_is_wrong(self):
        verify = ["verify", "expert", "-m", MODEL]
        self.refused([*verify, "--layer", "9"], "layer 9", "0, 1, 2, 3")
        self.refused([*verify, "--experts", "3:40"], "16")
        self.refused([*verify, "--device", "tpu"], "tpu", "CPU")
        self.refused([*verify, "--rows-from", "/no/such/rows"], "/no/such/rows")
        self.refused([*verify, "--rows-from", MODEL, "--rows", "65536"], "rows of 256")
        self.refused([*verify, "--rows", "0"], "--rows", status=2)
        self.refused(["verify", "expert"], "--model", status=2)
        self.refused(["oracle"], "MODEL", status=2)
        self.refused(["oracle", "-m", "/no/such/model"], "/no/such/model", status=2)
        self.refused(["oracle", "-m", MODEL, "--shards", "0"], "--shards", status=2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
