// Downloads one shard and takes its slabs apart into the cache, each verified against the model's hashes.
//
// The shard lies in <cache>/downloads while it arrives, so a broken download resumes where it stopped, even in another
// process. What does not verify never reaches the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/http_client.h"
#include "worker/catalog.h"
#include "worker/slab_cache.h"

namespace linkcpp {

struct ShardBatch {
  std::string model_name, model_id;
  const CatalogLayer* layer = nullptr;
  std::vector<std::uint16_t> experts;  // ascending
};

struct FetchOutcome {
  std::uint64_t slabs_stored = 0;
  std::uint64_t slabs_wrong = 0;
  std::string first_wrong;  // what was wrong with the first one
};

// `on_bytes`: newly downloaded bytes of this shard so far (0 again if it had to start over); false stops (kGone).
// kGone: the coordinator is away or the download broke (the part is kept). kRefused: it will not serve this.
// kMalformed: what came is no such shard. kLocal: our disk. The part file is deleted once it was complete.
Result<FetchOutcome> FetchShard(HttpClient& http, const ShardBatch& batch, const SlabCache& cache,
                                const std::function<bool(std::uint64_t)>& on_bytes);

}  // namespace linkcpp
