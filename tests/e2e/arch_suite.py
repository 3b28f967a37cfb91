#!/usr/bin/env python3
"""Every MoE architecture that llama.cpp's own test program can write, with its experts on two workers.

Even expert ids live on one worker and odd ones on the other, the backbone may compute none itself, and the logits of a
prefill and of single steps must be those of the same host without us, bit for bit. Prints one line a model: which path
its layers took (fused: one dispatch a layer; single: one a matmul).

  tests/e2e/arch_suite.py [NAME...]      only models whose name contains one of NAMEs
"""

import concurrent.futures
import json
import pathlib
import re
import sys
import tempfile
import time

from swarm import BIN, Swarm, environment, logits, run

ARCHS = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests/test-llama-archs"


# Written as MoE files, but llama.cpp 0.7 builds no expert layers for these architectures: nothing is ever asked of us.
WITHOUT_EXPERT_LAYERS = {"ernie4_5", "paddleocr", "refact"}


def n_experts_of(model):
    """0 for a dense model (some files are named -moe all the same)."""
    done = run([BIN / "linkcpp", "manifest", "-m", model, "--json"], check=False)
    if done.returncode == 2 and "is a dense model" in done.stdout:
        return 0
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)["layers"][0]["experts"]


def check(model, folder):
    name = model.stem.removesuffix("-moe")
    n_experts = n_experts_of(model)
    if n_experts == 0:
        return name, "no-experts", "dense"
    alone, ours = folder / f"{name}.alone", folder / f"{name}.ours"
    logits(model, alone, environment())
    (folder / name).mkdir()
    with Swarm(model, folder=folder / name) as swarm:
        swarm.add_worker("--experts", ",".join(str(e) for e in range(0, n_experts, 2)))
        swarm.add_worker("--experts", ",".join(str(e) for e in range(1, n_experts, 2)))
        swarm.wait_covered()
        said = logits(model, ours, swarm.host_env(LINKCPP_TRACE="1")).stdout
        pairs = sum(n["pairs_computed"] for n in swarm.status()["nodes"])
    same = alone.read_bytes() == ours.read_bytes() and alone.stat().st_size > 0
    paths = sorted(set(re.findall(r"trace: layer \d+ ((?:fused|single): .*)", said)))
    alone.unlink()
    ours.unlink()
    if not same:
        return name, "DIFFERENT", "; ".join(paths)
    if name in WITHOUT_EXPERT_LAYERS and not paths:
        return name, "no-experts", "identical; the host asks for no experts"
    if not paths:
        return name, "NOT-TAKEN", f"{n_experts} experts, but the host asked us for none ({pairs} pairs on workers)"
    return name, "identical", "; ".join(paths)


def main():
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="linkcpp-archs-") as scratch:
        folder = pathlib.Path(scratch)
        models = folder / "models"
        models.mkdir()
        run([ARCHS, "-o", models, "-s", "1"])
        files = sorted(m for m in models.glob("*-moe.gguf") if not wanted or any(w in m.name for w in wanted))
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda m: check(m, folder), files))
        for name, verdict, how in results:
            print(f"{name:16} {verdict:10} {how}", flush=True)
        counted = {v: sum(r[1] == v for r in results) for v in ("identical", "no-experts", "DIFFERENT", "NOT-TAKEN")}
        print(f"{len(results)} models: " + ", ".join(f"{n} {v}" for v, n in counted.items()) +
              f"; {time.monotonic() - begin:.0f} s")
        if not wanted:
            assert len(results) >= 57 and counted["identical"] >= 54, "fewer models than llama.cpp 0.7 writes"
        assert counted["DIFFERENT"] == 0 and counted["NOT-TAKEN"] == 0


if __name__ == "__main__":
    main()
