#include "net/mem.h"

#include <algorithm>
#include <deque>
#include <format>
#include <vector>

namespace linkcpp {
namespace {

struct Frame {
  std::vector<std::byte> header;
  std::vector<std::byte> payload;  // operator new aligns to 16
  TimePoint due;
  bool lost = false;
};

// Both ends of a pair; side 0 and 1.
struct Pair {
  struct Side {
    std::deque<Frame> inbox;
    Link::Handlers handlers;
    LinkLimits limits;
    LinkStats stats;
    bool started = false;
    bool gone = false;  // its Link was destroyed
    bool open = true;
    bool told = false;  // on_close was called
    Fault why;
  };
  Side sides[2];
  MemNet::Script script;
  FakeClock* clock = nullptr;
  std::uint64_t n_sent = 0;  // both ways
  std::uint64_t n_delivered = 0;

  void CloseSide(int side, Fault why) {
    if (!sides[side].open) return;
    sides[side].open = false;
    sides[side].why = std::move(why);
  }
};

class MemLink final : public Link {
 public:
  MemLink(std::shared_ptr<Pair> pair, int side) : pair_(std::move(pair)), side_(side) {}
  ~MemLink() override {
    me().gone = true;
    pair_->CloseSide(side_, {FaultCode::kGone, "the link was destroyed"});
  }

  void Start(Handlers handlers) override {
    me().handlers = std::move(handlers);
    me().started = true;
  }

  Result<void> Send(std::span<const std::byte> header, std::span<const std::span<const std::byte>> payload) override {
    if (!me().open) return Fail(FaultCode::kGone, "link to {} is closed: {}", peer(), me().why.text);
    Frame frame;
    frame.header.assign(header.begin(), header.end());
    for (const auto& piece : payload) frame.payload.insert(frame.payload.end(), piece.begin(), piece.end());
    frame.due = pair_->clock->Now() + pair_->script.delay;
    ++pair_->n_sent;
    frame.lost = pair_->script.drop_every > 0 && pair_->n_sent % pair_->script.drop_every == 0;
    ++me().stats.frames_sent;
    me().stats.bytes_sent += frame.header.size() + frame.payload.size();
    pair_->sides[1 - side_].inbox.push_back(std::move(frame));
    return {};
  }

  void Close(std::string reason) override { pair_->CloseSide(side_, {FaultCode::kGone, std::move(reason)}); }
  std::string peer() const override { return side_ == 0 ? "mem:b" : "mem:a"; }
  LinkStats stats() const override { return me().stats; }
  void set_limits(LinkLimits limits) override { me().limits = limits; }

 private:
  Pair::Side& me() const { return pair_->sides[side_]; }
  const std::shared_ptr<Pair> pair_;
  const int side_;
};

class ScriptedMemNet final : public MemNet {
 public:
  explicit ScriptedMemNet(FakeClock& clock) : clock_(clock) {}

  std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> MakePair(Script script) override {
    auto pair = std::make_shared<Pair>();
    pair->script = script;
    pair->clock = &clock_;
    pairs_.push_back(pair);
    return {std::make_unique<MemLink>(pair, 0), std::make_unique<MemLink>(pair, 1)};
  }

  int Pump() override {
    int n_delivered = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < pairs_.size(); ++i) {  // handlers may make more pairs
        const std::shared_ptr<Pair> pair = pairs_[i];
        for (int side = 0; side < 2; ++side) {
          switch (Step(*pair, side)) {
            case Moved::kNothing: break;
            case Moved::kFrame: ++n_delivered; [[fallthrough]];
            case Moved::kOther: moved = true; break;
          }
        }
      }
      std::erase_if(pairs_, [](const auto& pair) { return pair->sides[0].gone && pair->sides[1].gone; });
    }
    return n_delivered;
  }

 private:
  enum class Moved { kNothing, kFrame, kOther };

  // One thing that is due for one side: a frame, then the other side's closing, then its own.
  Moved Step(Pair& pair, int index) {
    Pair::Side& side = pair.sides[index];
    const bool listens = side.started && side.open && !side.gone;
    if (!side.inbox.empty() && side.inbox.front().due <= clock_.Now() && (listens || side.gone || !side.open)) {
      const Frame frame = std::move(side.inbox.front());
      side.inbox.pop_front();
      if (!listens || frame.lost) return Moved::kOther;
      return Deliver(pair, index, frame);
    }
    const Pair::Side& other = pair.sides[1 - index];
    if (side.open && !other.open && side.inbox.empty()) {
      pair.CloseSide(index, {FaultCode::kGone, "the peer closed the connection"});
      return Moved::kOther;
    }
    if (side.started && !side.open && !side.told) {
      side.told = true;
      const Link::Handlers handlers = std::exchange(side.handlers, {});
      if (!side.gone && handlers.on_close) handlers.on_close(Fault(side.why));
      return Moved::kOther;
    }
    return Moved::kNothing;
  }

  Moved Deliver(Pair& pair, int index, const Frame& frame) {
    Pair::Side& side = pair.sides[index];
    if (frame.header.size() > side.limits.max_header_bytes || frame.payload.size() > side.limits.max_payload_bytes) {
      pair.CloseSide(
          index, {FaultCode::kMalformed, std::format("a frame of {} header and {} payload bytes is more than is taken",
                                                     frame.header.size(), frame.payload.size())});
      return Moved::kOther;
    }
    ++side.stats.frames_received;
    side.stats.bytes_received += frame.header.size() + frame.payload.size();
    const auto on_frame = side.handlers.on_frame;  // a copy: the owner may destroy the link in there
    if (on_frame) {
      if (const Result<void> result = on_frame({frame.header, frame.payload}); !result)
        pair.CloseSide(index, result.error());
    }
    if (++pair.n_delivered == pair.script.cut_after) {
      for (int i = 0; i < 2; ++i) {
        pair.sides[i].inbox.clear();
        pair.CloseSide(i, {FaultCode::kGone, "the connection was cut"});
      }
    }
    return Moved::kFrame;
  }

  FakeClock& clock_;
  std::vector<std::shared_ptr<Pair>> pairs_;
};

}  // namespace

std::unique_ptr<MemNet> MemNet::Create(FakeClock& clock) {
  return std::make_unique<ScriptedMemNet>(clock);
}

}  // namespace linkcpp
