#include "hostile/evil.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <print>
#include <thread>
#include <utility>

#include "oracle/weight_type.h"
#include "wire/messages.h"

namespace linkcpp {
namespace {

constexpr std::pair<std::string_view, Evil> kNames[] = {{"none", Evil::kNone},
                                                        {"drop", Evil::kDrop},
                                                        {"twice", Evil::kTwice},
                                                        {"stale", Evil::kStale},
                                                        {"late", Evil::kLate},
                                                        {"swap", Evil::kSwap},
                                                        {"zero", Evil::kZero},
                                                        {"nan", Evil::kNan},
                                                        {"renormalise", Evil::kRenormalise},
                                                        {"scale", Evil::kScale},
                                                        {"wrong-row", Evil::kWrongRow},
                                                        {"other-layer", Evil::kOtherLayer},
                                                        {"nibble", Evil::kNibble},
                                                        {"activation", Evil::kActivation}};

std::string_view NameOf(Evil kind) {
  return std::ranges::find(kNames, kind, &std::pair<std::string_view, Evil>::second)->first;
}

}  // namespace

std::optional<Evil> EvilNamed(std::string_view name) {
  const auto it = std::ranges::find(kNames, name, &std::pair<std::string_view, Evil>::first);
  return it == std::end(kNames) ? std::nullopt : std::optional(it->second);
}

std::string EvilNames() {
  std::string text;
  for (const auto& [name, kind] : kNames) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

bool EvilPlan::Strikes(Evil kind) {
  if (kind != options_.kind) return false;
  const std::lock_guard lock(mutex_);
  if (++seen_ <= options_.after) return false;
  if (static_cast<double>(rng_.Below(1u << 20)) >= options_.share * (1u << 20)) return false;
  std::println(stderr, "evil {}: {}", ++struck_, NameOf(kind));
  return true;
}

// ---------------------------------------------------------------- frames

namespace {

class EvilLink final : public Link {
 public:
  EvilLink(std::unique_ptr<Link> link, EvilPlan& plan, OtherLayer other_layer)
      : plan_(plan), other_layer_(std::move(other_layer)), link_(std::move(link)) {}

  void Start(Handlers handlers) override {
    auto on_frame = std::move(handlers.on_frame);
    handlers.on_frame = [this, on_frame](const FrameView& frame) -> Result<void> {
      auto message = DecodeMessage(frame.header, frame.payload.size());
      auto* dispatch = message ? std::get_if<DispatchMessage>(&*message) : nullptr;
      if (dispatch == nullptr || !plan_.Strikes(Evil::kOtherLayer)) return on_frame(frame);
      dispatch->layer = other_layer_(dispatch->layer);
      const auto header = EncodeMessage(*dispatch);
      return on_frame({header, frame.payload});
    };
    link_->Start(std::move(handlers));
  }

  Result<void> Send(std::span<const std::byte> header, std::span<const std::span<const std::byte>> payload) override {
    std::size_t bytes = 0;
    for (const auto& piece : payload) bytes += piece.size();
    auto message = DecodeMessage(header, bytes);
    auto* result = message ? std::get_if<ResultMessage>(&*message) : nullptr;
    if (result == nullptr || result->row_type != RowType::kF32) return link_->Send(header, payload);

    std::vector<std::byte> rows;
    for (const auto& piece : payload) rows.insert(rows.end(), piece.begin(), piece.end());
    const std::uint64_t last = std::exchange(last_id_, result->id);
    const std::size_t row_bytes = result->row_len * sizeof(float);
    if (result->n_pairs > 1 && plan_.Strikes(Evil::kDrop)) {
      --result->n_pairs;
      rows.resize(rows.size() - row_bytes);
    } else if (last != 0 && plan_.Strikes(Evil::kStale)) {
      result->id = last;
    } else if (plan_.Strikes(Evil::kLate)) {
      std::this_thread::sleep_for(plan_.late());
    } else if (plan_.Strikes(Evil::kTwice)) {
      if (auto sent = SendResult(*result, rows); !sent) return sent;
    }
    return SendResult(*result, rows);
  }

  void Close(std::string reason) override { link_->Close(std::move(reason)); }
  std::string peer() const override { return link_->peer(); }
  LinkStats stats() const override { return link_->stats(); }
  void set_limits(LinkLimits limits) override { link_->set_limits(limits); }

 private:
  Result<void> SendResult(const ResultMessage& result, std::span<const std::byte> rows) {
    const std::span<const std::byte> pieces[] = {rows};
    return link_->Send(EncodeMessage(result), pieces);
  }

  EvilPlan& plan_;
  const OtherLayer other_layer_;
  std::uint64_t last_id_ = 0;  // the compute thread's
  std::unique_ptr<Link> link_;
};

// ---------------------------------------------------------------- numbers

// As tests/equivalence/kernel_test.cc: what a kernel with this mistake would read is given to a right one as bytes.
void Misread(Evil kind, WeightType type, std::span<std::byte> block) {
  const auto* layout = &*std::ranges::find(AllWeightLayouts(), type, &WeightLayout::type);
  if (kind == Evil::kNibble) {
    // Quants of these types are nibbles behind (or, Q6_K, before) the block's head.
    const std::size_t begin = type == WeightType::kQ6_K ? 0 : type == WeightType::kQ4_0 ? 2 : 16;
    const std::size_t end = type == WeightType::kQ6_K ? 128 : layout->block_bytes;
    for (std::size_t i = std::min(begin, end); i < end; ++i) block[i] = block[i] << 4 | block[i] >> 4;
    return;
  }
  if (type == WeightType::kQ4_K) {
    block[4 + 1] &= std::byte{0x3f};  // sub-block 5 without the two high bits of its scale
  } else if (type == WeightType::kQ6_K) {
    block[192 + 5] = block[192 + 4];  // its neighbour's
  }
}

// Every GLU becomes a product, every unary function a multiplication by 1.
Recipe WithoutActivation(Recipe recipe) {
  for (Step& step : recipe.steps) {
    if (step.op == StepOp::kGlu && step.a != step.b) {
      step = {.op = StepOp::kMul, .a = step.a, .b = step.b};
    } else if (step.op == StepOp::kUnary) {
      step = {.op = StepOp::kFactor, .a = step.a, .p0 = 1};
    }
  }
  return recipe;
}

class EvilStack final : public ExpertStack {
 public:
  EvilStack(std::unique_ptr<ExpertStack> right, std::unique_ptr<ExpertStack> misread, EvilPlan& plan)
      : right_(std::move(right)), misread_(std::move(misread)), plan_(plan), filled_(right_->n_slots()) {}

  const ExpertShape& shape() const override { return right_->shape(); }
  std::uint32_t n_slots() const override { return right_->n_slots(); }
  std::uint64_t device_bytes() const override { return right_->device_bytes(); }
  Result<Lengths> Check(const Recipe& recipe) override { return right_->Check(recipe); }

  Result<void> Load(std::uint32_t slot, const ExpertSlabs& slabs) override {
    RETURN_IF_FAULT(right_->Load(slot, slabs));
    filled_[slot] = true;
    if (misread_ == nullptr) return {};
    ExpertSlabs wrong = slabs;
    std::vector<std::vector<std::byte>> bytes;
    bytes.reserve(kProjections);
    for (std::size_t p = 0; p < kProjections; ++p) {
      const auto& projection = shape().projections[p];
      if (!projection) continue;
      ASSIGN_OR_RETURN(const WeightLayout layout, LayoutOf(projection->type));
      auto& weight = bytes.emplace_back(slabs.projections[p].weight.begin(), slabs.projections[p].weight.end());
      for (std::size_t at = 0; at < weight.size(); at += layout.block_bytes) {
        Misread(plan_.kind(), layout.type, std::span(weight).subspan(at, layout.block_bytes));
      }
      wrong.projections[p].weight = weight;
    }
    return misread_->Load(slot, wrong);
  }

  Result<void> Run(const Recipe& recipe, std::span<const float> x, std::uint32_t n_rows,
                   std::span<const SlotPair> pairs, std::span<float> y) override {
    if (plan_.Strikes(Evil::kActivation)) return right_->Run(WithoutActivation(recipe), x, n_rows, pairs, y);
    if (misread_ != nullptr && plan_.Strikes(plan_.kind())) return misread_->Run(recipe, x, n_rows, pairs, y);
    if (plan_.Strikes(Evil::kSwap)) {
      std::vector<SlotPair> other(pairs.begin(), pairs.end());
      for (SlotPair& pair : other) pair.slot = NextFilled(pair.slot);
      return right_->Run(recipe, x, n_rows, other, y);
    }
    RETURN_IF_FAULT(right_->Run(recipe, x, n_rows, pairs, y));
    const std::size_t row_len = y.size() / pairs.size();
    if (plan_.Strikes(Evil::kZero)) {
      std::ranges::fill(y.first(row_len), 0.0f);
    } else if (plan_.Strikes(Evil::kNan)) {
      y[0] = std::numeric_limits<float>::quiet_NaN();
    } else if (pairs.size() > 1 && plan_.Strikes(Evil::kWrongRow)) {
      std::ranges::rotate(y, y.begin() + static_cast<std::ptrdiff_t>(row_len));
    } else if (plan_.Strikes(Evil::kRenormalise)) {
      for (std::size_t at = 0; at < y.size(); at += row_len) {
        double squares = 0;
        for (const float value : y.subspan(at, row_len)) squares += static_cast<double>(value) * value;
        const double factor = squares == 0 ? 1 : 1 / std::sqrt(squares);
        for (float& value : y.subspan(at, row_len)) value = static_cast<float>(value * factor);
      }
    }
    return {};
  }

 private:
  std::uint32_t NextFilled(std::uint32_t slot) const {
    for (std::uint32_t step = 1; step <= n_slots(); ++step) {
      if (const std::uint32_t next = (slot + step) % n_slots(); filled_[next]) return next;
    }
    return slot;
  }

  std::unique_ptr<ExpertStack> right_, misread_;  // misread_: nullptr for kinds that do not need it
  EvilPlan& plan_;
  std::vector<bool> filled_;
};

}  // namespace

std::unique_ptr<Link> MakeEvilLink(std::unique_ptr<Link> link, EvilPlan& plan, OtherLayer other_layer) {
  return std::make_unique<EvilLink>(std::move(link), plan, std::move(other_layer));
}

Result<std::unique_ptr<ExpertStack>> MakeEvilStack(const ExpertShape& shape, std::uint32_t n_slots, Device& device,
                                                   EvilPlan& plan) {
  ASSIGN_OR_RETURN(auto right, ExpertStack::Create(shape, n_slots, device));
  std::unique_ptr<ExpertStack> misread;
  if (plan.kind() == Evil::kNibble || plan.kind() == Evil::kScale) {
    ASSIGN_OR_RETURN(misread, ExpertStack::Create(shape, n_slots, device));
  }
  return std::make_unique<EvilStack>(std::move(right), std::move(misread), plan);
}

}  // namespace linkcpp
