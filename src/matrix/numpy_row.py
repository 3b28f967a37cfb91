"""One row of `linkcpp matrix`: the job computed with numpy in float32, weights dequantised by the gguf package.

usage: python3 -c SCRIPT JOB ANSWER        (format of both: docs/matrix.md)

Exit status 3 when a package is missing. Shares nothing with ggml's kernels or with linkcpp's oracle.
"""
import math
import struct
import sys
import time

try:
    import gguf
    import numpy as np
    from gguf import quants
except ImportError as error:
    print(f"python3 has no package {error.name} (Debian: python3-numpy, python3-gguf)", file=sys.stderr)
    sys.exit(3)

f32 = np.float32


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        self.at += size
        if self.at > len(self.data):
            sys.exit("the job file is cut short")
        return self.data[self.at - size:self.at]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def array(self, kind):
        count = struct.unpack("<Q", self.take(8))[0]
        return np.frombuffer(self.take(count * np.dtype(kind).itemsize), dtype=kind)


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def erf(v):
    return np.vectorize(math.erf, otypes=[f32])(v)


def gelu(v):
    return f32(0.5) * v * (1 + np.tanh(f32(math.sqrt(2 / math.pi)) * v * (1 + f32(0.044715) * v * v)))


UNARY = {
    0: lambda v: np.maximum(v, 0), 1: lambda v: v * sigmoid(v), 2: gelu, 3: lambda v: v * sigmoid(f32(1.702) * v),
    4: lambda v: f32(0.5) * v * (1 + erf(v * f32(math.sqrt(0.5)))), 5: sigmoid, 6: np.tanh, 7: np.negative, 8: np.exp,
    9: lambda v: np.logaddexp(f32(0), v), 10: np.abs, 11: lambda v: np.where(v > 0, v, np.expm1(v)),
    12: lambda v: v * np.clip((v + 3) / f32(6), 0, 1), 13: lambda v: np.clip((v + 3) / f32(6), 0, 1),
    14: lambda v: (v > 0).astype(f32), 15: np.sign,
}


def glu(fn, a, b, alpha, limit):
    if fn == 3:  # swiglu_oai
        a, b = np.minimum(a, f32(limit)), np.clip(b, f32(-limit), f32(limit))
        return a * sigmoid(f32(alpha) * a) * (b + 1)
    if fn == 6:  # swiglu, both sides limited
        a, b = np.minimum(a, f32(limit)), np.clip(b, f32(-limit), f32(limit))
        return a * sigmoid(a) * b
    return UNARY[{0: 0, 1: 2, 2: 1, 4: 4, 5: 3}[fn]](a) * b


def run(steps, slot, x):
    values = [x]
    for op, projection, fn, swapped, a, b, p0, p1 in steps:
        v = values[a]
        if op == 1:
            v = v @ slot[projection][0].T
        elif op == 2:
            v = v + slot[projection][1]
        elif op == 3:
            v = v * slot[projection][2]
        elif op == 4 and a == b:
            first, second = np.split(v, 2, axis=1)
            v = glu(fn, second, first, p0, p1) if swapped else glu(fn, first, second, p0, p1)
        elif op == 4:
            v = glu(fn, v, values[b], p0, p1)
        elif op == 5:
            v = UNARY[fn](v)
        elif op == 6:
            v = v * v
        elif op == 7:
            v = np.clip(v, f32(p0), f32(p1))
        elif op == 8:
            v = v * values[b]
        elif op == 9:
            v = v + values[b]
        elif op == 10:
            v = v * f32(p0) + f32(p1)
        elif op == 11:
            v = np.split(v, 2, axis=1)[fn]
        values.append(v.astype(f32, copy=False))
    return values[-1]


def passage(steps, slots, rows, pairs, n_out, order, sizes):
    """Every dispatch computes its pairs expert by expert, as a worker does."""
    y = np.empty((len(order), n_out), dtype=f32)
    at = 0
    for size in sizes:
        places = order[at:at + size]
        chosen = pairs[places]
        for slot in np.unique(chosen[:, 1]):
            mine = chosen[:, 1] == slot
            y[places[mine]] = run(steps, slots[slot], rows[chosen[mine, 0]])
        at += size
    return y


def main():
    with open(sys.argv[1], "rb") as file:
        job = Reader(file.read())
    if job.take(8) != b"LCMATRX1":
        sys.exit("not a job file")
    answers = []
    for _ in range(job.u32()):
        recipe = job.array(np.uint8).tobytes()
        steps = [struct.unpack("<6B2f", recipe[i:i + 14]) for i in range(0, len(recipe), 14)]
        n_in, n_out = job.u32(), job.u32()
        shapes = [[job.u32() for _ in range(6)] for _ in range(4)]
        slots = []
        for _ in range(job.u32()):
            slot = {}
            for projection, (present, kind, k, m, _, _) in enumerate(shapes):
                if not present:
                    continue
                weight, bias, scale = job.array(np.uint8), job.array(f32), job.array(f32)
                weight = quants.dequantize(weight.reshape(m, -1), gguf.GGMLQuantizationType(kind))
                slot[projection] = weight.reshape(m, k).astype(f32), bias, scale
            slots.append(slot)
        rows = job.array(f32).reshape(-1, n_in)
        n_pairs = job.u32()
        pairs = np.frombuffer(job.take(8 * n_pairs), dtype=np.uint32).reshape(-1, 2)
        values, seconds = [], []
        for _ in range(3):
            order, sizes = job.array(np.uint32), job.array(np.uint32)
            start = time.monotonic()
            values.append(passage(steps, slots, rows, pairs, n_out, order, sizes))
            seconds.append(time.monotonic() - start)
        answers.append((values, seconds[0]))

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def numbers(values):
        return struct.pack("<Q", values.size) + values.tobytes()

    from importlib.metadata import PackageNotFoundError, version
    try:
        package = version("gguf")
    except PackageNotFoundError:
        package = "?"
    with open(sys.argv[2], "wb") as out:
        out.write(b"LCMANSW1" + text(f"numpy-{np.__version__}/gguf-{package}") + text("numpy") + text(""))
        out.write(struct.pack("<I", len(answers)))
        for values, seconds in answers:
            out.write(text("") + b"".join(numbers(v) for v in values) + struct.pack("<d", seconds))


main()
