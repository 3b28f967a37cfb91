// What the figures of `linkcpp verify decode` mean: the same, near enough, or not; and what near enough is.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "cli/logit_compare.h"
#include "cli/verify_decode.h"
#include "gguf/model.h"

namespace linkcpp {

// libllama alone once more with noise of this power, drawn from `seed`, in every expert's result: compared with it
// alone.
using ShakenRun = std::function<Result<LogitComparison>(double expert_noise, std::uint64_t seed)>;

// The power of the noise by which two right kernels for this model's experts may differ, relative to an expert's
// result. kRefused: a type without an oracle.
Result<double> KernelDistance(const ModelFile& model);

// From a report that has its figures and workers: sets verdict and why; and bound, where it had to be measured, which
// takes three more runs. Faults: as KernelDistance, and those of `shaken`.
Result<void> JudgeDecode(const ModelFile& model, const ShakenRun& shaken, VerifyDecodeReport& report);

}  // namespace linkcpp
