// How fast two threads of this machine talk over loopback, as workers here do with the backbone.
#pragma once

#include <cstddef>

namespace linkcpp {

// Half the median round trip of a few bytes, in seconds: what waking a thread takes that has slept for `pause_seconds`.
// 0 when there is no loopback.
double MeasureWake(double pause_seconds);

// A message one way, copied once more at both ends, as a link does, in GB/s without the waking of both threads; the
// median of some. `between_bytes`: of memory that each side reads before each message, which drive it out of the
// caches. 0 when there is no loopback, or it takes no time beside the waking.
double MeasureLoopback(std::size_t message_bytes, std::size_t between_bytes, double wake_seconds);

}  // namespace linkcpp
