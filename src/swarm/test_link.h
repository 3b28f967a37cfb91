// For tests: links in memory on a fake clock, one thread, with delays, losses and cuts drawn from a seed.
//
// Frames of one link arrive in order; those of different links overtake each other. Pump() is what SwarmOptions::pump
// calls: it delivers the next thing that is due, or moves the clock when nothing is.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "net/link.h"

namespace linkcpp {

class TestNet {
 public:
  struct Script {
    Duration least_delay = std::chrono::microseconds(50);
    Duration most_delay = std::chrono::microseconds(50);
    double lose = 0;                              // share of frames that never arrive
    double busy = 0;                              // share of sends that are told kBusy
    std::uint64_t cut_after = ~std::uint64_t{0};  // frames of both directions together, then the link is gone
  };

  explicit TestNet(std::uint64_t seed) : rng_(seed) {}

  FakeClock& clock() { return clock_; }
  Rng& rng() { return rng_; }

  // Something to happen later, e.g. a worker's answer after its computing time.
  void After(Duration delay, std::function<void()> act) {
    events_.emplace(std::pair(clock_.Now() + delay, next_++), std::move(act));
  }

  // Delivers the next event that is due at or before `until`, moving the clock to it; else moves the clock to `until`.
  void Pump(TimePoint until) {
    const auto next = events_.begin();
    if (next == events_.end() || next->first.first > until) {
      if (until > clock_.Now()) clock_.Advance(until - clock_.Now());
      return;
    }
    if (next->first.first > clock_.Now()) clock_.Advance(next->first.first - clock_.Now());
    const auto act = std::move(next->second);
    events_.erase(next);
    act();
  }
  void RunFor(Duration duration) {
    const TimePoint until = clock_.Now() + duration;
    while (clock_.Now() < until) Pump(until);
  }

  std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> MakePair(Script script, std::string name = "test") {
    auto wire = std::make_shared<Wire>(Wire{*this, script, std::move(name)});
    auto a = std::make_unique<End>(wire, 0);
    auto b = std::make_unique<End>(wire, 1);
    return {std::move(a), std::move(b)};
  }

 private:
  struct Wire;
  class End;
  struct Wire {
    TestNet& net;
    Script script;
    std::string name;
    std::uint64_t frames = 0;
    bool cut = false;
    End* ends[2] = {nullptr, nullptr};
    TimePoint arrival[2] = {};  // of the last frame to this end: later ones do not overtake it

    Duration Delay() {
      const auto span = static_cast<std::uint64_t>((script.most_delay - script.least_delay).count());
      return script.least_delay + Duration(span == 0 ? 0 : net.rng_.Below(span));
    }
    void Cut(const std::string& reason);
  };

  class End final : public Link {
   public:
    End(std::shared_ptr<Wire> wire, int side) : wire_(std::move(wire)), side_(side) { wire_->ends[side_] = this; }
    ~End() override {
      wire_->ends[side_] = nullptr;
      wire_->Cut("the other side is gone");
    }
    void Start(Handlers handlers) override {
      handlers_ = std::move(handlers);
      started_ = true;
      for (auto& frame : std::exchange(early_, {})) Deliver(frame.first, frame.second);
      if (wire_->cut) Closed("cut before the start");
    }
    Result<void> Send(std::span<const std::byte> header, std::span<const std::span<const std::byte>> payload) override {
      Wire& wire = *wire_;
      if (wire.cut) return Fail(FaultCode::kGone, "the link is closed");
      if (wire.script.busy > 0 && wire.net.rng_.Uniform() < wire.script.busy)
        return Fail(FaultCode::kBusy, "send buffer full");
      std::vector<std::byte> head(header.begin(), header.end());
      std::size_t size = 0;
      for (const auto& piece : payload) size += piece.size();
      std::vector<std::max_align_t> body(size / sizeof(std::max_align_t) + 1);  // aligned, as a FrameView promises
      std::size_t at = 0;
      for (const auto& piece : payload) {
        if (!piece.empty()) std::memcpy(reinterpret_cast<std::byte*>(body.data()) + at, piece.data(), piece.size());
        at += piece.size();
      }
      ++stats_.frames_sent;
      stats_.bytes_sent += head.size() + size;
      if (++wire.frames > wire.script.cut_after) {
        wire.Cut("cut by the script");
        return {};
      }
      if (wire.script.lose > 0 && wire.net.rng_.Uniform() < wire.script.lose) return {};
      const int to = 1 - side_;
      const TimePoint now = wire.net.clock_.Now();
      wire.arrival[to] = std::max(wire.arrival[to], now + wire.Delay());
      wire.net.After(wire.arrival[to] - now, [wire = wire_, to, head = std::move(head), body = std::move(body), size] {
        if (wire->cut || wire->ends[to] == nullptr) return;
        wire->ends[to]->Deliver(head, std::span(reinterpret_cast<const std::byte*>(body.data()), size));
      });
      return {};
    }
    void Close(std::string reason) override { wire_->Cut(reason); }
    std::string peer() const override { return wire_->name; }
    LinkStats stats() const override { return stats_; }
    void set_limits(LinkLimits) override {}

    void Deliver(std::span<const std::byte> head, std::span<const std::byte> body) {
      if (!started_) {
        early_.emplace_back(std::vector(head.begin(), head.end()), std::vector(body.begin(), body.end()));
        return;
      }
      if (closed_) return;
      ++stats_.frames_received;
      stats_.bytes_received += head.size() + body.size();
      if (auto done = handlers_.on_frame({head, body}); !done.has_value()) wire_->Cut(done.error().text);
    }
    void Closed(const std::string& reason) {
      if (!started_ || closed_) return;
      closed_ = true;
      if (handlers_.on_close) handlers_.on_close({FaultCode::kGone, reason});
    }

   private:
    std::shared_ptr<Wire> wire_;
    int side_;
    Handlers handlers_;
    bool started_ = false;
    bool closed_ = false;
    LinkStats stats_;
    std::vector<std::pair<std::vector<std::byte>, std::vector<std::byte>>> early_;
  };

  FakeClock clock_;
  Rng rng_;
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t next_ = 0;
};

// Both ends hear of it through the event queue, never from inside a call.
inline void TestNet::Wire::Cut(const std::string& reason) {
  if (cut) return;
  cut = true;
  for (int side = 0; side < 2; ++side) {
    if (ends[side] == nullptr) continue;
    net.After(Duration(0), [end = &ends[side], reason] {
      if (*end != nullptr) (*end)->Closed(reason);
    });
  }
}

}  // namespace linkcpp
