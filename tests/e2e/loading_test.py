#!/usr/bin/env python3
"""Free when covered: a backbone whose experts live on workers neither reads nor holds expert bytes.

A model of the reference's shape is made, its experts are put on a worker, the page cache is emptied of the file, and
`linkcpp serve` starts stock llama-server on it. After loading and decoding, the expert bytes of the file that are in the
page cache, and the growth of the server's resident memory over its own backbone, must stay below 1 % of the experts.

  tests/e2e/loading_test.py [LAYERS=4] [EXPERTS=64]
"""

import ctypes
import mmap
import os
import pathlib
import re
import sys
import tempfile
import time

from swarm import BIN, Swarm, run

LIBC = ctypes.CDLL(None, use_errno=True)


def drop_cache(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_bytes(path, ranges):
    """Bytes of the file's ranges whose pages are in the page cache (mincore)."""
    size = os.path.getsize(path)
    page = mmap.PAGESIZE
    with open(path, "rb") as file:
        LIBC.mmap.restype = ctypes.c_void_p
        LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        assert address not in (None, ctypes.c_void_p(-1).value)
        n_pages = (size + page - 1) // page
        states = (ctypes.c_ubyte * n_pages)()
        LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        assert LIBC.mincore(address, size, states) == 0
        LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        LIBC.munmap(address, size)
    flags = bytes(states)
    total = 0
    for begin, end in ranges:
        first, last = (begin + page - 1) // page, end // page  # whole pages inside
        total += sum(1 for state in flags[first:last] if state & 1) * page
    return total


def children(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in text]


def status_kib(pid, field):
    return int(re.search(rf"{field}:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))


def mapped_kib(pid, path):
    """Resident KiB of the process's mappings of this file."""
    total, ours = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def main():
    n_layers = sys.argv[1] if len(sys.argv) > 1 else "4"
    n_experts = sys.argv[2] if len(sys.argv) > 2 else "64"
    import gguf
    with tempfile.TemporaryDirectory(prefix="linkcpp-loading-", dir="/var/tmp") as scratch:
        model = pathlib.Path(scratch) / "m.gguf"
        run([BIN / "linkcpp", "synth", "--like", "qwen3.5-122b", "--layers", n_layers, "--experts", n_experts, "-o", model])
        ranges, backbone = [], 0
        for tensor in gguf.GGUFReader(model).tensors:
            if re.search(r"_exps\.", tensor.name):
                ranges.append((int(tensor.data_offset), int(tensor.data_offset + tensor.n_bytes)))
            else:
                backbone += int(tensor.n_bytes)
        experts = sum(end - begin for begin, end in ranges)
        print(f"experts {experts / 1e6:.0f} MB, backbone {backbone / 1e6:.0f} MB", flush=True)

        # A first life fills the worker's cache and the manifest; the second is measured.
        folder = pathlib.Path(scratch) / "run"
        folder.mkdir()
        cache = folder / "slices"
        with Swarm(model, folder=folder) as swarm:
            swarm.add_worker("--memory", "8G", cache=cache, threads=2)
            swarm.wait_covered(300)
        drop_cache(model)
        assert cached_bytes(model, ranges) < experts / 100, "the page cache could not be emptied"
        with Swarm(model, folder=folder, backbone=True, local="deny", serve_args=["--wait-coverage", "120"],
                   host_args=["-c", "512"]) as swarm:
            swarm.add_worker("--memory", "8G", cache=cache, threads=2)
            swarm.wait_covered(300)
            swarm.wait_api()
            _, tokens = swarm.complete("once upon a time", 16)
            assert len(tokens) > 0
            server = next(p for p in children(swarm.serve.pid)
                          if "llama-server" in pathlib.Path(f"/proc/{p}/cmdline").read_text())
            cached = cached_bytes(model, ranges)
            mapped = mapped_kib(server, model) << 10
            resident = status_kib(server, "VmHWM") << 10
            read = int(re.search(r"read_bytes: (\d+)", pathlib.Path(f"/proc/{server}/io").read_text()).group(1))
            time.sleep(1.2)
            report = swarm.status()["backbones"][0]["report"]
        print(f"after loading and {len(tokens)} tokens: {cached / 1e6:.1f} MB of experts in the page cache "
              f"({100 * cached / experts:.2f} %), {mapped / 1e6:.1f} MB of the file resident in llama-server, "
              f"peak resident {resident / 1e6:.1f} MB, read from disk {read / 1e6:.1f} MB; "
              f"{report['pairs']} pairs on workers, {report['pairs_local']} here")
        assert report["pairs"] > 0 and report["pairs_local"] == 0
        assert cached <= experts / 100, f"{cached} bytes of experts are in the page cache"
        assert mapped <= backbone + experts / 100, f"{mapped} bytes of the file are resident"
        assert read <= backbone * 1.05 + experts / 100 + 96e6, f"{read} bytes were read"  # 96 MB: programs and libraries, LLVM among them


if __name__ == "__main__":
    main()
