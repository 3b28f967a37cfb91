#!/usr/bin/env python3
"""Decode speed with the experts on one worker of the same machine, against the same llama.cpp alone.

Both are stock llama-bench runs, interleaved, so that the machine's noise meets both; what counts is the ratio of a pair.
The host alone runs with its own defaults. The pair runs with a bounded OpenMP spin (SPIN) on both sides, as
`linkcpp serve` and the worker set it.

  LINKCPP_BIN=build/release/bin bench/decode_vs_host.py MODEL.gguf [PAIRS=5] [N_TOKENS=32] [SPIN=1000] [PROMPT=0]
"""

import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))
from swarm import Swarm, environment, run  # noqa: E402


def speed(model, env, n_tokens, n_prompt):
    said = run(["llama-bench", "-m", model, "-p", n_prompt, "-n", 0 if int(n_prompt) else n_tokens, "-t", "2", "-r", "1", "-o", "json"], env=env).stdout
    return float(re.search(r'"avg_ts": ([0-9.]+)', said).group(1))


def main():
    model = sys.argv[1]
    n_pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    n_tokens = sys.argv[3] if len(sys.argv) > 3 else "32"
    spin = sys.argv[4] if len(sys.argv) > 4 else "1000"
    n_prompt = sys.argv[5] if len(sys.argv) > 5 else "0"
    alone_env = environment()
    del alone_env["GOMP_SPINCOUNT"]
    with Swarm(model) as swarm:
        swarm.add_worker("--memory", "16G", threads=2, env={"GOMP_SPINCOUNT": spin})
        swarm.wait_covered(600)
        env = swarm.host_env(GOMP_SPINCOUNT=spin)
        speed(model, alone_env, "4", n_prompt)  # the page cache, for both
        speed(model, env, "4", n_prompt)
        ratios, alone, ours = [], [], []
        for i in range(n_pairs):
            alone.append(speed(model, alone_env, n_tokens, n_prompt))
            ours.append(speed(model, env, n_tokens, n_prompt))
            ratios.append(ours[-1] / alone[-1])
            print(f"pair {i + 1}: host alone {alone[-1]:.2f} tok/s, with a worker {ours[-1]:.2f} tok/s, ratio {ratios[-1]:.3f}", flush=True)
        node = swarm.status()["nodes"][0]
    print(f"median: host alone {statistics.median(alone):.2f} tok/s, with a worker {statistics.median(ours):.2f} tok/s, "
          f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
          f"the worker computed for {node['busy_us'] / max(1, node['dispatches']):.0f} us a dispatch")


if __name__ == "__main__":
    main()
