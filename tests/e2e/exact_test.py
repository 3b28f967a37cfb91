#!/usr/bin/env python3
"""Quantised models, experts over three workers: bit-identical to the host alone with its default options.

The host alone keeps experts in its repack buffers; workers must choose what it would have chosen. austen-moe in
Q4_K_M as shipped, and toys of other architectures quantised by the stock llama-quantize.
"""

import pathlib
import re
import sys
import tempfile

from swarm import AUSTEN, AUSTEN_TEXT, HostAlone, Swarm, environment, logits, run

ARCHS = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests/test-llama-archs"
TOYS = ["qwen3moe", "gpt-oss", "qwen35moe", "mimo2"]  # separate, with biases, merged gate_up, plain
TYPES = ["Q4_K_M", "Q4_0", "Q8_0"]


def same_logits(model, folder, n_prompt=48, n_steps=24):
    alone, ours = folder / "alone.bin", folder / "ours.bin"
    logits(model, alone, environment(), n_prompt, n_steps)
    with Swarm(model) as swarm:
        for _ in range(3):
            swarm.add_worker("--memory", "64M")
        swarm.wait_covered()
        logits(model, ours, swarm.host_env(), n_prompt, n_steps)
        report = swarm.status()
    assert alone.stat().st_size > 0 and alone.read_bytes() == ours.read_bytes(), f"{model.name}: logits differ"
    return report


def perplexity(env, n_chunks):
    said = run(["llama-perplexity", "-m", AUSTEN, "-f", AUSTEN_TEXT, "-c", "256", "--chunks", n_chunks, "-t", "2"], env=env).stdout
    found = re.findall(r"(?:\[\d+\][\d.]+|Final estimate: PPL = .*)", said)
    assert any(f.startswith("Final") for f in found), said[-2000:]
    return found


def main():
    full = "--full" in sys.argv  # the whole held-out text
    with tempfile.TemporaryDirectory(prefix="linkcpp-exact-") as scratch:
        folder = pathlib.Path(scratch)
        same_logits(AUSTEN, folder)
        print("austen-moe-q4km: logits identical (48 + 24 positions)", flush=True)

        models = folder / "models"
        models.mkdir()
        run([ARCHS, "-o", models, "-s", "1"])
        for toy in TOYS:
            for kind in TYPES:
                model = folder / f"{toy}-{kind}.gguf"
                run(["llama-quantize", models / f"{toy}-moe.gguf", model, kind])
                same_logits(model, folder, 24, 8)
                print(f"{toy} {kind}: logits identical", flush=True)
                model.unlink()

        prompts = ["It is a truth universally acknowledged,", "And it came to pass in those days"]
        with HostAlone(AUSTEN) as alone:
            expected = [alone.complete(p, 200) for p in prompts]
        with Swarm(AUSTEN, backbone=True, local="deny", serve_args=["--wait-coverage", "30"]) as swarm:
            for _ in range(3):
                swarm.add_worker("--memory", "4M")
            swarm.wait_covered()
            swarm.wait_api()
            for prompt, (text, tokens) in zip(prompts, expected):
                ours_text, ours_tokens = swarm.complete(prompt, 200)
                assert len(tokens) >= 100, f"only {len(tokens)} tokens to compare"
                assert ours_tokens == tokens and ours_text == text, f"{prompt!r}: {ours_text!r} is not {text!r}"
                print(f"greedy text of {len(tokens)} tokens identical: {prompt!r}", flush=True)

        n_chunks = "-1" if full else "12"
        alone = perplexity(environment(), n_chunks)
        with Swarm(AUSTEN) as swarm:
            for _ in range(3):
                swarm.add_worker("--memory", "4M")
            swarm.wait_covered()
            ours = perplexity(swarm.host_env(), n_chunks)
        assert alone == ours, f"perplexity differs: {alone} {ours}"
        print(f"perplexity identical in all printed digits: {ours[-1]}", flush=True)


if __name__ == "__main__":
    main()
