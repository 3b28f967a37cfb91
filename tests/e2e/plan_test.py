"""linkcpp plan against stock llama.cpp: weights, KV cache, state and compute buffers of made headers, and bad input.

    plan_test.py LINKCPP [--full]      without --full on half of the models

llama-fit-params lays a model out without loading it and logs every buffer, so skeletons (headers with file holes) do.
KV cache and state are also compared on every architecture that llama.cpp's own test program can write.
"""

import concurrent.futures
import glob
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

LINKCPP = sys.argv[1]
os.environ.setdefault("LINKCPP_BIN", os.path.dirname(os.path.abspath(LINKCPP)))
from swarm import AUSTEN, Swarm, environment, logits  # noqa: E402
MIB = 1 << 20
MODELS = ["qwen3.5-35b", "qwen3.5-122b", "qwen3-30b", "qwen2-57b", "mixtral-8x7b", "gpt-oss-20b", "glm-4.5-air",
          "minimax-m2", "granite-1b-a400m", "olmoe-1b-7b", "llama-4-scout", "lfm2-8b-a1b"]
if "--full" not in sys.argv:
    MODELS = MODELS[::2]
CONTEXTS = [4096, 32768, 131072]
failures = []


def check(ok, text):
    print(("ok    " if ok else "WRONG ") + text, flush=True)
    if not ok:
        failures.append(text)


def plan(model, *options, ok=True):
    done = subprocess.run([LINKCPP, "plan", "-m", model, "--json", *options], capture_output=True, text=True)
    if ok and done.returncode != 0:
        raise SystemExit(f"plan {model} {options}: {done.returncode}: {done.stderr}")
    return json.loads(done.stdout) if ok else done


def fit(model, *options, repack=False):
    """What llama.cpp would allocate, in MiB: weights, KV, state, compute. None: it can not lay the model out."""
    environment = dict(os.environ)
    environment.pop("GGML_BACKEND_PATH", None)
    environment.pop("GGML_VK_VISIBLE_DEVICES", None)
    for _ in range(10):  # its log is written by a thread that the end of the process now and then cuts short
        done = subprocess.run(["llama-fit-params", "-fitp", "on", "-m", model, "-v", *([] if repack else ["--no-repack"]), *options],
                              capture_output=True, text=True, env=environment)
        log = done.stdout + done.stderr
        if done.returncode != 0:
            return None
        if "compute buffer size" in log:
            break
    else:
        raise SystemExit(f"llama-fit-params {model} {options}: no complete log in ten runs")

    def total(pattern):
        return sum(float(x) for x in re.findall(pattern, log))

    rows = re.findall(r"\|\s+- \S.*\|\s*(\d+) =\s*(\d+) \+\s*(\d+) \+\s*(\d+)", log)
    return {"model": sum(int(row[1]) for row in rows),
            "kv": total(r"llama_kv_cache: size =\s*([\d.]+) MiB"),
            "state": total(r"llama_memory_recurrent: size =\s*([\d.]+) MiB") +
            total(r"llama_dsv4_comp_state: \w+ ratio = .* size =\s*([\d.]+) MiB"),
            "compute": total(r"compute buffer size =\s*([\d.]+) MiB")}


def near(ours, theirs, relative, absolute):
    return abs(ours - theirs) <= max(relative * theirs, absolute)


def compare(folder, name):
    model = os.path.join(folder, name + ".gguf")
    subprocess.run([LINKCPP, "synth", "--skeleton", "--like", name, "-o", model], check=True, stdout=subprocess.DEVNULL)
    cases = [(context, kv) for context in CONTEXTS for kv in ("f16",)] + [(32768, "q8_0"), (32768, "q4_0")]
    for context, kv in cases:
        host = fit(model, "-c", str(context), "-ctk", kv, "-ctv", kv, "-fa", "on")
        if host is None:
            print(f"skip  {name} {context} {kv}: llama-fit-params fails")
            continue
        ours = plan(model, "--vram", "none", "--ram", "900GiB", "--ram-rate", "40", "--ctx", str(context), "--kv", kv)
        ram = next(row for row in ours["memory"] if row["name"] == "RAM")
        weights = (ours["expert_bytes"] + ours["backbone_bytes"]) / MIB
        title = f"{name} {context} {kv}"
        # A buffer is a sum of padded tensors and repacked ones may grow; llama.cpp prints whole MiB for each of them.
        check(near(weights, host["model"], 0.001, 3), f"{title}: weights {weights:.1f}, llama.cpp {host['model']} MiB")
        check(near(ours["kv_bytes"] / MIB, host["kv"], 0.001, 0.01), f"{title}: KV {ours['kv_bytes'] / MIB:.2f}, {host['kv']:.2f}")
        check(near(ours["state_bytes"] / MIB, host["state"], 0.001, 0.01),
              f"{title}: state {ours['state_bytes'] / MIB:.2f}, {host['state']:.2f}")
        compute = ram["compute"] / MIB
        check(abs(compute - host["compute"]) <= 0.01 + 0.001 * host["compute"],
              f"{title}: compute {compute:.2f}, {host['compute']:.2f}: {compute / host['compute'] - 1:+.1%}")
        guess = plan(model, "--vram", "none", "--ram", "900GiB", "--ram-rate", "40", "--ctx", str(context), "--kv", kv, "--estimate")
        compute = next(row for row in guess["memory"] if row["name"] == "RAM")["compute"] / MIB
        check(host["compute"] <= compute <= 1.1 * host["compute"],
              f"{title}: compute estimated {compute:.1f}, {host['compute']:.1f}: {compute / host['compute'] - 1:+.1%}")
    packed = fit(model, "-c", "4096", "-fa", "on", repack=True)
    if packed is not None:  # with buffers for AMX and repacked experts, whichever this processor has
        ours = plan(model, "--vram", "none", "--ram", "900GiB", "--ram-rate", "40", "--ctx", "4096")
        ram = next(row for row in ours["memory"] if row["name"] == "RAM")
        weights = (ram["backbone"] + ram["experts"]) / MIB
        check(near(weights, packed["model"], 0.001, 3), f"{name} packed for this processor: {weights:.1f}, {packed['model']} MiB")
    four = fit(model, "-c", "32768", "-np", "4", "-fa", "on")
    if four is not None:
        ours = plan(model, "--vram", "none", "--ram", "900GiB", "--ram-rate", "40", "--ctx", "32768", "--parallel", "4")
        check(near(ours["kv_bytes"] / MIB, four["kv"], 0.001, 0.01), f"{name} 4 sequences: KV {ours['kv_bytes'] / MIB:.2f}, {four['kv']:.2f}")
        check(near(ours["state_bytes"] / MIB, four["state"], 0.001, 0.01),
              f"{name} 4 sequences: state {ours['state_bytes'] / MIB:.2f}, {four['state']:.2f}")
    os.remove(model)


TOYS = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests/test-llama-archs"
# Files of these architectures are called MoE, but have no expert tensors.
DENSE_TOYS = {"ernie4_5", "paddleocr"}
LEAST_TOYS = 50


def compare_toy(model):
    """KV cache, state and compute buffer of one toy model; sixteen sequences, so that two decimals of a MiB say something."""
    name = os.path.basename(model).removesuffix("-moe.gguf")
    lines = []
    for options, wish in ((["-c", "65536", "-np", "16"], ["--ctx", "65536", "--parallel", "16"]),
                          (["-c", "8192", "-ctk", "q8_0", "-ctv", "q8_0"], ["--ctx", "8192", "--kv", "q8_0"])):
        done = plan(model, "--vram", "none", "--ram", "900GiB", "--ram-rate", "40", *wish, ok=False)
        if name in DENSE_TOYS:
            return [(done.returncode == 2 and "dense" in done.stdout, f"toy {name}: refused as a dense model")]
        host = fit(model, "-fa", "on", *options)
        if host is None:
            lines.append((None, f"toy {name} {' '.join(options)}: llama-fit-params fails"))
            continue
        if done.returncode != 0:
            lines.append((False, f"toy {name}: {done.stdout}{done.stderr}"))
            continue
        ours = json.loads(done.stdout)
        kv, state = ours["kv_bytes"] / MIB, ours["state_bytes"] / MIB
        compute = ours["memory"][-1]["compute"] / MIB
        asked = any("the installed llama.cpp says so" in line for line in ours["assumptions"])
        lines.append((near(kv, host["kv"], 0.001, 0.02) and near(state, host["state"], 0.001, 0.02) and
                      asked and near(compute, host["compute"], 0.001, 0.02),
                      f"toy {name} {' '.join(options)}: KV {kv:.2f}, {host['kv']:.2f}; state {state:.2f}, {host['state']:.2f}; "
                      f"compute {'asked' if asked else 'estimated'} {compute:.2f}, {host['compute']:.2f}"))
    return lines


def toys(folder):
    subprocess.run([TOYS, "-o", folder, "-s", "1"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    compared = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for lines in pool.map(compare_toy, sorted(glob.glob(os.path.join(folder, "*-moe.gguf")))):
            for ok, text in lines:
                if ok is None:
                    print(f"skip  {text}")
                else:
                    check(ok, text)
            compared += any(ok is not None for ok, _ in lines)
    check(compared >= LEAST_TOYS, f"toys: {compared} architectures compared")


def reference(folder):
    model = os.path.join(folder, "reference.gguf")
    subprocess.run([LINKCPP, "synth", "--skeleton", "--like", "qwen3.5-122b", "-o", model], check=True, stdout=subprocess.DEVNULL)
    ours = plan(model, "--vram", "64GiB", "--ram", "32GiB", "--ctx", "262144", "--ram-rate", "60")
    ram = next(tier for tier in ours["experts"] if tier["tier"] == "RAM")
    check(ours["feasible"] and ram["layers"] == list(range(38, 48)), f"reference: layers {ram['layers']} in RAM")
    check(round(ram["bytes"] / 2**30, 2) == 14.20, f"reference: {ram['bytes'] / 2**30:.3f} GiB")
    check(ours["memory"][0]["total"] <= 64 * 2**30, f"reference: VRAM {ours['memory'][0]['total'] / 2**30:.2f} GiB")
    print(ours["command"])
    crowd = plan(model, "--vram", "none", "--ram", "900GiB", "--ram-rate", "40", "--ctx", "100", "--parallel", "7", "--batch", "4096")
    at = crowd["arguments"].index("-c")
    check(crowd["arguments"][at + 1] == "1792" and crowd["context"] == 1792 and "-b 4096 -ub 4096" in " ".join(crowd["arguments"]),
          f"more sequences than cells: {crowd['arguments']}")
    no_room = plan(model, "--vram", "none", "--ram", "32GiB", "--ram-rate", "40", "--ctx", "4096")
    enough = plan(model, "--vram", "none", "--ram", str((32 << 30) + no_room["missing_bytes"]), "--ram-rate", "40", "--ctx", "4096")
    check(not no_room["feasible"] and enough["feasible"], f"what is missing is enough: {no_room['missing_bytes']}")
    return model


def layout_program(folder, model):
    """linkcpp-layout itself: an abort of libllama, a model it does not know, nonsense; and a plan without the program."""
    program = os.path.join(os.path.dirname(os.path.abspath(LINKCPP)), "linkcpp-layout")

    def ask(text):
        return subprocess.run([program, text], capture_output=True, text=True, env=dict(os.environ, GGML_NO_BACKTRACE="1"))
    request = {"model_path": model, "devices": [{"name": "GPU 0", "memory_bytes": 1 << 36, "here": False}], "n_gpu_layers": 99, "tensor_split": [],
               "overrides": ["exps"], "n_context": 4096, "n_seq_max": 1, "n_ubatch": 512, "kv_type": "f16", "flash_attention": True, "repack": True, "host_state_bytes": 0}
    answer = ask(json.dumps(request))
    buffers = {row["buffer_type"]: row for row in json.loads(answer.stdout)} if answer.returncode == 0 else {}
    check("GPU 0" in buffers and buffers["GPU 0"]["compute_bytes"] > 0, f"linkcpp-layout: {answer.returncode}: {sorted(buffers)} {answer.stderr.strip()[-200:]}")
    for change, expected in (({"model_path": "/none.gguf"}, "libllama does not load it"), ({"kv_type": "q5"}, "q5"), ({"n_gpu_layers": "all"}, "request"),
                             ({"devices": [{"name": "Matrix9", "memory_bytes": 1, "here": True}]}, "Matrix9")):
        refused = ask(json.dumps({**request, **change}))
        check(refused.returncode == 1 and expected in refused.stderr and refused.stderr.count("\n") == 1, f"linkcpp-layout {change}: {refused.stderr.strip()}")
    lines = [json.dumps(request), json.dumps({**request, "model_path": "/none.gguf"}), json.dumps({**request, "n_context": 8192})]
    several = subprocess.run([program, "-"], input="\n".join(lines) + "\n", capture_output=True, text=True)
    answers = [json.loads(line) for line in several.stdout.splitlines()]
    check(several.returncode == 0 and len(answers) == 3 and answers[0] == json.loads(answer.stdout) and "libllama does not load it" in answers[1]["refused"]
          and [row["context_bytes"] for row in answers[2]] != [row["context_bytes"] for row in answers[0]], f"linkcpp-layout -: {several.returncode} {several.stdout[-300:]}")
    other = os.path.join(folder, "other.gguf")
    with open(model, "rb") as file:  # the directory of tensors names no architecture
        header = file.read(64 << 20)
    with open(other, "wb") as file:
        file.write(header.replace(b"qwen35moe", b"qwen35mox"))
        file.truncate(os.path.getsize(model))
    done = subprocess.run([LINKCPP, "plan", "-m", other, "--vram", "none", "--ram", "90GiB", "--ram-rate", "40"], capture_output=True, text=True)
    check(done.returncode == 0 and "but the llama.cpp installed here does not run it: " in done.stdout and "qwen35mox" in done.stdout.split("does not run it")[1],
          f"an architecture llama.cpp does not know: {done.returncode}: {[line for line in done.stdout.splitlines() if 'does not run' in line]} {done.stderr}")
    os.remove(other)
    alone = os.path.join(folder, "alone")
    os.mkdir(alone)
    subprocess.run(["cp", LINKCPP, alone], check=True)
    done = subprocess.run([os.path.join(alone, "linkcpp"), "plan", "-m", model, "--ram-rate", "40", "--json"], capture_output=True, text=True)
    lines = json.loads(done.stdout)["assumptions"] if done.returncode == 0 else []
    check(any(line.startswith("compute buffers are estimated: ") and "linkcpp-layout" in line for line in lines), f"without linkcpp-layout: {done.returncode} {lines}")
    # Other programs in its place: each is named as the reason, the plan is an estimate, and nothing stays behind.
    fake = os.path.join(alone, "linkcpp-layout")
    before = set(glob.glob(os.path.join(tempfile.gettempdir(), "linkcpp-*")))
    for script, expected in (("exit 3", "exit status 3"), ("echo nonsense; cat > /dev/null", "not an account of buffers"), ("echo '[]'; cat > /dev/null", "does not count"),
                             ("echo oh >&2; kill -ABRT $$", "signal 6 (Aborted); its last words: oh"), ("exec <&- >&-; exec sleep 60", "closed its output"),
                             ("while read line; do echo '{\"refused\": \"no such thing\"}'; done", "no such thing")):
        with open(fake, "w") as file:
            file.write("#!/bin/sh\n" + script + "\n")
        os.chmod(fake, 0o755)
        done = subprocess.run([os.path.join(alone, "linkcpp"), "plan", "-m", model, "--ram-rate", "40", "--ram", "90GiB", "--vram", "8GiB", "--json"], capture_output=True, text=True,
                              timeout=60)
        lines = json.loads(done.stdout)["assumptions"] if done.returncode == 0 else []
        check(any(line.startswith("compute buffers are estimated: ") and expected in line for line in lines), f"linkcpp-layout that does '{script}': {done.returncode} {lines} {done.stderr}")
    left = set(glob.glob(os.path.join(tempfile.gettempdir(), "linkcpp-*"))) - before
    check(not left, f"left behind: {left}")


def bad_input(folder, good):
    def path(name, content):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
        return os.path.join(folder, name)

    with open(good, "rb") as file:
        header = file.read(4096)
    split = struct.pack("<4sIQQ", b"GGUF", 3, 0, 3)
    for key, value in (("split.no", 0), ("split.count", 2), ("split.tensors.count", 1)):
        split += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IH", 2, value)
    nodes = path("nodes.json", b'[{"name": "a", "memory": "8GiB", "speed": 3}]')
    node = b'{"name": "a", "memory": "8GiB", "here": true}'
    twins = path("twins.json", b"[" + node + b"," + node + b"]")
    none_used = os.path.join(folder, "none-used.gguf")
    with open(AUSTEN, "rb") as file:
        content = file.read()
        at = content.index(b".expert_used_count") + len(b".expert_used_count") + 4  # behind the value's type, u32
    with open(none_used, "wb") as file:
        file.write(content[:at] + struct.pack("<I", 0) + content[at + 4:])
    cases = [([path("text.gguf", b"hello, world, this is no model at all")], "GGUF"),
             ([path("short.gguf", header)], "short.gguf"),
             ([path("model-00001-of-00002.gguf", split)], "00002-of-00002"),
             ([os.path.join(folder, "none.gguf")], "none.gguf"),
             ([good, "--ram", "64 parsecs"], "64 parsecs"), ([good, "--vram", "64 parsecs"], "64 parsecs"),
             ([good, "--ram", "0"], "no memory"), ([good, "--vram", "0"], "no memory"), ([good, "--ram", "32"], "32G"),
             ([good, "--ctx", "0"], "--ctx"), ([good, "--ctx", "many"], "--ctx"), ([good, "--kv", "q5"], "--kv"),
             ([good, "--disk", "floppy"], "--disk"), ([good, "--gpu-layers", "500"], "48"),
             ([good, "--nodes", nodes], "speed"), ([good, "--nodes", folder], "cannot be read"), ([good, "--ram", "1KiB"], "no model fits there"), ([good, "--nodes", os.path.join(folder, "absent.json")], "absent.json"),
             ([good, "--nodes", twins], "two nodes are called a"), ([good, "--force-nodes"], "--nodes"), ([good, "--vram", "16GiB,,8GiB"], "--vram"),
             ([good, "--measure"], "--measure"), ([good, "--split-layers", "--whole-layers"], "--whole-layers"), ([none_used], "expert_used_count"),
             ([good, "--parallel", "0"], "parallel"), ([good, "--vram-rate", "fast"], "vram-rate")]
    for (model, *options), expected in cases:
        if "--vram" not in options:
            options += ["--vram", "none"]
        done = subprocess.run([LINKCPP, "plan", "-m", model, "--ram-rate", "40", *options], capture_output=True, text=True)
        first = done.stderr.strip().split("\n")
        ours = [line for line in first if not line.startswith("Run with --help")]
        check(done.returncode == 2 and len(ours) == 1 and expected in done.stderr and done.stdout == "",
              f"bad input {os.path.basename(model)} {options}: {done.returncode}: {done.stderr.strip()}")


def kept_speed(folder):
    """What was measured for one plan serves the next of the same model; --measure, another batch or a damaged file measure again."""
    environment = dict(os.environ, XDG_CACHE_HOME=folder)

    def assumed(*options):
        done = subprocess.run([LINKCPP, "plan", "-m", str(AUSTEN), "--vram", "none", "--json", *options], capture_output=True, text=True, env=environment)
        return json.loads(done.stdout)["assumptions"]
    speeds = os.path.join(folder, "linkcpp", "speed")

    def cpu(lines):
        return next(line.split(": ", 1) for line in lines if line.startswith("CPU on"))
    first, second = assumed("--ctx", "512"), assumed("--ctx", "1024")
    check("measured now" in cpu(first)[0] and "measured 0 min ago" in cpu(second)[0] and cpu(first)[1] == cpu(second)[1],
          f"kept speed: {cpu(first)}, then {cpu(second)}")
    check("measured now" in cpu(assumed("--measure"))[0] and len(os.listdir(speeds)) == 1, f"--measure: {os.listdir(speeds)}")
    check("measured now" in cpu(assumed("--batch", "64"))[0] and len(os.listdir(speeds)) == 2, "another batch is measured")
    for name in os.listdir(speeds):
        with open(os.path.join(speeds, name), "w") as file:
            file.write('{"measured_unix_s": ')
    check("measured now" in cpu(assumed())[0], "a damaged file is nothing")


def serve_auto():
    """serve --auto starts llama-server with what plan prints, but for what the user says himself."""
    with Swarm(AUSTEN, backbone=True, local="allow", serve_args=["--auto"], host_args=["-c", "1024"]) as swarm:
        swarm.wait_api()
        planned = swarm.event("plan")
        said = plan(str(AUSTEN), "--ctx", "1024", "--ram-rate", "10")
        expected = list(said["arguments"])
        at = expected.index("-c")
        check(expected[at + 1] == "1024" and planned["arguments"] == expected[:at] + expected[at + 2:],
              f"serve --auto: {planned['arguments']}; plan: {expected}")
        children = subprocess.run(["ps", "-o", "args=", "--ppid", str(swarm.serve.pid)], capture_output=True, text=True).stdout
        check(" ".join(planned["arguments"]) + " -c 1024" in children, f"serve --auto: llama-server runs with them: {children.strip()[-120:]}")
        check(any(word.startswith("LINKCPP_LOCAL_MEMORY=") for word in planned["environment"]), f"serve --auto: {planned['environment']}")


def plan_with_swarm():
    with Swarm(AUSTEN) as swarm:
        swarm.add_worker("--memory", "64M", name="measured")
        swarm.wait_covered()
        options = ["--swarm", swarm.url, "--vram", "none", "--ram-rate", "10", "--ram", "12M", "--ctx", "256", "--batch", "64"]

        def ask(**env):
            return subprocess.run([LINKCPP, "plan", "-m", str(AUSTEN), "--json", *options], capture_output=True, text=True,
                                  env=environment(env))
        before = json.loads(ask(LINKCPP_TOKEN=swarm.token).stdout)
        check(any("measured" in line and "assumed: it has not computed yet" in line for line in before["assumptions"]),
              "plan --swarm: a node that has not computed is said to be assumed")
        logits(AUSTEN, os.path.join(swarm.folder, "logits"), swarm.host_env(), n_steps=40)

        def measured():
            lines = [line for line in json.loads(ask(LINKCPP_TOKEN=swarm.token).stdout)["assumptions"] if line.startswith("measured: ")]
            return lines and "GB/s (measured over" in lines[0]
        swarm.wait(measured, 20, "the worker's report of what it computed")
        check(True, "plan --swarm: speed as the coordinator has it")
        wrong = ask(LINKCPP_TOKEN="lk_wrong")
        check(wrong.returncode == 1 and "error" in json.loads(wrong.stdout), f"plan --swarm, wrong token: {wrong.returncode}: {wrong.stdout.strip()}")
        options[1] = "http://127.0.0.1:1"
        away = ask(LINKCPP_TOKEN="lk_any")
        check(away.returncode == 1, f"plan --swarm, nobody there: {away.returncode}: {away.stdout.strip()}")


with tempfile.TemporaryDirectory(prefix="linkcpp-plan-") as folder:
    serve_auto()
    plan_with_swarm()
    good = reference(folder)
    layout_program(folder, good)
    bad_input(folder, good)
    kept_speed(folder)
    os.remove(good)
    with tempfile.TemporaryDirectory(dir=folder) as toy_folder:
        toys(toy_folder)
    for name in MODELS:
        compare(folder, name)
print(f"{len(failures)} wrong")
sys.exit(1 if failures else 0)
