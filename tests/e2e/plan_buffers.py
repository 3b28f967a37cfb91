"""Every buffer of planned command lines against stock llama.cpp: CPU, and CPU with Vulkan (lavapipe will do).

    plan_buffers.py LINKCPP [--full] [NAME...]

Runs llama-fit-params, which lays a model out without loading it, with exactly the arguments that `linkcpp plan` prints,
for a device that holds everything and for one that holds half of the experts. Without --full two models and one context.
For Vulkan vocabularies and experts are cut so that no tensor is larger than the 128 MB that lavapipe can bind, and once more they are
as large as published: llama.cpp leaves in RAM what the device does not take.
"""

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

MIB = 1 << 20
MODELS = ["qwen3.5-35b", "qwen3-30b", "qwen2-57b", "mixtral-8x7b", "gpt-oss-20b", "glm-4.5-air", "minimax-m2", "granite-1b-a400m",
          "olmoe-1b-7b", "llama-4-scout", "lfm2-8b-a1b", "deepseek-v2-lite"]
# Lavapipe binds 128 MB at most: so many experts, and a vocabulary whose output matrix fits.
FEWER_EXPERTS = {"mixtral-8x7b": "2", "llama-4-scout": "2", "gpt-oss-20b": "8"}
WIDTH = {"qwen2-57b": 3584, "mixtral-8x7b": 4096, "gpt-oss-20b": 2880, "glm-4.5-air": 4096, "minimax-m2": 3072, "granite-1b-a400m": 1024,
         "llama-4-scout": 5120}
CONTEXTS = [4096, 32768, 131072]


def arguments(argv):
    names = [a for a in argv[2:] if not a.startswith("--")]
    full = "--full" in argv
    return argv[1], names or (MODELS if full else ["qwen3.5-35b", "gpt-oss-20b"]), CONTEXTS if full else [32768]


def plan(linkcpp, model, *options):
    done = subprocess.run([linkcpp, "plan", "-m", model, "--json", "--ram", "900GiB", "--ram-rate", "40", *options], capture_output=True, text=True,
                          env=dict(os.environ, GGML_VK_VISIBLE_DEVICES="0"))  # lavapipe counts only when it is named
    if done.returncode != 0:
        raise SystemExit(f"plan {model} {options}: {done.returncode}: {done.stderr}{done.stdout}")
    return json.loads(done.stdout)


def fit(model, planned, vulkan):
    """MiB by buffer: weights and compute of device and host, KV and state by device. None: it can not lay the model out."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GGML_")}
    if vulkan:
        environment["GGML_VK_VISIBLE_DEVICES"] = "0"
    for _ in range(10):  # the log's thread is now and then cut short by the end of the process
        done = subprocess.run(["llama-fit-params", "-fitp", "on", "-m", model, "-v", *planned], capture_output=True,
                              text=True, env=environment)
        log = done.stdout + done.stderr
        if done.returncode != 0:
            return None, log
        if "compute buffer size" in log and re.search(r"\|\s+- Host ", log):
            break
    else:
        return None, log
    row = {}
    for name, weights, context, compute in re.findall(r"\|\s+- (\S+)[^|]*\|.*?=\s+(\d+) \+\s+(\d+) \+\s+(\d+)\)?\s", log):
        row[name] = (int(weights), int(context), int(compute))
    sizes = {"weights": row, "compute": {}}
    for name, size in re.findall(r"sched_reserve:\s+(\S+) compute buffer size =\s*([\d.]+) MiB", log):
        sizes["compute"][name] = sizes["compute"].get(name, 0) + float(size)
    sizes["kv"] = sum(float(x) for x in re.findall(r"llama_kv_cache: size =\s*([\d.]+) MiB", log))
    sizes["state"] = sum(float(x) for x in re.findall(r"llama_memory_recurrent: size =\s*([\d.]+) MiB", log))
    return sizes, log


def near(ours, theirs, relative, absolute):
    return abs(ours - theirs) <= max(relative * theirs, absolute)


def compare(linkcpp, model, title, options, vulkan):
    ours = plan(linkcpp, model, *options)
    if not ours["feasible"]:
        return [(None, f"{title}: not feasible")]
    theirs, log = fit(model, ours["arguments"], vulkan)
    if theirs is None:
        return [(None, f"{title}: llama-fit-params fails: {log.strip().splitlines()[-1][:100]}")]
    lines = []
    ram = next(row for row in ours["memory"] if row["name"] == "RAM")
    device = next((row for row in ours["memory"] if row["name"] != "RAM"), None)
    host_weights = sum(row[0] for name, row in theirs["weights"].items() if not name.startswith("Vulkan0"))
    device_weights = sum(row[0] for name, row in theirs["weights"].items() if name.startswith("Vulkan0"))
    host_compute = sum(size for name, size in theirs["compute"].items() if name != "Vulkan0")
    device_compute = theirs["compute"].get("Vulkan0", 0)

    def check(what, mine, size, relative, absolute, never_below=False):
        ok = near(mine, size, relative, absolute) and not (never_below and mine < size - 0.01)  # logged with two digits
        lines.append((ok, f"{title}: {what} {mine:.1f}, {size:.1f} MiB" + (f": {mine / size - 1:+.1%}" if size else "")))
    check("weights in RAM", (ram["backbone"] + ram["experts"]) / MIB, host_weights, 0.001, 2)
    check("KV", ours["kv_bytes"] / MIB, theirs["kv"], 0.001, 0.02)
    check("state", ours["state_bytes"] / MIB, theirs["state"], 0.001, 0.02)
    check("host compute", ram["compute"] / MIB, host_compute, 0.1, 0.5, True)
    if vulkan and device is not None:
        check("weights on the device", (device["backbone"] + device["experts"]) / MIB, device_weights, 0.001, 2)
        check("device compute", device["compute"] / MIB, device_compute, 0.1, 0.5, True)
    return lines


def main():
    linkcpp, names, contexts = arguments(sys.argv)
    wrong = compared = 0
    with tempfile.TemporaryDirectory(prefix="linkcpp-plan-") as folder:
        jobs = []
        for name in names:
            whole, cut = os.path.join(folder, name + ".gguf"), os.path.join(folder, name + "-cut.gguf")
            subprocess.run([linkcpp, "synth", "--skeleton", "--like", name, "-o", whole], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([linkcpp, "synth", "--skeleton", "--like", name, "--vocab", str(min(96 * MIB // WIDTH.get(name, 2048) // 1024 * 1024, 48 << 10)),
                            "--experts", FEWER_EXPERTS.get(name, "16"), "-o", cut], check=True,
                           stdout=subprocess.DEVNULL)
            experts = plan(linkcpp, cut, "--vram", "none", "--ctx", "4096")["expert_bytes"]
            for context in contexts:
                jobs.append((whole, f"{name} {context} CPU", ["--vram", "none", "--ctx", str(context)], False))
                jobs.append((whole, f"{name} {context} Vulkan, as published", ["--vram", "Vulkan0=900GiB", "--ctx", str(context)], True))
                jobs.append((cut, f"{name} {context} Vulkan, all on it", ["--vram", "Vulkan0=900GiB", "--ctx", str(context)], True))
                backbone = plan(linkcpp, cut, "--vram", "Vulkan0=900GiB", "--ctx", str(context))["memory"][0]["total"] - experts
                jobs.append((cut, f"{name} {context} Vulkan, half of the experts", ["--vram", f"Vulkan0={backbone + experts // 2 + (1 << 27)}", "--ctx", str(context)], True))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for lines in pool.map(lambda job: compare(linkcpp, *job), jobs):
                for ok, text in lines:
                    print({None: "skip ", True: "ok   ", False: "WRONG"}[ok] + " " + text, flush=True)
                    wrong += ok is False
                compared += any(ok is not None for ok, _ in lines)
    print(f"{compared} of {len(jobs)} cases compared, {wrong} figures wrong")
    sys.exit(1 if wrong or compared == 0 else 0)


if __name__ == "__main__":
    main()
