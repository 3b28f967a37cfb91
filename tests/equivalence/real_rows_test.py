#!/usr/bin/env python3
"""The kernel against the oracle on rows of real decoding, for the pairs the model's own router chooses.

usage: real_rows_test.py LINKCPP CAPTURE_ROWS MODEL TEXT [TOKENS] [verify options...]

Fails unless every element is inside its bound, the cosine over all pairs is at least 0.9998, and that of the worst pair
at least 0.9995 or what turning the row into the kernel's format costs by itself: 8-bit rows alone take one pair in a
thousand of this model a hair below.
"""
import json
import subprocess
import sys
import tempfile

import gguf

linkcpp, capture, model, text = sys.argv[1:5]
tokens = sys.argv[5] if len(sys.argv) > 5 else "80"
options = sys.argv[6:]

layers = sorted({int(t.name.split(".")[1]) for t in gguf.GGUFReader(model).tensors if "_exps.weight" in t.name})
pairs = 0
worst = explained = 1.0
error = weight = 0.0
failed = False
for layer in layers:
    with tempfile.NamedTemporaryFile(suffix=".f32") as rows:
        subprocess.run([capture, model, text, str(layer), tokens, rows.name], check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run(
            [linkcpp, "verify", "expert", "-m", model, "--layer", str(layer), "--experts", "all", "--rows", tokens,
             "--rows-from", rows.name, "--routed", "--json", *options],
            capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout.startswith("{"):
        sys.exit(f"verify expert failed: {done.stderr}{done.stdout}")
    report = json.loads(done.stdout)
    a = report["all"]
    print(f"layer {layer}: {report['types']}: {a['pairs']} pairs, cosine {a['cosine']:.7f}, worst pair "
          f"{a['worst_pair_cosine']:.7f}, NMSE {a['nmse']:.3g} (explained {a['explained_nmse']:.3g}), "
          f"|Δ|/bound {a['over_bound']:.3f}, |Δ|/likely {a['over_likely']:.3f}: {'inside' if a['inside'] else 'OUTSIDE'}")
    pairs += a["pairs"]
    worst = min(worst, a["worst_pair_cosine"])
    explained = min(explained, a["explained_worst_pair_cosine"])
    error += (1 - a["cosine"]) * a["pairs"]
    failed |= not a["inside"]
cosine = 1 - error / pairs
print(f"{report['kernel_class']}: {pairs} pairs, cosine {cosine:.7f}, worst pair {worst:.7f} "
      f"(the row format alone: {explained:.7f})")
if failed or not cosine >= 0.9998 or not worst >= min(0.9995, explained - 1e-7):
    sys.exit("outside")
