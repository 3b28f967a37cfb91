#!/usr/bin/env bash
# An include that climbs out of its folder would get past the compiler's guard (cmake/folder.cmake).
set -euo pipefail
cd "$(dirname "$0")/.."
if grep -rnE '#include "\.\./' src tests bench fuzz --include='*.h' --include='*.cc'; then
  echo "lint: includes must not begin with ../: name the folder" >&2
  exit 1
fi
