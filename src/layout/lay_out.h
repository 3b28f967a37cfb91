// What the installed llama.cpp would allocate for a model, where: asked of libllama itself, which lays the model out
// without memory (its `no_alloc`) on this machine's CPU and on planned devices.
//
// Exact, because it is the same code that will run; nothing is read but the header. For a process of its own
// (linkcpp-layout): libllama may abort on a model it does not like.
#pragma once

#include <vector>

#include "base/result.h"
#include "planner/layout.h"

namespace linkcpp {

// All requests of a process have the same devices, since those are registered for good. One thread at a time. kRefused:
// libllama would not lay it out (its last error), another libllama than the one this was written for.
Result<std::vector<LaidOut>> LayOut(const LayoutRequest& request);

// All that an answer depends on, on one machine: the request, the model's header, and the files of this program and
// its libraries. "": it depends on more (devices that are here), or the header can not be read.
std::string LayoutQuestion(const LayoutRequest& request);

}  // namespace linkcpp
