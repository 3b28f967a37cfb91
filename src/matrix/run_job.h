// The job on a device of this process: what `linkcpp-matrix-row` does.
#pragma once

#include "base/result.h"
#include "kernel/device.h"
#include "matrix/job.h"

namespace linkcpp {

// Every task is tried; one that the device refuses has its reason in the answer.
MatrixAnswer RunJob(const MatrixJob& job, Device& device);

}  // namespace linkcpp
