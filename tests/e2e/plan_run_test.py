"""The Run section of linkcpp plan is executed as it is printed, on the toy model: alone, with experts left on disk, with
nodes that join a new coordinator, and towards a coordinator that runs (plain on loopback, TLS off it).

    plan_run_test.py LINKCPP

Nothing is changed in the printed lines but what this machine shares with other programs: ports (8090, llama-server's 8080),
state and cache folders, and TOKEN and URL, which the plan says are those of serve's join line.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

LINKCPP = os.path.abspath(sys.argv[1])
os.environ.setdefault("LINKCPP_BIN", os.path.dirname(LINKCPP))
from swarm import AUSTEN, BIN, Process, Swarm, complete, environment, free_port  # noqa: E402

PROMPT = "It is a truth universally acknowledged"
failures = []


def check(ok, text):
    print(("ok    " if ok else "WRONG ") + text, flush=True)
    if not ok:
        failures.append(text)


def programs(env=None):
    return environment({"PATH": f"{BIN}:{os.environ['PATH']}", **(env or {})})


def plan(*options, env=None, status=0):
    done = subprocess.run([LINKCPP, "plan", "-m", str(AUSTEN), "--vram", "none", "--ram-rate", "10", "--ctx", "512", *options],
                          capture_output=True, text=True, env=programs(env))
    if done.returncode != status:
        raise SystemExit(f"plan {options}: {done.returncode}: {done.stdout}{done.stderr}")
    check(not re.search(r"\b0[MK]\b|0\.\d\d GiB", done.stdout), f"plan {' '.join(options[:6])}: no size is 0M or a fraction of a GiB")
    return done.stdout if status == 0 else done.stderr


def ram_for(layers):
    """Memory that holds all but the experts, and the experts of so many of the four layers."""
    said = json.loads(subprocess.run([LINKCPP, "plan", "-m", str(AUSTEN), "--vram", "none", "--ram-rate", "10", "--ctx", "512", "--json"],
                                     capture_output=True, text=True, env=programs(), check=True).stdout)
    ram = said["memory"][-1]
    return f"{ram['total'] - ram['experts'] + said['expert_bytes'] // 4 * layers + 4096}"


def run_section(text):
    """(the main command, the workers' commands)."""
    lines = [line.strip() for line in text.split("\nRun\n")[1].splitlines()]
    return lines[0], [line for line in lines if " linkcpp join " in line]


def start(name, line, folder, env=None):
    return Process(name, ["bash", "-c", "exec env " + line], programs(env), folder)


def wait(what, condition, processes, seconds=90):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        for process in processes:
            if not process.alive():
                raise SystemExit(f"{process.name} ended while waiting for {what}:\n{process.text()[-3000:]}")
        time.sleep(0.05)
    raise SystemExit(f"waited for {what}:\n" + "\n".join(f"--- {p.name}\n{p.text()[-2000:]}" for p in processes))


def healthy(api):
    try:
        with urllib.request.urlopen(api + "/health", timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False


def host(line, folder, env=None):
    """A printed llama-server command, on a port of its own; its text for the prompt."""
    port = free_port()
    api = f"http://127.0.0.1:{port}"
    process = start("llama-server", f"{line} --host 127.0.0.1 --port {port}", folder, env)
    try:
        wait("llama-server", lambda: healthy(api), [process])
        return complete(api, PROMPT, 12)[0]
    finally:
        process.kill()


def alone(folder):
    text = plan("--ram", "60M")
    command, workers = run_section(text)
    check(command.startswith("llama-server ") and not workers, f"alone: {command}")
    said = host(command, folder)
    check(len(said) > 8, f"alone: it answers {said!r}")
    command, _ = run_section(plan("--ram", ram_for(1), "--disk", "nvme"))
    check(" --no-repack" in command, f"on disk: {command}")
    check(host(command, folder) == said, "on disk: the same words")
    return said


def new_swarm(folder, said, options, nodes, expected):
    """Started exactly as printed: serve, then what joins it."""
    with open(os.path.join(folder, "nodes.json"), "w") as file:
        json.dump(nodes, file)
    text = plan(*options, "--nodes", file.name)
    command, workers = run_section(text)
    for word in expected:
        check(word in text, f"new swarm {' '.join(options)}: says '{word}'")
    names = [re.search(r"--name (\S+)", worker).group(1) for worker in workers]
    check(names == ["one", "two"] and "linkcpp serve " in command, f"new swarm: {names} join: {command}")
    control, api = free_port(), free_port()
    command = command.replace(":8090", f":{control}", 1).replace(
        "linkcpp serve ", f"linkcpp serve --json --state {folder}/state --cache-dir {folder} --api 127.0.0.1:{api} ", 1)
    processes = [start("serve", command, folder)]
    try:
        def started():
            return re.search(r'"join":"LINKCPP_TOKEN=(\S+) linkcpp join \'([^\']+)\'', processes[0].text())
        token, url = wait("serve's join line", started, processes).groups()
        for name, worker in zip(names, workers):
            line = worker.replace("TOKEN=TOKEN", f"TOKEN={token}").replace(" URL ", f" '{url}' ")
            processes.append(start(name, line, folder, {"XDG_CACHE_HOME": os.path.join(folder, name)}))
        wait("ready workers", lambda: all("ready: " in process.text() for process in processes[1:]), processes)
        wait("llama-server", lambda: healthy(f"http://127.0.0.1:{api}"), processes)
        check(complete(f"http://127.0.0.1:{api}", PROMPT, 12)[0] == said, "new swarm: the same words as alone")
        time.sleep(1.5)  # backbones report once a second
        request = urllib.request.Request(url.split("#")[0] + "/api/status", headers={"Authorization": f"Bearer {token}"})
        status = json.load(urllib.request.urlopen(request, timeout=10))
        layers = sorted({entry["layer"] for node in status["nodes"] for entry in node["ready"]})
        wished = re.search(r"--layers (\S+)", workers[0]).group(1)
        start_layer, end_layer = (int(n) for n in (wished.split(":") if ":" in wished else (wished, int(wished) + 1)))
        check(layers == list(range(start_layer, end_layer)), f"new swarm: workers hold layers {layers}, planned {wished}")
        report = status["backbones"][0]["report"]
        remote = report["pairs"] - report["pairs_local"]
        check(remote > 0 and (report["pairs_local"] > 0) == (start_layer > 0), f"new swarm: {remote} pairs there, {report['pairs_local']} here")
    finally:
        for process in reversed(processes):
            process.stop()


def running_swarm(folder, said, listen, by_file):
    with Swarm(AUSTEN, listen=listen) as swarm:
        swarm.add_worker("--memory", "64M", name="runs")
        swarm.wait_covered()
        url = swarm.url if listen == "127.0.0.1" else swarm.event("started")["url"]
        token_file = os.path.join(folder, "token file")
        with open(token_file, "w") as file:
            file.write(swarm.token + "\n")
        how, env = (["--token-file", token_file], {}) if by_file else ([], {"LINKCPP_TOKEN": swarm.token})
        text = plan("--swarm", url, "--ram", "60M", "--force-nodes", *how, env=env)
        command, workers = run_section(text)
        check(url.split("#")[0] in command and "8090" not in text and "linkcpp serve" not in command and not workers,
              f"{url.split(':')[0]} swarm: {command}")
        check("before RAM" in text, "running swarm: --force-nodes is said to come before RAM")
        check(host(command, folder, env) == said, "running swarm: the same words as alone")
        swarm.wait(lambda: swarm.status()["nodes"][0]["pairs_computed"] > 0, 30, "the worker's report that it computed")

        usual = plan("--swarm", url, "--ram", "60M", *how, env=env)
        check("not needed" in usual and run_section(usual)[0].startswith("llama-server "), "running swarm: not needed without --force-nodes")


def another_model(folder):
    """A coordinator that serves something else is not joined."""
    other = os.path.join(folder, "other.gguf")
    subprocess.run([LINKCPP, "synth", "--like", "granite-1b-a400m", "--layers", "2", "--experts", "8", "--vocab", "512", "-o", other], check=True,
                   stdout=subprocess.DEVNULL)
    with Swarm(other) as swarm:
        swarm.add_worker("--memory", "256M", name="elsewhere")
        swarm.wait_covered()
        text = plan("--swarm", swarm.url, "--ram", "60M", "--force-nodes", env={"LINKCPP_TOKEN": swarm.token})
        command, workers = run_section(text)
        check("serves another model" in text and "linkcpp serve " in command and len(workers) == 1 and swarm.url not in command,
              f"another model: {command}")


def wrong_nodes(folder):
    said = plan("--nodes", "/dev/null", status=2)
    check("/dev/null: empty: there is no node in it" in said and len(said.strip().splitlines()) == 1, f"--nodes /dev/null: {said.strip()}")


with tempfile.TemporaryDirectory(prefix="linkcpp-plan-run-") as scratch:
    wrong_nodes(scratch)
    words = alone(scratch)
    here = {"here": True, "threads": 1, "read_gbs": 8}
    pair = [{"name": "one", "memory": "4MiB", **here}, {"name": "two", "memory": "1.5MiB", **here}, {"name": "tiny", "memory": "2KiB", **here}]
    new_swarm(scratch, words, ["--ram", ram_for(2)], pair, ["not counted, because one slice takes", "tiny (2.0 KiB)", "--memory 1536K"])
    more = [{"name": "one", "memory": "8MiB", **here}, {"name": "two", "memory": "8MiB", **here}]
    new_swarm(scratch, words, ["--ram", "60M", "--force-nodes"], more, ["before RAM"])
    less = [{"name": "one", "memory": "1MiB", **here}, {"name": "two", "memory": "1MiB", **here}]
    new_swarm(scratch, words, ["--ram", ram_for(1), "--disk", "0.01", "--force-nodes"], less, ["--no-repack", "on disk"])
    running_swarm(scratch, words, "127.0.0.1", True)
    running_swarm(scratch, words, "0.0.0.0", False)
    another_model(scratch)
print(f"{len(failures)} wrong")
sys.exit(1 if failures else 0)
