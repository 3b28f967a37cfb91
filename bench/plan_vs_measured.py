#!/usr/bin/env python3
"""What `linkcpp plan` predicts for decode and prefill on this machine, against stock llama-bench: alone, and with workers on loopback.

  LINKCPP_BIN=build/release/bin bench/plan_vs_measured.py MODEL.gguf [--runs 5] [--tokens 64] [--workers 1,2,3]
      [--prompt 512] [--repeats 2]
      [--delays 0,1,5] [--realtime] [--json FILE]

--tokens: few enough that the context stays short, since "empty context" is what is compared; a small model takes more
--repeats instead, of which the first is left out. Before each measurement the planner calibrates itself for some
seconds; it is given the memory, the number of threads of each worker, and what `delay_proxy` adds, as a ping (round
trip) and a flood (Mbit/s) through such a proxy measure it, and nothing else. A delay is added to every byte, each way
(as netem adds it on loopback), so 5 ms are a round trip of 10. Prediction and measurement take turns, and medians are
compared, because machines are noisy. --realtime runs everything at a real-time priority, so that other work on the
machine does not count; it needs the right to do so.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))
from swarm import BIN, Process, Swarm, environment, free_port, run  # noqa: E402

THREADS = os.cpu_count()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--workers", default="0,1,2,3")
    parser.add_argument("--delays", default="0,1,5")
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--json")
    return parser.parse_args()


def plan(model, *options):
    if "--ram-rate" not in options:
        options = (*options, "--measure")
    return json.loads(run([BIN / "linkcpp", "plan", "-m", model, "--vram", "none", "--ctx", "4096", "--json", *options],
                          env=environment()).stdout)


def measured(model, env, n_tokens, n_prompt, n_repeats):
    """Tokens a second, decode and prefill, once the experts' pages are mapped: a first run over a mapped file takes a fault for
    each page (20.5 tok/s in the first 64 tokens of the 122B's shape, 23.3 to 24.7 in the next four times 64), and is left out."""
    said = run(["llama-bench", "-m", model, "-p", n_prompt, "-n", n_tokens, "-t", THREADS, "-r", n_repeats, "-o", "json"], env=env).stdout
    rows = json.loads(said[said.index("[\n"):said.rindex("]") + 1])
    return tuple(statistics.mean(next(row["samples_ts"] for row in rows if row[which] > 0)[1:]) for which in ("n_gen", "n_prompt"))


class Delay:
    """Workers' way to the backbone: straight, or through a proxy. `round_trip_ms` of a small message, beyond loopback's own."""

    def __init__(self, folder, delay_ms):
        self.port = free_port()  # where the backbone listens
        self.processes = []
        self.variables = {"LINKCPP_DATA_LISTEN": f"127.0.0.1:{self.port}"}
        self.round_trip_ms, self.mbits = 0, None
        if delay_ms == 0:
            return
        entry, echo, ping, sink, flood = (free_port() for _ in range(5))
        for name, *words in (("proxy", entry, self.port, delay_ms), ("echo", "echo", echo), ("ping", ping, echo, delay_ms),
                             ("sink", "sink", sink), ("flood", flood, sink, delay_ms)):
            self.processes.append(Process(name, [BIN / "delay_proxy", *words], environment(), folder))
        time.sleep(0.3)
        self.variables["LINKCPP_DATA_ADVERTISE"] = f"127.0.0.1:{entry}"

        def ask(what, port):
            return statistics.median(float(run([BIN / "delay_proxy", what, port], env=environment()).stdout) for _ in range(3))
        self.round_trip_ms = max(0.0, ask("ping", ping) - ask("ping", echo))
        self.mbits = ask("flood", flood)

    def link(self):
        return {"rtt_ms": self.round_trip_ms, **({"up_mbits": self.mbits, "down_mbits": self.mbits} if self.mbits else {})}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()


class Case:
    """Predictions and measurements of decode and of prefill, in turns."""

    def __init__(self, title):
        self.title, self.predictions, self.measurements = title, [], []

    def add(self, ours, measurement):
        self.predictions.append(tuple(ours[what]["tokens_per_second"] for what in ("decode", "prefill")))
        self.measurements.append(measurement)

    def report(self, rows, more=""):
        for i, what in enumerate(("decode", "prefill")):
            predictions, measurements = ([pair[i] for pair in pairs] for pairs in (self.predictions, self.measurements))
            predicted, real = statistics.median(predictions), statistics.median(measurements)
            ratio = predicted / real
            inside = abs(ratio - 1) <= 0.15
            print(f"{self.title + ', ' + what:36} predicted {predicted:8.2f} ({min(predictions):.2f} to {max(predictions):.2f})  measured {real:8.2f} "
                  f"({min(measurements):.2f} to {max(measurements):.2f})  ratio {ratio:.3f}{'' if inside else '  OUTSIDE 15 %'}{more}", flush=True)
            rows.append({"case": self.title, "what": what, "predicted": predicted, "measured": real, "ratio": ratio, "inside": inside})


def main():
    asked = arguments()
    if asked.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    rows = []
    alone = plan(asked.model, "--ram-rate", "10")
    experts = alone["expert_bytes"]
    n_experts = max(layer["experts"] for layer in json.loads(run([BIN / "linkcpp", "manifest", "-m", asked.model, "--json"], env=environment()).stdout)["layers"])
    for workers in (int(n) for n in asked.workers.split(",")):
        if workers == 0:
            case = Case("alone")
            env = environment()
            measured(asked.model, env, 4, 16, 2)  # the page cache
            for _ in range(asked.runs):
                case.add(plan(asked.model), measured(asked.model, env, asked.tokens, asked.prompt, asked.repeats))
            case.report(rows)
            continue
        threads = max(1, THREADS // workers)
        with Swarm(asked.model) as swarm:
            for i in range(workers):
                which = ",".join(str(e) for e in range(i, n_experts, workers))
                swarm.add_worker("--memory", f"{(experts >> 20) + 512}M", "--experts", which, threads=threads)
            swarm.wait_covered(600)
            for delay_ms in (float(d) for d in asked.delays.split(",")):
                with Delay(swarm.folder, delay_ms) as delay:
                    env = swarm.host_env(**delay.variables)
                    nodes = [{"name": f"worker{i + 1}", "memory": f"{experts}", "here": True, "threads": threads,
                              **delay.link()} for i in range(workers)]
                    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                        json.dump(nodes, file)
                        file.flush()
                        measured(asked.model, env, 4, 16, 2)
                        case = Case(f"{workers} worker{'s' if workers > 1 else ''}, {delay_ms:g} ms each way")
                        for _ in range(asked.runs):
                            ours = plan(asked.model, "--nodes", file.name, "--force-nodes")
                            assert all(tier["tier"] == "swarm" for tier in ours["experts"] if tier["bytes"]), ours["experts"]
                            case.add(ours, measured(asked.model, env, asked.tokens, asked.prompt, asked.repeats))
                case.report(rows, f"  ({delay.round_trip_ms:.2f} ms round trip added)")
    print(f"{sum(row['inside'] for row in rows)} of {len(rows)} within 15 %")
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
