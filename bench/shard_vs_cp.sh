#!/usr/bin/env bash
# How fast is cutting a shard, beside a plain file copy of the same bytes on the same disk?
#
#   bench/shard_vs_cp.sh [GB] [FOLDER]      (default: 4 GB in $TMPDIR; needs twice that much room)
#
# Makes a model of the reference shape (256 experts of 3072 x 1024, Q4_K), cuts half of its experts (every other run of
# 16, so that pieces are not one long copy) and copies the resulting file with cp, in turns, five times each, each
# with a sync at its end. Prints the medians, their ratio (1.00: as fast as cp) and the cutter's peak memory.
# The manifest is computed before: it is made once a model.
set -euo pipefail

gigabytes=${1:-4}
folder=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/shard_vs_cp.XXXXXX")
trap 'rm -rf "$folder"' EXIT
command -v linkcpp >/dev/null || { echo "linkcpp is not on the PATH: ./dev run bench/shard_vs_cp.sh" >&2; exit 2; }

python3 - "$folder/model.gguf" "$gigabytes" <<'PYTHON'
import os, struct, sys
path, gigabytes = sys.argv[1], float(sys.argv[2])
text = lambda s: struct.pack("<Q", len(s)) + s.encode()
rows, width, experts = 1024, 3072, 256
tensor_bytes = rows * width // 256 * 144 * experts
layers = max(1, round(gigabytes * 1e9 / (3 * tensor_bytes)))
keys = [text("general.architecture") + struct.pack("<I", 8) + text("qwen35moe")]
shapes = [(f"blk.{layer}.ffn_{name}_exps.weight", (width, rows) if name != "down" else (rows, width))
          for layer in range(layers) for name in ("gate", "up", "down")]
head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys)) + b"".join(keys)
for i, (name, (a, b)) in enumerate(shapes):
    head += text(name) + struct.pack("<IQQQIQ", 3, a, b, experts, 12, i * tensor_bytes)
head += bytes(-len(head) % 32)
with open(path, "wb") as out:
    out.write(head)
    block = os.urandom(8 << 20)
    left = len(shapes) * tensor_bytes
    while left > 0:
        out.write(block[:left])
        left -= len(block)
PYTHON

linkcpp manifest -m "$folder/model.gguf" >/dev/null
experts=0:16,32:48,64:80,96:112,128:144,160:176,192:208,224:240
cut_shard() { linkcpp shard -m "$folder/model.gguf" --experts "$experts" -o "$folder/shard.gguf" "$@"; }
cut_shard >/dev/null
size=$(stat -c %s "$folder/shard.gguf")
sync

seconds() {
  local start=$EPOCHREALTIME
  "$@" >/dev/null
  sync -f "$folder"
  awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}
median() { sort -n | sed -n 3p; }
for turn in 1 2 3 4 5; do
  rm -f "$folder/copy.gguf"; sync -f "$folder"
  seconds cp --reflink=never "$folder/shard.gguf" "$folder/copy.gguf" >>"$folder/cp"
  rm -f "$folder/copy.gguf" "$folder/next.gguf"; sync -f "$folder"
  seconds linkcpp shard -m "$folder/model.gguf" --experts "$experts" -o "$folder/next.gguf" >>"$folder/cut"
  rm -f "$folder/next.gguf"
done
peak_kb=$(python3 - "$folder" "$experts" <<'PYTHON'
import resource, subprocess, sys
folder, experts = sys.argv[1:]
subprocess.run(["linkcpp", "shard", "-m", folder + "/model.gguf", "--experts", experts, "-o", folder + "/next.gguf"],
               check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
PYTHON
)
python3 - "$size" "$(median <"$folder/cp")" "$(median <"$folder/cut")" "$peak_kb" <<'PYTHON'
import sys
size, copy, cut, peak = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
print(f"shard of {size / 1e9:.2f} GB: cp {size / copy / 1e6:.0f} MB/s, linkcpp shard {size / cut / 1e6:.0f} MB/s, "
      f"ratio {copy / cut:.2f}, peak memory {peak / 1024:.1f} MB")
PYTHON
