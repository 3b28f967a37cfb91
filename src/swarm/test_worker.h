// For tests: experts that are a pure function of (layer, expert, row), a worker that serves them, well or badly, and
// local ones that can be told to fail.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/rng.h"
#include "swarm/swarm.h"
#include "swarm/test_link.h"
#include "wire/messages.h"

namespace linkcpp {

// y[j] depends on every bit of the row, on the layer, the expert and j.
inline void FakeExpert(LayerId layer, ExpertId expert, std::span<const float> row, std::span<float> y) {
  std::uint64_t mixed = (std::uint64_t{layer.value} << 32) + expert.value + 1;
  for (const float value : row) mixed = Rng(mixed ^ std::bit_cast<std::uint32_t>(value)).Next();
  Rng rng(mixed);
  for (float& value : y) value = static_cast<float>(rng.Uniform() - 0.5);
}

class FakeLocal final : public LocalExperts {
 public:
  Result<void> Compute(LayerId layer, const Recipe&, std::span<const float> x, std::uint32_t n_in,
                       std::span<const Pair> pairs, std::span<float> y, std::uint32_t n_out) override {
    if (fail) return Fail(FaultCode::kLocal, "the disk is gone");
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      FakeExpert(layer, pairs[i].expert, x.subspan(std::size_t{pairs[i].row} * n_in, n_in),
                 y.subspan(i * n_out, n_out));
    }
    n_pairs += pairs.size();
    asked.emplace_back(pairs.begin(), pairs.end());
    return {};
  }
  bool fail = false;
  std::vector<std::vector<Pair>> asked;  // by call
  std::uint64_t n_pairs = 0;
};

// The far end of a link. Lives as long as the test; its link may die before.
class FakeWorker {
 public:
  enum class Mood {
    kHonest,
    kStalls,
    kBusy,
    kRefuses,
    kFails,
    kDies,  // misfortune
    kTooFewPairs,
    kTooManyPairs,
    kWrongRowLen,
    kWrongType,  // malice
    kAnswersTwice,
    kUnknownId,
    kRandomBytes,
    kFaultForUnknown,
    kEmptyPayload,
  };
  static constexpr int kMoods = 15;

  FakeWorker(TestNet& net, std::unique_ptr<Link> link, std::uint32_t n_out)
      : net_(net), link_(std::move(link)), n_out_(n_out) {
    link_->Start({.on_frame = [this](const FrameView& frame) { return OnFrame(frame); },
                  .on_close =
                      [this](const Fault& why) {
                        closed_because = why.text;
                        closed = true;
                      }});
  }

  void Hold(std::vector<LayerHoldings> ready) { Say(HoldingsMessage{std::move(ready)}); }
  void Say(const Message& message, std::span<const float> rows = {}) {
    const std::span<const std::byte> payload = std::as_bytes(rows);
    (void)link_->Send(EncodeMessage(message), std::span(&payload, 1));
  }
  void Die() { link_->Close("killed"); }
  // Holds its answers back until told.
  void Release() {
    for (auto& act : std::exchange(held_, {})) act();
  }

  // What it does with the next dispatch; drawn per dispatch when set.
  std::function<Mood()> mood = [] { return Mood::kHonest; };
  // What it computes for pair i of a dispatch.
  std::function<void(const DispatchMessage&, std::size_t i, std::span<const float> row, std::span<float> y)> expert =
      [](const DispatchMessage& dispatch, std::size_t i, std::span<const float> row, std::span<float> y) {
        FakeExpert(dispatch.layer, ExpertId(dispatch.pairs[i].expert), row, y);
      };
  Duration compute{};
  bool hold_back = false;
  bool answers_pings = true;

  bool closed = false;
  std::string closed_because;
  std::vector<DispatchMessage> dispatches;
  std::size_t n_answered = 0;  // well or badly

 private:
  Result<void> OnFrame(const FrameView& frame) {
    const Message message = DecodeMessage(frame.header, frame.payload.size()).value();
    if (const auto* ping = std::get_if<PingMessage>(&message); ping != nullptr && !ping->reply && answers_pings) {
      Say(PingMessage{ping->nonce, true});
    }
    if (const auto* dispatch = std::get_if<DispatchMessage>(&message)) {
      dispatches.push_back(*dispatch);
      std::vector<float> x(std::size_t{dispatch->n_rows} * dispatch->row_len);
      UnpackRows(dispatch->row_type, frame.payload, dispatch->row_len, x);
      const auto act = [this, alive = std::weak_ptr(alive_), dispatch = *dispatch, x = std::move(x)] {
        if (!alive.expired() && !closed) Answer(dispatch, x);
      };
      if (hold_back) {
        held_.push_back(act);
      } else {
        net_.After(compute, act);
      }
    }
    return {};
  }

  void Answer(const DispatchMessage& dispatch, std::span<const float> x) {
    auto n_pairs = static_cast<std::uint32_t>(dispatch.pairs.size());
    std::vector<float> y(std::size_t{n_pairs} * n_out_);
    for (std::size_t i = 0; i < n_pairs; ++i) {
      expert(dispatch, i, x.subspan(std::size_t{dispatch.pairs[i].row} * dispatch.row_len, dispatch.row_len),
             std::span(y).subspan(i * n_out_, n_out_));
    }
    ResultMessage result{dispatch.id, dispatch.reply_type, n_pairs, n_out_, 10};
    const Mood today = mood();
    ++n_answered;
    switch (today) {
      case Mood::kHonest: break;
      case Mood::kStalls: return;
      case Mood::kBusy: return Say(FaultMessage{dispatch.id, FaultCode::kBusy, "too much to do"});
      case Mood::kRefuses: return Say(FaultMessage{dispatch.id, FaultCode::kRefused, "do not hold this"});
      case Mood::kFails: return Say(FaultMessage{dispatch.id, FaultCode::kLocal, "device lost"});
      case Mood::kDies: return Die();
      case Mood::kTooFewPairs:
        if (n_pairs == 1) return Die();
        --result.n_pairs;
        y.resize(y.size() - n_out_);
        break;
      case Mood::kTooManyPairs:
        ++result.n_pairs;
        y.resize(y.size() + n_out_);
        break;
      case Mood::kWrongRowLen:
        ++result.row_len;
        y.resize(y.size() + n_pairs);
        break;
      case Mood::kWrongType: {
        result.row_type = RowType::kF16;
        const std::vector<std::byte> none(std::size_t{n_pairs} * n_out_ * 2);
        const std::span<const std::byte> payload = none;
        (void)link_->Send(EncodeMessage(result), std::span(&payload, 1));
        return;
      }
      case Mood::kAnswersTwice: Send(result, dispatch.reply_type, y); break;
      case Mood::kUnknownId: result.id += 1'000'000; break;
      case Mood::kRandomBytes: {
        std::vector<std::byte> bytes(net_.rng().Below(200));
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(net_.rng().Next());
        (void)link_->Send(bytes, {});
        return;
      }
      case Mood::kFaultForUnknown: return Say(FaultMessage{dispatch.id + 1'000'000, FaultCode::kBusy, ""});
      case Mood::kEmptyPayload: y.clear(); break;
    }
    Send(result, dispatch.reply_type, y);
  }

  void Send(const ResultMessage& result, RowType type, std::span<const float> y) {
    if (type == RowType::kF32) return Say(result, y);
    std::vector<std::byte> packed(RowBytes(type, n_out_) * (y.size() / n_out_));
    PackRows(type, y, n_out_, packed);
    const std::span<const std::byte> payload = packed;
    (void)link_->Send(EncodeMessage(result), std::span(&payload, 1));
  }

  TestNet& net_;
  std::unique_ptr<Link> link_;
  std::uint32_t n_out_;
  std::vector<std::function<void()>> held_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace linkcpp
