// How fast two threads of this machine talk over loopback, as workers here do with the backbone.
#pragma once

namespace linkcpp {

// Half the median round trip of a few bytes, in seconds: what waking a thread takes. 0 when there is no loopback.
double MeasureWake();

// Long messages one way, each copied once more at both ends, as a link does; the median of some, in GB/s; 0 when there
// is no loopback.
double MeasureLoopback();

}  // namespace linkcpp
