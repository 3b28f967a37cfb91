// A pair of links in memory, with faults on demand: delay by a clock that tests move, loss, cuts.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "net/link.h"

namespace linkcpp {

// Delivers frames in order when Pump is called; nothing happens by itself. One thread.
class MemNet {
 public:
  static std::unique_ptr<MemNet> Create(FakeClock& clock);
  virtual ~MemNet() = default;

  struct Script {
    Duration delay{};                             // per frame
    std::uint64_t cut_after = ~std::uint64_t{0};  // frames a -> b or b -> a, then the link closes
    std::uint64_t drop_every = 0;  // 0: none; n: every n-th frame is lost (links over TCP never do that; relays may)
  };
  virtual std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> MakePair(Script script) = 0;

  // Delivers everything due at clock.Now(). Returns the number of frames delivered.
  virtual int Pump() = 0;
};

}  // namespace linkcpp
