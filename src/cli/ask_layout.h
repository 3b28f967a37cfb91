// Asks the installed llama.cpp what it would allocate, through the program linkcpp-layout beside this one.
#pragma once

#include "base/result.h"
#include "gguf/model.h"
#include "planner/plan.h"

namespace linkcpp {

// The asker keeps a copy of the model's header with the vocabulary left out (reading that is most of the time an answer
// takes: 0.5 of 0.6 s for 248,320 tokens) in a folder of its own until it goes. `model` is used only here.
// The asker's faults: kRefused, libllama does not run this model so; kLocal, nobody to ask (no linkcpp-layout: built
// without libllama), no answer within 10 s, or interrupted (InterruptGuard).
AskLayout MakeLayoutAsker(const ModelFile& model);

}  // namespace linkcpp
