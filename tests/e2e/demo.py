#!/usr/bin/env python3
"""The main job in one go: a coordinator, three workers, stock llama-server; one worker dies in the middle.

Prints the text a small trained MoE model writes while all its experts live in other processes, kills a worker during a
second request, and compares both texts with those of the same llama.cpp alone.
"""

import json
import sys
import time
import urllib.request

from swarm import AUSTEN, HostAlone, Swarm

PROMPTS = ["It is a truth universally acknowledged,", "Mr. Darcy said unto them,"]
N_PREDICT = 120


def stream(api, prompt, on_piece):
    body = json.dumps({"model": "austen", "prompt": prompt, "max_tokens": N_PREDICT, "temperature": 0.7, "seed": 5,
                       "stream": True}).encode()
    request = urllib.request.Request(api + "/v1/completions", data=body, headers={"Content-Type": "application/json"})
    text = ""
    with urllib.request.urlopen(request, timeout=60) as reply:
        for line in reply:
            if not line.startswith(b"data: ") or b"[DONE]" in line:
                continue
            piece = json.loads(line[6:])["choices"][0].get("text", "")
            text += piece
            on_piece(piece)
    return text


def say(text=""):
    print(text, flush=True)


def coverage(swarm):
    status = swarm.status()
    say(f"  coverage: {status['slices_covered']} of {status['n_slices']} slices")
    for node in status["nodes"]:
        say(f"    {node['name']:9} {node['slices_ready']:3} slices, {node['pairs_computed']:6} (row, expert) pairs computed")
    for backbone in status["backbones"]:
        report = backbone["report"]
        say(f"    backbone  {report['pairs']} pairs asked, {report['pairs_local']} computed by itself, "
            f"{report['pairs_retried']} asked again, {report['round_trips']} round trips, {report['failed']} failed")


def show(piece):
    sys.stdout.write(piece)
    sys.stdout.flush()


def main():
    begin = time.monotonic()
    say("llama.cpp alone (for comparison only)")
    with HostAlone(AUSTEN) as alone:
        expected = [stream(alone.api, prompt, lambda piece: None) for prompt in PROMPTS]

    say("starting a coordinator with a stock llama-server, and three workers")
    with Swarm(AUSTEN, backbone=True, local="allow", serve_args=["--wait-coverage", "30"]) as swarm:
        # 64 slices of about 120 kB: each worker gives room for two thirds of them, so every slice has two holders.
        for _ in range(3):
            swarm.add_worker("--memory", "6M")
        swarm.wait_covered()
        swarm.wait_api()
        say(f"  join line: {swarm.event('started')['join'].replace(swarm.token, '…')}")
        coverage(swarm)

        say(f"\n> {PROMPTS[0]}")
        texts = [stream(swarm.api, PROMPTS[0], show)]
        say("\n")
        time.sleep(1.2)  # the backbone reports once a second
        coverage(swarm)

        say(f"\n> {PROMPTS[1]}      (worker 2 is killed on the way)")
        victim = swarm.workers[1]
        pieces = 0

        def show_and_kill(piece):
            nonlocal pieces
            pieces += 1
            show(piece)
            if pieces == N_PREDICT // 3:
                victim.kill()
                show(" [kill -9 worker2] ")

        texts.append(stream(swarm.api, PROMPTS[1], show_and_kill))
        say("\n")
        time.sleep(1.2)
        coverage(swarm)
        assert not victim.alive()

    same = [ours == alone for ours, alone in zip(texts, expected)]
    say()
    for prompt, equal in zip(PROMPTS, same):
        say(f"  {'same text as' if equal else 'DIFFERENT FROM'} llama.cpp alone: {prompt!r}")
    say(f"done in {time.monotonic() - begin:.0f} s")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
