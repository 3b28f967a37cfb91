#!/usr/bin/env python3
"""linkcpp matrix: every backend that this machine can reach, against the figures that issue 3 promises.

usage: matrix_test.py LINKCPP ODD_BACKEND OTHER_VERSION_BACKEND

Needs every backend that the build root has (tools/packages.txt, tools/packages-arm64.txt): one that did not run is a
failure. On another machine, without that root, those that are there.
"""
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom

import gguf
import numpy as np

LINKCPP, ODD, OTHER_VERSION = sys.argv[1:4]
VARIANTS = "/usr/lib/x86_64-linux-gnu/ggml/backends0"
IN_ROOT = os.path.isdir("/opt/arm64")  # the build root that ./dev makes
ARM64_ROW = os.path.join(os.path.dirname(LINKCPP), "../../arm64/bin/linkcpp-matrix-row")


def known_backends():
    """Those that the build root is known to have. AVX-512 needs a CPU with it."""
    known = ["avx2", "x64", "numpy"]
    with open("/proc/cpuinfo", encoding="ascii") as file:
        if "avx512f" in file.read():
            known.append("avx512")
    if IN_ROOT:
        known += ["neon", "dotprod", "i8mm", "vulkan0"]
    return known


def linkcpp(*arguments, env=None):
    done = subprocess.run([LINKCPP, *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, **(env or {})})
    return done.returncode, done.stdout, done.stderr


class Figures(unittest.TestCase):
    """One run, the default one, with everything asserted that the issue's table says of it."""

    @classmethod
    def setUpClass(cls):
        if IN_ROOT and not os.path.exists(ARM64_ROW):
            raise AssertionError(f"{ARM64_ROW} is missing: ./dev build arm64 linkcpp-matrix-row")
        with tempfile.TemporaryDirectory() as folder:
            cls.svg = os.path.join(folder, "matrix.svg")
            cls.status, out, cls.error = linkcpp("matrix", "--json", "--svg", cls.svg, "--require",
                                                 ",".join(known_backends()))
            if not out.startswith("{"):
                raise AssertionError(cls.error)
            cls.report = json.loads(out)
            with open(cls.svg, encoding="utf-8") as file:
                cls.picture = file.read()
        print(f"the whole matrix took {cls.report['seconds']:.0f} s")

    def kind(self, backend):
        return "half" if backend.startswith(("vulkan", "numpy")) else "cpu"

    def cells(self):
        for group in self.report["groups"]:
            for cell in group["oracle"]:
                yield group, cell

    def test_every_backend_of_the_root_ran_and_is_inside_its_bounds(self):
        self.assertEqual(self.status, 0, self.error)
        ran = [b["id"] for b in self.report["backends"] if b["state"] == "ran"]
        for backend in known_backends():
            self.assertIn(backend, ran)
        for group, cell in self.cells():
            self.assertEqual(cell["fault"], "")
            for passage in ("by_row", "shuffled", "one_batch"):
                with self.subTest(group=group["name"], backend=cell["backend"], passage=passage):
                    figures = cell[passage]
                    self.assertTrue(figures["inside"], figures)
                    self.assertLessEqual(figures["over_bound"], 1 + 1e-9)
                    self.assertLessEqual(figures["over_worst"], 1)

    def test_backends_are_what_they_are_called(self):
        expected = {"avx512": r"CPU/(sapphirerapids|zen4|cooperlake|icelake|cascadelake|cannonlake|skylakex)/",
                    "avx2": "CPU/haswell/", "x64": "CPU/x64/", "neon": r"CPU/armv8\.0_1/",
                    "dotprod": r"CPU/armv8\.2_[12]/", "i8mm": r"CPU/armv(8\.6|9\.2)_", "numpy": "numpy-", "vulkan0": "Vulkan/"}
        for backend in self.report["backends"]:
            if backend["state"] == "ran" and backend["id"] in expected:
                self.assertRegex(backend["kernel_class"], expected[backend["id"]])
        features = {b["id"]: b["features"] for b in self.report["backends"] if b["state"] == "ran"}
        if "i8mm" in features:
            self.assertIn("MATMUL_INT8=1", features["i8mm"])
            self.assertIn("DOTPROD=1", features["i8mm"])
            self.assertNotIn("DOTPROD", features["neon"])
        self.assertNotIn("AVX", features["x64"])
        self.assertNotIn("AVX512", features["avx2"])

    def test_rows_of_real_decoding(self):
        group = self.report["groups"][0]
        self.assertIn("real decoding", group["rows"])
        self.assertGreaterEqual(group["pairs"], 1000)
        for cell in group["oracle"]:
            figures = cell["by_row"]
            self.assertEqual(figures["pairs"], group["pairs"])
            self.assertGreaterEqual(figures["cosine"], 0.9998)
            # One pair in a thousand of this model costs more than 5e-4 in Q8_K by itself; no kernel can be nearer.
            self.assertGreaterEqual(figures["worst_pair_cosine"],
                                    min(0.9995, figures["explained_worst_pair_cosine"] - 1e-7), cell["backend"])

    def test_the_122b_shape(self):
        groups = self.report["groups"][1:]
        self.assertEqual([g["types"] for g in groups],
                         ["gate Q4_K, up Q4_K, down Q4_K", "gate Q4_K, up Q4_K, down Q6_K"])
        for group in groups:
            for cell in group["oracle"]:
                for passage in ("by_row", "shuffled", "one_batch"):
                    least = 0.99999 if self.kind(cell["backend"]) == "half" else 0.9997
                    self.assertGreaterEqual(cell[passage]["cosine"], least, (cell["backend"], passage))

    def test_each_against_each_other(self):
        for group in self.report["groups"]:
            n = len(group["oracle"])
            self.assertEqual(len(group["between"]), n * (n - 1) // 2)
            for cell in group["between"]:
                with self.subTest(group=group["name"], a=cell["a"], b=cell["b"]):
                    if cell["same_rows"]:
                        self.assertGreaterEqual(cell["figures"]["cosine"], 0.99999)
                    if cell["same_class"]:
                        self.assertTrue(cell["figures"]["bit_identical"])
                    self.assertGreaterEqual(cell["figures"]["combined_cosine"], 0.9997)

    def test_the_same_class_has_the_same_bits_in_any_order_and_company(self):
        for group, cell in self.cells():
            if self.kind(cell["backend"]) == "cpu":
                self.assertTrue(cell["itself"]["bit_identical"], (group["name"], cell["backend"], cell["itself"]))
                self.assertEqual(cell["itself"]["pairs"], group["pairs"])

    def test_the_picture(self):
        picture = xml.dom.minidom.parseString(self.picture)
        self.assertIn("prefers-color-scheme: dark", self.picture)
        text = " ".join(node.firstChild.data for node in picture.getElementsByTagName("text"))
        for backend in self.report["backends"]:
            self.assertIn(backend["name"], text)
        n = len(self.report["groups"][0]["oracle"])
        self.assertEqual(len(picture.getElementsByTagName("rect")), 1 + len(self.report["groups"]) * n * (n + 1))


def capturing(pid):
    """Whether this process has capture_rows as a child now."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        children = file.read().split()
    for one in children:
        try:
            with open(f"/proc/{one}/comm", encoding="ascii") as file:
                if file.read().startswith("capture_rows"):
                    return True
        except OSError:
            pass
    return False


def toy(path, weights, length=256):
    """One layer of two experts, all bytes zero, whose three projections have this raw type and rows of `length`."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_uint32("qwen3moe.expert_used_count", 1)
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((2, length), dtype=np.float32))
    block, size = gguf.GGML_QUANT_SIZES[weights]
    for name in ("gate", "up", "down"):
        data = np.zeros((2, length, -(-length // block) * size), dtype=np.uint8)
        writer.add_tensor(f"blk.0.ffn_{name}_exps.weight", data, raw_dtype=weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Chosen(unittest.TestCase):
    """A small model of one's own, quick backends."""

    def test_experts_by_hand_and_a_text_table(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            toy(file.name, gguf.GGMLQuantizationType.Q8_0)
            status, out, error = linkcpp("matrix", "-m", file.name, "--experts", "0:2", "--rows", "3", "--backends",
                                         "x64,avx2,numpy")
            self.assertEqual(status, 0, out + error)
            self.assertIn("6 pairs", out)
            self.assertRegex(out, r"2 x86-64 baseline +Q8_0 .* inside")
            self.assertNotIn("Vulkan", out)

    def test_other_types(self):
        """What Q4_K hides: steps stored as halves, rows of halves, and arm64 kernels that add in halves."""
        backends = "avx2,x64,numpy" + (",neon,dotprod" if IN_ROOT else "")
        for kind, least in (("F16", 0.99999), ("Q8_0", 0.9999), ("MXFP4_MOE", 0.9999)):
            with self.subTest(type=kind), tempfile.TemporaryDirectory() as folder:
                model = os.path.join(folder, "m.gguf")
                status, out, error = linkcpp("synth", "--like", "granite-1b-a400m", "--layers", "4", "--experts", "8",
                                             "--vocab", "512", "--type", kind, "-o", model)
                self.assertEqual(status, 0, out + error)
                status, out, error = linkcpp("matrix", "-m", model, "--layer", "0", "--rows", "2", "--backends", backends,
                                             "--require", backends, "--json")
                self.assertEqual(status, 0, error)
                cells = {c["backend"]: c["by_row"] for c in json.loads(out)["groups"][0]["oracle"]}
                for backend, figures in cells.items():
                    self.assertGreaterEqual(figures["cosine"], least, backend)
                if kind == "F16" and IN_ROOT:
                    self.assertEqual(cells["neon"]["kernel_models"], "cpu")
                    self.assertEqual(cells["dotprod"]["kernel_models"], "cpu, f16 sums")

    def test_a_library_of_ones_own(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            toy(file.name, gguf.GGMLQuantizationType.Q4_K)
            status, out, error = linkcpp("matrix", "-m", file.name, "--backends", "x64,mine", "--add",
                                         f"mine={VARIANTS}/libggml-cpu-x64.so", "--json")
            self.assertEqual(status, 0, out + error)
            between = json.loads(out)["groups"][0]["between"][0]
            self.assertTrue(between["same_class"] and between["figures"]["bit_identical"])

    def test_what_is_not_there_is_said_and_is_no_failure_unless_required(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            toy(file.name, gguf.GGMLQuantizationType.Q4_K)
            common = ["matrix", "-m", file.name, "--backends", "x64,neon,numpy"]
            env = {"LINKCPP_ARM64_ROW": "/no/such/program", "PATH": "/nowhere"}
            status, out, error = linkcpp(*common, env=env)
            self.assertEqual(status, 0, out + error)
            self.assertRegex(out, "NEON.*skipped: no arm64 program at /no/such/program")
            self.assertRegex(out, "numpy.*skipped: no python3")
            status, out, error = linkcpp(*common, "--require", "x64,neon", env=env)
            self.assertEqual(status, 1)
            self.assertIn("backend neon is required and did not run: no arm64 program", error)


class WrongInput(unittest.TestCase):
    """Each a line that names the thing."""

    def refused(self, arguments, *words, status=2, env=None):
        got, out, error = linkcpp(*arguments, env=env)
        self.assertEqual(got, status, out + error)
        lines = [line for line in error.splitlines() if line.startswith("linkcpp: ")]
        self.assertLessEqual(len(lines), 1, error)
        for word in words:
            self.assertIn(word, error)

    def test_a_type_without_an_oracle(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            toy(file.name, gguf.GGMLQuantizationType.IQ2_XXS)
            self.refused(["matrix", "-m", file.name], "blk.0.ffn_", "IQ2_XXS", "Q4_K")

    def test_a_row_that_is_not_whole_blocks(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            toy(file.name, gguf.GGMLQuantizationType.Q4_K, 256)
            with open(file.name, "rb") as whole:
                data = bytearray(whole.read())
            # the directory's own length of the first expert tensor: 256 becomes 224
            at = data.index(b"blk.0.ffn_gate_exps.weight") + len(b"blk.0.ffn_gate_exps.weight") + 4
            self.assertEqual(struct.unpack_from("<Q", data, at)[0], 256)
            struct.pack_into("<Q", data, at, 224)
            with open(file.name, "wb") as out:
                out.write(data)
            self.refused(["matrix", "-m", file.name], "blk.0.ffn_gate_exps.weight", "224", "256", status=2)

    def test_a_backend_of_another_ggml(self):
        self.refused(["verify", "expert", "-m", MODEL, "--backend", OTHER_VERSION], OTHER_VERSION,
                     "incompatible API version (backend: 2", status=1)
        got, out, error = linkcpp("matrix", "-m", MODEL, "--layer", "0", "--rows", "1", "--backends", "x64,other", "--add",
                                  f"other={OTHER_VERSION}")
        self.assertEqual(got, 0, out + error)
        self.assertRegex(out, f"other +skipped: .*{re.escape(OTHER_VERSION)}.*incompatible API version")

    def test_a_device_that_refuses_an_operation(self):
        for op, words in (("MUL_MAT_ID", ("Odd0", "q4_K weights")), ("GLU", ("Odd0", "SWIGLU"))):
            with self.subTest(op=op):
                env = {"ODD_REFUSES": op}
                self.refused(["verify", "expert", "-m", MODEL, "--backend", ODD], *words, env=env, status=1)
                common = ["matrix", "-m", MODEL, "--layer", "0", "--rows", "1", "--backends", "x64,odd", "--add", f"odd={ODD}"]
                got, out, error = linkcpp(*common, env=env)
                self.assertEqual(got, 0, out + error)
                self.assertRegex(linkcpp(*common, "--require", "odd", env=env)[2], "required and refused.*Odd0")
                refusal = re.search(r"odd +refused: (.*)", out)
                self.assertIsNotNone(refusal, out)
                for word in words:
                    self.assertIn(word, refusal.group(1))

    def test_a_device_that_computes_nothing_is_outside(self):
        got, out, error = linkcpp("matrix", "-m", MODEL, "--layer", "0", "--rows", "2", "--backends", "x64,odd", "--add",
                                  f"odd={ODD}")
        self.assertEqual(got, 1, error)
        self.assertRegex(out, r"odd .*OUTSIDE")
        self.assertRegex(out, r"x86-64 baseline .* inside")

    def test_names_that_do_not_exist(self):
        self.refused(["matrix", "--backends", "tpu"], '"tpu"', "avx2")
        self.refused(["verify", "expert", "-m", MODEL, "--device", "tpu"], '"tpu"', "CPU")
        self.refused(["matrix", "-m", "/no/such/model"], "/no/such/model", status=2)
        self.refused(["matrix", "-m", __file__], __file__, status=2)
        self.refused(["matrix", "-m", MODEL, "--layer", "9"], "layer 9", "0, 1, 2, 3")
        self.refused(["matrix", "-m", MODEL, "--experts", "3:40"], "16")
        self.refused(["matrix", "-m", MODEL, "--rows-from", "/no/such/rows"], "/no/such/rows")
        self.refused(["matrix", "-m", MODEL, "--rows-from", "decode", "--text", "/no/such/text"], "/no/such/text")
        self.refused(["matrix", "--add", "nameless"], "nameless", "NAME=PATH")
        self.refused(["matrix", "--add", "x64=/no/such/library.so"], "/no/such/library.so")
        self.refused(["matrix", "--add", f"x64={ODD}"], "x64=", "of that name already")
        self.refused(["matrix", "--add", f"odd={ODD}", "--add", f"odd={ODD}"], "of that name already")
        self.refused(["matrix", "--require", "tpu"], '"tpu"')
        self.refused(["matrix", "--rows", "0"], "--rows")
        self.refused(["matrix", "--rows-from", "gaussian"], "-m")

    def test_files_that_cannot_be_written_are_found_before_anything_is_computed(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in (folder, os.path.join(folder, "no/such/folder.svg")):
                self.refused(["matrix", "-m", MODEL, "--svg", path], "--svg", path)
                self.assertNotIn("[1/", linkcpp("matrix", "-m", MODEL, "--backends", "x64", "--svg", path)[2])
            good = os.path.join(folder, "good.svg")
            self.refused(["matrix", "-m", "/no/such/model", "--svg", good], "/no/such/model")
            self.assertFalse(os.path.exists(good), "the check leaves nothing behind")
            with open(good, "w", encoding="ascii") as file:
                file.write("kept")
            self.refused(["matrix", "-m", "/no/such/model", "--svg", good], "/no/such/model")
            with open(good, encoding="ascii") as file:
                self.assertEqual(file.read(), "kept")

    def test_ctrl_c_says_interrupted(self):
        with tempfile.TemporaryDirectory() as folder:
            # A whole process group, as a terminal does it: the child that takes rows of real decoding gets it, too.
            child = subprocess.Popen([LINKCPP, "matrix", "-m", MODEL, "--rows-from", "decode", "--rows", "200", "--backends", "x64"],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                                     env={**os.environ, "TMPDIR": folder})
            deadline = time.monotonic() + 60
            while not capturing(child.pid):
                self.assertIsNone(child.poll(), "it ended by itself")
                self.assertLess(time.monotonic(), deadline)
            os.killpg(child.pid, signal.SIGINT)
            out, error = child.communicate(timeout=60)
            self.assertEqual((child.returncode, out), (1, ""))
            self.assertEqual(error, "linkcpp: interrupted\n")
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    MODEL = sys.argv[4]
    unittest.main(argv=[sys.argv[0], "-v"])
