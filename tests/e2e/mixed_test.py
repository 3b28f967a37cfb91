#!/usr/bin/env python3
"""Two workers of different kernel classes behind one stock backbone, against the host alone: how far are the logits?

Each pair of workers shares the experts of every layer in halves. Figures by the stock llama-perplexity
--kl-divergence over more than 1,000 tokens, and by the logits themselves. With two workers of the host's own class the
logits are the host's, bit for bit; that is the control.

What is asserted, and why (docs/matrix.md, "Two kinds of worker"):
- both turn rows into Q8_K, so one MoE layer's output is off by at most NMSE 2e-5 (cosine 0.99999, what the matrix holds
  any two such backends to); each of the model's n layers adds its share to the residual stream: logits off by at most
  n x 2e-5 of their power;
- to second order the KL divergence is half the variance of the logits' change under the host's own distribution: its
  mean at most half of n x 2e-5 times the logits' mean square;
- the top token agrees but where the host's best two are closer than four such changes (root mean square).
"""

import os
import pathlib
import re
import sys
import tempfile
from array import array

from swarm import AUSTEN, AUSTEN_TEXT, BIN, Process, Swarm, environment, logits, run

VARIANTS = pathlib.Path("/usr/lib/x86_64-linux-gnu/ggml/backends0")
ARM64_WORKER = BIN.parent.parent / "arm64/bin/linkcpp-expert-worker"
ARM64_ROOT = "/opt/arm64"
N_CTX, N_CHUNKS = 256, 10  # the second half of each chunk is scored: 127 tokens
N_LAYERS = 4
LAYER_NMSE = 2e-5
N_PROMPT, N_STEPS = 64, 32


def variant(name):
    return ["--backend", VARIANTS / f"libggml-cpu-{name}.so"]


class Arm64Swarm(Swarm):
    """A worker built for arm64 under qemu-user; ggml there picks its kernels by what the emulator says it is."""

    def add_arm64(self, cpu, *args):
        self.n_workers += 1
        name = f"arm64-{cpu}"
        argv = ["qemu-aarch64", "-L", ARM64_ROOT, "-cpu", cpu, ARM64_WORKER, self.url, "--name", name, "--cache",
                self.folder / f"cache-{name}", "--device", "cpu", "--threads", "1", *args]
        worker = Process(name, argv, environment({"LINKCPP_TOKEN": self.token}), self.folder)
        self.workers.append(worker)


def kernel_classes(status):
    return sorted({node["kernel_class"] for node in status["nodes"]})


def perplexity(base, env, *more):
    return run(["llama-perplexity", "-m", AUSTEN, "-f", AUSTEN_TEXT, "-c", N_CTX, "--chunks", N_CHUNKS, "-t", "2",
                "--kl-divergence-base", base, *more], env=env).stdout


def number(pattern, text):
    found = re.search(pattern + r" +(-?[\d.]+)", text)
    assert found, f"no {pattern} in:\n{text[-3000:]}"
    return float(found.group(1))


def read_floats(path):
    values = array("f")
    values.frombytes(path.read_bytes())
    return values


def nmse(reference, values):
    assert len(reference) == len(values) > 0
    return sum((a - b) ** 2 for a, b in zip(reference, values)) / sum(a * a for a in reference)


def close_calls(alone, n_positions, change):
    """The share of positions where the host's best two logits are closer than four times `change`."""
    n_vocab = len(alone) // n_positions
    rows = [sorted(alone[p * n_vocab:(p + 1) * n_vocab])[-2:] for p in range(n_positions)]
    return sum(best - second < 4 * change for second, best in rows) / n_positions


def mixture(folder, name, first, second, base, alone):
    """first, second: worker options; ("arm64", CPU) for a worker under qemu."""
    with Arm64Swarm(AUSTEN) as swarm:
        for who, experts in ((first, "0:8"), (second, "8:16")):
            if who and who[0] == "arm64":
                swarm.add_arm64(who[1], "--experts", experts)
            else:
                swarm.add_worker("--experts", experts, *who)
        swarm.wait_covered(120)
        classes = kernel_classes(swarm.status())
        ours = folder / "ours.bin"
        logits(AUSTEN, ours, swarm.host_env(), N_PROMPT, N_STEPS)
        said = perplexity(base, swarm.host_env(), "--kl-divergence")
    mean, largest, top = number("Mean +KLD:", said), number("Maximum KLD:", said), number("Same top p:", said)
    off = nmse(alone, read_floats(ours))
    n_tokens = N_CHUNKS * (N_CTX // 2 - 1)
    print(f"{name}: logits NMSE {off:.2e}; over {n_tokens} tokens mean KL divergence {mean:.2e}, largest {largest:.2e}, "
          f"same top token {top:.3f} %\n    " + "\n    ".join(classes), flush=True)
    return classes, off, mean, largest, top


def main():
    n_tokens = N_CHUNKS * (N_CTX // 2 - 1)
    assert n_tokens > 1000
    with tempfile.TemporaryDirectory(prefix="linkcpp-mixed-") as scratch:
        folder = pathlib.Path(scratch)
        base, alone_path = folder / "base.kld", folder / "alone.bin"
        perplexity(base, environment())
        logits(AUSTEN, alone_path, environment(), N_PROMPT, N_STEPS)
        alone = read_floats(alone_path)
        mean_square = sum(a * a for a in alone) / len(alone)
        most_nmse = N_LAYERS * LAYER_NMSE
        close = close_calls(alone, N_PROMPT + N_STEPS, (most_nmse * mean_square) ** 0.5)
        most_kl = most_nmse * mean_square / 2
        print(f"host alone: logits' mean square {mean_square:.2f}; bounds: NMSE {most_nmse:.1e}, mean KL divergence "
              f"{most_kl:.1e}, same top token {100 * (1 - close):.1f} %")
        control = mixture(folder, "two of the host's class", [], [], base, alone)
        assert len(control[0]) == 1 and control[1] == 0, "two workers of the host's class are not bit-identical to it"
        pairs = [("AVX2 and x86-64 baseline", variant("haswell"), variant("x64")),
                 ("the host's class and x86-64 baseline", [], variant("x64"))]
        if ARM64_WORKER.exists():
            pairs += [("the host's class and arm64 NEON", [], ("arm64", "cortex-a53")),
                      ("AVX2 and arm64 dotprod+i8mm", variant("haswell"), ("arm64", "neoverse-n2"))]
        elif os.path.isdir(ARM64_ROOT):
            sys.exit(f"{ARM64_WORKER} is missing: ./dev build arm64 makes it")
        for name, first, second in pairs:
            classes, off, mean, _, top = mixture(folder, name, first, second, base, alone)
            assert len(classes) == 2, f"{name}: kernel classes {classes}"
            assert off <= most_nmse, f"{name}: logits NMSE {off} above {most_nmse}"
            # The base file holds 16-bit log probabilities: the control's largest figure is that file's own error.
            assert mean <= most_kl + control[3], f"{name}: mean KL divergence {mean} above {most_kl}"
            assert top >= 100 * (1 - close), f"{name}: same top token {top} % below {100 * (1 - close)} %"


if __name__ == "__main__":
    main()
