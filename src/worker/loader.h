// Makes what the rack holds match what the orders say: drops, downloads, verifies, loads; within the memory budget.
//
// Runs on a thread of its own (the caller's: Run). New orders interrupt it between slices, a failure is reported and
// tried again later; what is held keeps serving all the while.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "net/http_client.h"
#include "wire/control.h"
#include "worker/catalog.h"
#include "worker/rack.h"
#include "worker/slab_cache.h"

namespace linkcpp {

struct LoaderOptions {
  std::uint64_t memory_bytes = 0;                 // of all stacks; never exceeded
  std::uint64_t batch_bytes = 256ull << 20;       // of one download, at least one slice
  std::chrono::milliseconds withdraw_grace{100};  // between taking a slice back and dropping it
  std::chrono::milliseconds retry_first{1000}, retry_most{60'000};
};

class Loader {
 public:
  struct Status {
    std::uint64_t downloaded_bytes = 0;  // since the start
    std::uint64_t wanted_bytes = 0;      // still to download
    std::uint64_t slices_wanted = 0;
    std::uint64_t memory_used_bytes = 0;
    bool settled = false;  // everything wanted is held
    std::string error;     // the last thing that went wrong; "" once it is mended
  };

  // Everything borrowed must outlive the loader. `on_change`: holdings have changed; from the loader's thread, and
  // quickly: at most a few times a second while slices come in, at once when some are taken back.
  Loader(LoaderOptions options, Rack& rack, const SlabCache& cache, std::unique_ptr<HttpClient> http, LogSink& log,
         std::function<void()> on_change);

  // Any thread. The catalogue belongs to the orders; another model drops everything.
  void SetWanted(std::shared_ptr<const Catalog> catalog, std::vector<LayerHoldings> hold);
  Status status() const;  // any thread

  void Run();   // until Stop
  void Stop();  // any thread, any number of times

 private:
  struct LayerPlan {
    const CatalogLayer* layer = nullptr;
    std::vector<std::uint16_t> experts;  // wanted, ascending
    bool in_place = false;               // the stack that is there will do
  };
  struct Wanted {
    std::shared_ptr<const Catalog> catalog;
    std::vector<LayerHoldings> hold;
  };

  bool Interrupted() const { return stop_ || version_ != working_on_; }
  // Kept: what could be done was done; the fault says why it is not all.
  Result<void> Reconcile(const Wanted& wanted);
  Result<std::vector<LayerPlan>> MakePlan(const Wanted& wanted, Result<void>& over_budget);
  void TakeBack(const std::vector<SliceId>& slices);
  Result<void> FillLayer(const LayerPlan& plan, const Catalog& catalog);
  Result<bool> LoadFromCache(const CatalogLayer& layer, std::uint16_t expert);  // false: not (whole) in the cache
  Result<void> FetchAndLoad(const LayerPlan& plan, const Catalog& catalog, std::vector<std::uint16_t> missing);
  void CountMissing(const std::vector<LayerPlan>& plans);
  void Changed(bool at_once);
  void SetError(const std::string& text);

  const LoaderOptions options_;
  Rack& rack_;
  const SlabCache& cache_;
  const std::unique_ptr<HttpClient> http_;
  LogSink& log_;
  const std::function<void()> on_change_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Wanted wanted_;                          // guarded by mutex_
  Status status_;                          // guarded by mutex_
  std::atomic<std::uint64_t> version_{0};  // of wanted_
  std::uint64_t working_on_ = 0;           // the loader thread's
  std::atomic<bool> stop_{false};
  std::string model_id_;          // of what the rack holds; the loader thread's
  std::vector<std::byte> slice_;  // one slice's bytes; the loader thread's
  std::chrono::steady_clock::time_point last_change_;
};

}  // namespace linkcpp
