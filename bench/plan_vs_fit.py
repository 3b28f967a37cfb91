#!/usr/bin/env python3
"""What lands on the device: stock llama-fit-params' answer against `linkcpp plan`'s, for the same memory.

  LINKCPP_BIN=build/release/bin bench/plan_vs_fit.py [--full] [--split-layers] [NAME...]

Needs a GPU that llama.cpp sees; software Vulkan (lavapipe) will do. For each model the memory is set, by llama.cpp's margin, to what all
but the experts need and a quarter, half, … of the experts. The plan gets the same (its reserve is the margin). Weights
and caches that llama.cpp then lays out on the device are compared, for both answers as llama.cpp itself counts them.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

BIN = os.environ.get("LINKCPP_BIN", "build/release/bin")
MIB = 1 << 20
MODELS = ["qwen3.5-35b", "qwen3-30b", "granite-1b-a400m", "olmoe-1b-7b", "lfm2-8b-a1b", "glm-4.5-air", "minimax-m2", "deepseek-v2-lite"]
PARTS = [0.0, 0.25, 0.5, 0.75, 0.95, 1.2]


def plan(model, *options):
    done = subprocess.run([f"{BIN}/linkcpp", "plan", "-m", model, "--json", "--ram", "900GiB", "--ram-rate", "40", "--ctx", "4096", *options],
                          capture_output=True, text=True, env=dict(os.environ, GGML_VK_VISIBLE_DEVICES="0"))
    if done.returncode != 0:
        raise SystemExit(done.stderr + done.stdout)
    return json.loads(done.stdout)


def host(*words):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GGML_")}
    environment["GGML_VK_VISIBLE_DEVICES"] = "0"
    done = subprocess.run(["llama-fit-params", *words], capture_output=True, text=True, env=environment)
    return done.stdout, done.stdout + done.stderr


def on_device(model, arguments):
    """MiB of weights, and of weights and caches, that llama.cpp puts on the device with these arguments; None: it can not."""
    for _ in range(10):
        _, log = host("-fitp", "on", "-m", model, "-v", *arguments)
        found = re.search(r"\|\s+- Vulkan0[^|]*\|.*?=\s+(\d+) \+\s+(\d+) \+\s+(\d+)\)?\s", log)
        if found:
            return int(found.group(1)), int(found.group(1)) + int(found.group(2))
        if re.search(r"\|\s+- Host ", log):
            return 0, 0
    return None


def fitted(model, margin_mib):
    """(arguments, free MiB as it saw it); None: it says it can not."""
    for _ in range(10):
        out, log = host("-m", model, "-c", "4096", "-fa", "on", "-np", "1", "-fitt", str(margin_mib), "-v")
        free = re.search(r"vs\. (\d+) MiB of free device memory", log)
        if "failed to fit" in log:
            return None
        if free and "successfully fit" in log:
            words = re.findall(r'"[^"]*"|\S+', out.strip().splitlines()[-1]) if out.strip() else []
            return [word.strip('"') for word in words], int(free.group(1))
    return None


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("--")] or (MODELS if "--full" in sys.argv else MODELS[:2])
    cases = less = unsolved = 0
    with tempfile.TemporaryDirectory(prefix="linkcpp-fit-") as folder:
        for name in names:
            model = os.path.join(folder, name + ".gguf")
            subprocess.run([f"{BIN}/linkcpp", "synth", "--skeleton", "--like", name, "--vocab", "8192", "--experts", "16", "-o", model], check=True,
                           stdout=subprocess.DEVNULL)
            whole = plan(model, "--vram", "900GiB")
            need = (whole["memory"][0]["total"] - (1 << 30) - whole["expert_bytes"]) / MIB
            free = fitted(model, 0)[1]
            for part in PARTS:
                margin = int(free - need - part * whole["expert_bytes"] / MIB)
                if margin < 0:
                    print(f"skip  {name} {part:g}: more than this device has")
                    continue
                theirs = fitted(model, margin)
                if theirs is None:
                    print(f"skip  {name} {part:g}: llama-fit-params does not solve it")
                    continue
                budget = theirs[1] - margin  # of a free memory it prints in whole MiB, rounded down: one more for us
                ours = plan(model, "--vram", f"Vulkan0={(budget + 1) * MIB + (1 << 30)}", *(["--split-layers"] if "--split-layers" in sys.argv else []))
                cases += 1
                if not ours["feasible"]:
                    unsolved += 1
                    print(f"WRONG {name} {part:g}: {budget} MiB: not feasible")
                    continue
                arguments = theirs[0] + ["-fa", "on", "-np", "1", "-fit", "off"]
                mine, other = on_device(model, ours["arguments"]), on_device(model, arguments)
                if mine is None or other is None:
                    print(f"skip  {name} {part:g}: llama.cpp does not lay it out")
                    continue
                enough = mine[1] >= other[1]
                less += not enough
                print(f"{'ok   ' if enough else 'LESS '} {name} {part:g}: {budget} MiB: weights and caches on the device {mine[1]} MiB, llama-fit-params {other[1]}; "
                      f"weights alone {mine[0]}, {other[0]}", flush=True)
    print(f"{cases} cases: {unsolved} not solved, {less} with less on the device")
    sys.exit(1 if unsolved or less else 0)


if __name__ == "__main__":
    main()
