// Weight blocks to float32, one small function per type, written from the format's definition.
//
// Float arithmetic in the format's reference order (scale times sub-scale first, then times the quant, then minus the
// minimum), so the result is bit-equal to the reference dequantisation; the folder is compiled without fused
// multiply-add for that. tests/equivalence/oracle_python_test.py compares every type with Python's gguf package.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "oracle/weight_type.h"

namespace linkcpp {

// out.size() elements from `bytes`. kRefused: a part of a block, or sizes that do not fit each other.
Result<void> Dequantise(const WeightLayout& layout, std::span<const std::byte> bytes, std::span<float> out);

namespace blocks {  // one block each: `in` has block_bytes, `out` block_elements

using Bytes = const std::uint8_t*;
void F32(Bytes in, float* out);
void F16(Bytes in, float* out);
void Bf16(Bytes in, float* out);
void Q4_0(Bytes in, float* out);
void Q4_1(Bytes in, float* out);
void Q5_0(Bytes in, float* out);
void Q5_1(Bytes in, float* out);
void Q8_0(Bytes in, float* out);
void Iq4Nl(Bytes in, float* out);
void Mxfp4(Bytes in, float* out);
void Q2_K(Bytes in, float* out);
void Q3_K(Bytes in, float* out);
void Q4_K(Bytes in, float* out);
void Q5_K(Bytes in, float* out);
void Q6_K(Bytes in, float* out);
void Iq4Xs(Bytes in, float* out);

extern const std::int8_t kIq4Values[16];  // IQ4_NL's and IQ4_XS's uneven 4-bit levels

}  // namespace blocks

}  // namespace linkcpp
