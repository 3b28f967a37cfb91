#!/usr/bin/env python3
"""What lands on the device: stock llama-fit-params' answer against `linkcpp plan`'s, for the same memory.

  LINKCPP_BIN=build/release/bin bench/plan_vs_fit.py [--full | --wide] [NAME...]

Needs a GPU that llama.cpp sees; software Vulkan (lavapipe) will do. For each model the memory is set, by llama.cpp's margin, to what all
but the experts need and a quarter, half, … of the experts. The plan gets the same (its reserve is the margin). Weights
and caches that llama.cpp then lays out on the device are compared, for both answers as llama.cpp itself counts them.

"trade": llama-fit-params has more there, but leaves to the CPU what every token reads (a layer's attention, matrices of a
shared expert), for the sake of experts of which a token reads a few. A plan keeps those on the device. "LESS", a failure:
it has more and leaves no more of those than the plan.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

import gguf

BIN = os.environ.get("LINKCPP_BIN", "build/release/bin")
MIB = 1 << 20
MODELS = ["qwen3.5-35b", "qwen3-30b", "granite-1b-a400m", "olmoe-1b-7b", "lfm2-8b-a1b", "glm-4.5-air", "minimax-m2", "deepseek-v2-lite"]
WIDE = ["qwen3.5-122b", "qwen3.5-397b", "qwen3-next-80b", "qwen3-235b", "qwen1.5-moe-a2.7b", "qwen2-57b", "mixtral-8x7b", "deepseek-v3", "moonlight-16b",
        "gpt-oss-20b", "gpt-oss-120b", "granite-3b-a800m", "llama-4-scout", "ernie-4.5-21b", "hunyuan-a13b", "dots1-142b"]
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


def read_by_every_token(model, arguments):
    """Bytes on the device of what every token is multiplied with: by -ngl and -ot, in llama.cpp's order (the first pattern that is found counts)."""
    def value(option, default):
        return arguments[arguments.index(option) + 1] if option in arguments else default
    patterns = [re.compile(rule.rsplit("=", 1)[0]) for rule in value("-ot", "").split(",") if rule]
    reader = gguf.GGUFReader(model)
    n_layers = 1 + max(int(tensor.name.split(".")[1]) for tensor in reader.tensors if tensor.name.startswith("blk."))
    n_gpu_layers = int(value("-ngl", "-1"))
    first = 0 if n_gpu_layers < 0 else max(0, n_layers + 1 - n_gpu_layers)
    total = 0
    for tensor in reader.tensors:
        name = tensor.name
        if not name.startswith("blk.") or int(name.split(".")[1]) < first or "exps" in name or any(p.search(name) for p in patterns):
            continue
        total += int(tensor.n_bytes)
    return total


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("--")] or (MODELS + WIDE if "--wide" in sys.argv else MODELS if "--full" in sys.argv else MODELS[:2])
    cases = less = trades = unsolved = 0
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
                ours = plan(model, "--vram", f"Vulkan0={(budget + 1) * MIB + (1 << 30)}")
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
                verdict, what = "ok   ", ""
                if mine[1] < other[1]:
                    left = read_by_every_token(model, ours["arguments"]) - read_by_every_token(model, arguments)
                    verdict, what = ("trade", f"; of what every token reads {left / MIB:.1f} MiB less") if left > 0 else ("LESS ", "")
                    trades += left > 0
                    less += left <= 0
                print(f"{verdict} {name} {part:g}: {budget} MiB: weights and caches on the device {mine[1]} MiB, llama-fit-params {other[1]}; "
                      f"weights alone {mine[0]}, {other[0]}{what}", flush=True)
    print(f"{cases} cases: {unsolved} not solved, {less} with less on the device, {trades} where llama-fit-params trades for more")
    sys.exit(1 if unsolved or less else 0)


if __name__ == "__main__":
    main()
