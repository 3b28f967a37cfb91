// Every tensor of a model of a given geometry: names and shapes as llama.cpp's loader wants them, and the spread of
// values that keeps activations near one through the network. No types yet: quant_mix.h chooses those.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "synth/fill.h"
#include "synth/geometry.h"

namespace linkcpp {

struct TensorShape {
  std::string name;
  std::array<std::uint64_t, 4> ne{1, 1, 1, 1};
  int n_dims = 1;
  Fill fill;
};

bool IsFullAttention(const Geometry& geometry, std::uint32_t layer);  // the layer has attn_q, attn_k, attn_v
bool IsMoeLayer(const Geometry& geometry, std::uint32_t layer);       // the layer has routed experts

// In file order: the tables, then block by block, the prediction layer's last.
std::vector<TensorShape> ListTensors(const Geometry& geometry);

}  // namespace linkcpp
