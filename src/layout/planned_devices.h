// Devices that are only planned: llama.cpp can lay a model out on them and never compute on them.
//
// They hold nothing: a buffer of theirs is an address range nobody may touch, writes to it are dropped. So a machine
// without a GPU can ask what a model would need on one. They claim what a discrete GPU's backend claims: every
// operation, the f32 rows of prompts as soon as a batch has 32 (as ggml's CUDA and Vulkan backends take them over from
// the CPU), 128 bytes of alignment, memory of the host's for copies (which llama.cpp then prefers for weights on the
// CPU, unpacked), and asynchronous copies, with which llama.cpp keeps four copies of what it hands from device to
// device. Tables: abi/ggml_abi.h.
#pragma once

#include <ggml-backend.h>

#include <span>
#include <vector>

#include "base/result.h"
#include "planner/layout.h"

namespace linkcpp {

// The devices' handles in order, good until the process ends; of those that are here ggml's own. Call once, after ggml
// has loaded its backends. kRefused: this host's ggml is another than the one the tables were written for, or has no
// such device.
Result<std::vector<ggml_backend_dev_t>> RegisterPlannedDevices(std::span<const PlannedDevice> devices);

}  // namespace linkcpp
