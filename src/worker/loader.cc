#include "worker/loader.h"

#include <algorithm>
#include <new>
#include <set>
#include <thread>
#include <utility>

#include "gguf/shard.h"
#include "worker/byte_size.h"
#include "worker/shard_fetch.h"

namespace linkcpp {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Loader::Loader(LoaderOptions options, Rack& rack, const SlabCache& cache, std::unique_ptr<HttpClient> http,
               LogSink& log, std::function<void()> on_change)
    : options_(options),
      rack_(rack),
      cache_(cache),
      http_(std::move(http)),
      log_(log),
      on_change_(std::move(on_change)) {}

void Loader::SetWanted(std::shared_ptr<const Catalog> catalog, std::vector<LayerHoldings> hold) {
  const std::lock_guard lock(mutex_);
  const auto same = [](const LayerHoldings& a, const LayerHoldings& b) {
    return a.layer == b.layer && a.experts == b.experts;
  };
  if (catalog == wanted_.catalog && std::ranges::equal(hold, wanted_.hold, same)) return;
  wanted_ = {.catalog = std::move(catalog), .hold = std::move(hold)};
  status_.settled = false;
  ++version_;
  wake_.notify_all();
}

Loader::Status Loader::status() const {
  Status status;
  {
    const std::lock_guard lock(mutex_);
    status = status_;
  }
  status.memory_used_bytes = rack_.device_bytes();
  return status;
}

void Loader::Stop() {
  stop_ = true;
  http_->Stop();
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

void Loader::SetError(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!text.empty() && text != status_.error) log_.Warning("{}", text);
  status_.error = text;
}

void Loader::Changed(bool at_once) {
  const auto now = steady_clock::now();
  if (!at_once && now - last_change_ < milliseconds(250)) return;
  last_change_ = now;
  on_change_();
}

void Loader::Run() {
  auto wait = options_.retry_first;
  bool retry = false;
  while (!stop_) {
    Wanted wanted;
    {
      std::unique_lock lock(mutex_);
      const auto news = [this] { return stop_ || version_ != working_on_; };
      if (retry) {
        wake_.wait_for(lock, wait, news);
      } else {
        wake_.wait(lock, news);
      }
      if (stop_) return;
      if (version_ != working_on_) wait = options_.retry_first;
      working_on_ = version_;
      wanted = wanted_;
    }
    Result<void> done;
    try {
      done = Reconcile(wanted);
    } catch (const std::bad_alloc&) {
      done = Fail(FaultCode::kLocal, "out of memory while loading slices: give less with --memory");
    }
    if (stop_) return;
    retry = !done.has_value() && !Interrupted();
    if (Interrupted()) continue;
    {
      const std::lock_guard lock(mutex_);
      status_.settled = done.has_value();
    }
    SetError(done ? "" : done.error().text);
    Changed(true);
    if (retry) wait = std::min(wait * 2, options_.retry_most);
  }
}

Result<std::vector<Loader::LayerPlan>> Loader::MakePlan(const Wanted& wanted, Result<void>& over_budget) {
  std::vector<LayerPlan> plans;
  std::uint64_t bytes = 0;
  for (const LayerHoldings& hold : wanted.hold) {
    const CatalogLayer* layer = wanted.catalog->Find(LayerId(hold.layer));
    if (layer == nullptr)
      return Fail(FaultCode::kRefused, "ordered to hold layer {}, which has no experts", hold.layer);
    ASSIGN_OR_RETURN(auto experts, ParseRanges(hold.experts, layer->n_experts));
    const std::uint64_t fit = (options_.memory_bytes - bytes) / layer->slice_bytes;
    if (experts.size() > fit) {
      if (over_budget) {
        over_budget =
            Fail(FaultCode::kLocal,
                 "ordered to hold more than the {} this worker gives (--memory): layer {} gets {} of {} experts",
                 FormatByteSize(options_.memory_bytes), hold.layer, fit, experts.size());
      }
      experts.resize(fit);
    }
    bytes += experts.size() * layer->slice_bytes;
    if (!experts.empty()) plans.push_back({.layer = layer, .experts = std::move(experts)});
  }
  // A stack with slots to spare stays as it is while the budget has room for them.
  std::uint64_t spare = options_.memory_bytes - bytes;
  for (LayerPlan& plan : plans) {
    const std::uint64_t slots = rack_.Slots(plan.layer->layer);
    if (slots < plan.experts.size()) continue;
    const std::uint64_t waste = (slots - plan.experts.size()) * plan.layer->slice_bytes;
    plan.in_place = waste <= spare;
    if (plan.in_place) spare -= waste;
  }
  // What shrinks goes first, so that its memory is there for what grows.
  std::ranges::stable_sort(plans, {}, [this](const LayerPlan& plan) {
    return (static_cast<std::int64_t>(plan.experts.size()) -
            static_cast<std::int64_t>(rack_.Slots(plan.layer->layer))) *
           static_cast<std::int64_t>(plan.layer->slice_bytes);
  });
  return plans;
}

void Loader::TakeBack(const std::vector<SliceId>& slices) {
  if (slices.empty()) return;
  for (const SliceId slice : slices) rack_.Withdraw(slice);
  Changed(true);  // backbones hear of it before the slice is gone; what they sent before that is still answered
  std::this_thread::sleep_for(options_.withdraw_grace);
  for (const SliceId slice : slices) rack_.Drop(slice);
}

Result<void> Loader::Reconcile(const Wanted& wanted) {
  if (!wanted.catalog) return {};
  std::vector<LayerPlan> plans;
  Result<void> outcome;
  if (wanted.catalog->model_id() == model_id_ || rack_.Layers().empty()) {
    ASSIGN_OR_RETURN(plans, MakePlan(wanted, outcome));
  }
  // ---- what is not wanted any more
  std::vector<SliceId> unwanted;
  for (const LayerId layer : rack_.Layers()) {
    const auto plan = std::ranges::find(plans, layer, [](const LayerPlan& p) { return p.layer->layer; });
    for (const std::uint16_t expert : rack_.Experts(layer)) {
      if (plan == plans.end() || !std::ranges::binary_search(plan->experts, expert))
        unwanted.push_back({layer, ExpertId(expert)});
    }
  }
  TakeBack(unwanted);
  for (const LayerId layer : rack_.Layers()) {
    if (std::ranges::none_of(plans, [&](const LayerPlan& p) { return p.layer->layer == layer; })) rack_.Remove(layer);
  }
  if (plans.empty() && !wanted.hold.empty()) {  // it was another model's
    ASSIGN_OR_RETURN(plans, MakePlan(wanted, outcome));
  }
  model_id_ = wanted.catalog->model_id();
  CountMissing(plans);

  // ---- what is
  for (const LayerPlan& plan : plans) {
    if (Interrupted()) return {};
    const auto filled = FillLayer(plan, *wanted.catalog);
    if (filled || Interrupted()) continue;
    if (outcome) outcome = filled;
    // A coordinator that is away or a full disk will be the same for the next layer.
    if (filled.error().code == FaultCode::kGone || filled.error().code == FaultCode::kLocal) return outcome;
  }
  return outcome;
}

void Loader::CountMissing(const std::vector<LayerPlan>& plans) {
  std::uint64_t slices = 0, bytes = 0;
  for (const LayerPlan& plan : plans) {
    const auto held = rack_.Experts(plan.layer->layer);
    slices += plan.experts.size();
    for (const std::uint16_t expert : plan.experts) {
      if (std::ranges::binary_search(held, expert)) continue;
      const bool cached = std::ranges::all_of(plan.layer->tensors, [&](const CatalogTensor& tensor) {
        return cache_.Has(tensor.hashes[expert], tensor.slab_bytes);
      });
      if (!cached) bytes += plan.layer->slice_bytes;
    }
  }
  const std::lock_guard lock(mutex_);
  status_.slices_wanted = slices;
  status_.wanted_bytes = bytes;
}

Result<void> Loader::FillLayer(const LayerPlan& plan, const Catalog& catalog) {
  const LayerId layer = plan.layer->layer;
  bool aside = false;
  rack_.Abandon(layer);  // left by a pass that was interrupted
  if (!plan.in_place) {
    const std::uint64_t needed = plan.experts.size() * plan.layer->slice_bytes;
    aside = rack_.Slots(layer) != 0 && rack_.device_bytes() + needed <= options_.memory_bytes;
    if (rack_.Slots(layer) != 0 && !aside) {  // no room for two: out of service for a moment
      std::vector<SliceId> all;
      for (const std::uint16_t expert : rack_.Experts(layer)) all.push_back({layer, ExpertId(expert)});
      TakeBack(all);
      rack_.Remove(layer);
    }
    if (auto made = rack_.Prepare(layer, plan.layer->shape, static_cast<std::uint32_t>(plan.experts.size())); !made) {
      return Wrap(made.error(), std::format("layer {}", layer.value));
    }
  }
  // The old stack answers until everything it holds is in the new one too.
  const auto held = rack_.Experts(layer);
  std::vector<std::uint16_t> first, missing;
  for (const std::uint16_t expert : plan.experts) {
    if (std::ranges::binary_search(held, expert)) first.push_back(expert);
  }
  if (aside) {
    for (const std::uint16_t expert : first) {
      ASSIGN_OR_RETURN(const bool loaded, LoadFromCache(*plan.layer, expert));
      if (!loaded) missing.push_back(expert);  // its file went bad meanwhile: downloaded below
    }
    rack_.Commit(layer);
    Changed(true);
  }
  for (const std::uint16_t expert : plan.experts) {
    if (std::ranges::binary_search(held, expert)) continue;
    if (Interrupted()) return {};
    ASSIGN_OR_RETURN(const bool loaded, LoadFromCache(*plan.layer, expert));
    if (!loaded) {
      missing.push_back(expert);
    } else {
      Changed(false);
    }
  }
  std::ranges::sort(missing);
  return FetchAndLoad(plan, catalog, std::move(missing));
}

Result<bool> Loader::LoadFromCache(const CatalogLayer& layer, std::uint16_t expert) {
  for (const CatalogTensor& tensor : layer.tensors) {
    if (!cache_.Has(tensor.hashes[expert], tensor.slab_bytes)) return false;
  }
  slice_.resize(layer.slice_bytes);
  std::span<std::byte> rest(slice_);
  for (const CatalogTensor& tensor : layer.tensors) {
    const auto got = cache_.Get(tensor.hashes[expert], rest.first(tensor.slab_bytes));
    if (!got && got.error().code == FaultCode::kRefused) {
      log_.Warning("layer {} expert {}: {}; downloading it again", layer.layer.value, expert, got.error().text);
      return false;
    }
    if (!got) return std::unexpected(got.error());
    rest = rest.subspan(tensor.slab_bytes);
  }
  RETURN_IF_FAULT(rack_.Load({layer.layer, ExpertId(expert)}, SlabsOf(layer, slice_)));
  return true;
}

Result<void> Loader::FetchAndLoad(const LayerPlan& plan, const Catalog& catalog, std::vector<std::uint16_t> missing) {
  Result<void> outcome;
  std::set<std::uint16_t> tried_twice;
  while (!missing.empty()) {
    if (Interrupted()) return {};
    // Smaller ones where the disk is nearly full: a download needs its size twice for a moment.
    const std::uint64_t free = FreeDiskBytes(cache_.dir());
    const std::uint64_t batch_limit = free == 0 ? options_.batch_bytes : std::min(options_.batch_bytes, free / 4);
    const std::size_t per_batch = std::max<std::uint64_t>(1, batch_limit / plan.layer->slice_bytes);
    ShardBatch batch{
        .model_name = catalog.model_name(), .model_id = catalog.model_id(), .layer = plan.layer, .experts = {}};
    batch.experts.assign(missing.begin(),
                         missing.begin() + static_cast<std::ptrdiff_t>(std::min(per_batch, missing.size())));
    missing.erase(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(batch.experts.size()));
    const std::uint64_t batch_bytes = batch.experts.size() * plan.layer->slice_bytes;
    std::uint64_t before = 0, wanted_before = 0;
    {
      const std::lock_guard lock(mutex_);
      before = status_.downloaded_bytes;
      wanted_before = status_.wanted_bytes;
    }
    auto fetched = FetchShard(*http_, batch, cache_, [&](std::uint64_t n) {
      const std::lock_guard lock(mutex_);
      status_.downloaded_bytes = before + n;
      status_.wanted_bytes = wanted_before - std::min(wanted_before, std::min(n, batch_bytes));
      return !Interrupted();
    });
    if (!fetched && Interrupted()) return {};
    // Loads what did come, also after a fault.
    std::vector<std::uint16_t> again;
    for (const std::uint16_t expert : batch.experts) {
      ASSIGN_OR_RETURN(const bool loaded, LoadFromCache(*plan.layer, expert));
      if (!loaded) again.push_back(expert);
      Changed(false);
    }
    {
      const std::lock_guard lock(mutex_);
      status_.wanted_bytes =
          wanted_before -
          std::min<std::uint64_t>(wanted_before, (batch.experts.size() - again.size()) * plan.layer->slice_bytes);
    }
    if (!fetched && fetched.error().code != FaultCode::kMalformed) return std::unexpected(fetched.error());
    if (again.empty()) continue;
    const std::string wrong = fetched ? fetched->first_wrong : fetched.error().text;
    log_.Warning("a download did not verify: {}", wrong);
    // Once more, from the beginning; then it is the coordinator's copy that is wrong.
    std::vector<std::uint16_t> once_more;
    for (const std::uint16_t expert : again) {
      if (tried_twice.insert(expert).second) once_more.push_back(expert);
    }
    if (once_more.size() < again.size() && outcome) {
      outcome =
          Fail(FaultCode::kRefused,
               "downloaded twice and still wrong: {}. The coordinator's model file has changed or is damaged", wrong);
    }
    missing.insert(missing.begin(), once_more.begin(), once_more.end());
  }
  return outcome;
}

}  // namespace linkcpp
