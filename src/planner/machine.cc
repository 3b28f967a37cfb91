#include "planner/machine.h"

namespace linkcpp {

std::uint64_t FastDevice::RefusedBytes(const LayerSizes& layer) const {
  std::uint64_t sum = 0;
  for (const PlainMatrix& matrix : layer.matrices) sum += Takes(matrix.kind) ? 0 : matrix.bytes;
  return sum;
}

std::uint64_t FastDevice::RefusedOutputBytes(const ModelSizes& sizes) const {
  return Takes(sizes.output.kind) ? 0 : sizes.output.bytes;
}

}  // namespace linkcpp
