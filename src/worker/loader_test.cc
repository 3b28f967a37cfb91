#include "worker/loader.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <thread>

#include "gguf/manifest.h"
#include "gguf/model.h"
#include "gguf/shard.h"
#include "gguf/tensor_type.h"
#include "worker/test_stack.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;

const char* KindName(SlabKind kind) {
  switch (kind) {
    case SlabKind::kWeight: return "weight";
    case SlabKind::kBias: return "bias";
    case SlabKind::kScale: return "scale";
    case SlabKind::kInputScale: return "input_scale";
  }
  return "?";
}

// A small real model, and what the coordinator says of it.
struct TestModel {
  ModelFile file = ModelFile::Open(LINKCPP_ASSETS "/austen-moe-q4km.gguf").value();
  Manifest manifest = Manifest::Compute(file, 1, {}).value();
  ModelDetail detail;

  TestModel() {
    detail.summary.name = "austen";
    detail.summary.model_id = manifest.model_id().Hex();
    for (const MoeLayer& layer : file.moe_layers()) {
      LayerDetail& row = detail.layers.emplace_back();
      row.layer = layer.layer.value;
      row.n_experts = layer.n_experts;
      row.slice_bytes = layer.slice_bytes;
      for (std::size_t i = 0; i < layer.tensors.size(); ++i) {
        const ExpertTensor& tensor = layer.tensors[i];
        TensorDetail& column = row.tensors.emplace_back();
        column.projection = ProjectionName(tensor.projection);
        column.kind = KindName(tensor.kind);
        column.type = TensorTypeName(tensor.tensor->type);
        column.ne.assign(tensor.tensor->ne.begin(), tensor.tensor->ne.end());
        column.slab_bytes = tensor.slab_bytes;
        for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert) {
          column.hashes.push_back(
              manifest.Find({layer.layer, ExpertId(static_cast<std::uint16_t>(expert))})->at(i).hash.Hex());
        }
      }
    }
  }
  std::uint64_t slice_bytes(std::size_t layer = 0) const { return file.moe_layers()[layer].slice_bytes; }
};

const TestModel& Model() {
  static const TestModel* const model = new TestModel;
  return *model;
}

// Serves shards as the coordinator does, with accidents on demand.
class FakeHttp final : public HttpClient {
 public:
  struct Script {
    std::atomic<int> downloads{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> flip_at{0};      // this byte of a shard is flipped; 0: none
    std::atomic<int> flips_left{0};             // in so many downloads
    std::atomic<std::uint64_t> break_after{0};  // the connection breaks after so many bytes, once
    std::atomic<int> status{200};
    std::atomic<bool> other_etag{false};
    std::atomic<std::uint64_t> resumed_at{0};
    std::function<void()> on_piece;
  };
  explicit FakeHttp(Script& script) : script_(script) {}

  Result<HttpReply> Call(const std::string&, const std::string&, const std::string&,
                         std::chrono::milliseconds) override {
    return Fail(FaultCode::kGone, "not asked for in these tests");
  }

  Result<HttpReply> Download(const std::string& path, std::uint64_t offset, const std::string& etag,
                             const OnStatus& on_status, const OnBytes& on_bytes) override {
    if (stopped_) return Fail(FaultCode::kGone, "stopped");
    ++script_.downloads;
    if (script_.status != 200) return HttpReply{script_.status, ErrorJson(FaultCode::kRefused, "not for you"), ""};
    const auto value = [&path](const std::string& key) {
      const auto begin = path.find(key + "=") + key.size() + 1;
      return path.substr(begin, path.find('&', begin) - begin);
    };
    const auto layers = ParseRanges(value("layers"), 1000).value();
    const auto experts = ParseRanges(value("experts"), 1000).value();
    const Shard shard = Shard::Plan(Model().file, Model().manifest, layers, experts).value();
    const std::string tag = script_.other_etag ? "\"other\"" : shard.etag();
    const bool partial = offset > 0 && etag == tag;
    std::uint64_t at = partial ? offset : 0;
    if (partial && at >= shard.size_bytes()) return HttpReply{416, "", ""};
    const HttpReply reply{partial ? 206 : 200, "", tag};
    if (partial) script_.resumed_at = at;
    if (!on_status(reply, shard.size_bytes() - at)) return Fail(FaultCode::kGone, "stopped by the receiver");
    std::vector<std::byte> piece;
    const bool flip = script_.flip_at > 0 && script_.flips_left > 0;
    if (flip) --script_.flips_left;
    while (at < shard.size_bytes()) {
      if (script_.on_piece) script_.on_piece();
      piece.resize(std::min<std::uint64_t>(64 << 10, shard.size_bytes() - at));
      EXPECT_TRUE(shard.Read(at, piece));
      const std::uint64_t bad = script_.flip_at;
      if (flip && bad >= at && bad < at + piece.size()) piece[bad - at] ^= std::byte{0x40};
      if (const std::uint64_t end = script_.break_after; end != 0 && at + piece.size() > end) {
        piece.resize(end > at ? end - at : 0);
        if (!piece.empty()) on_bytes(reinterpret_cast<const char*>(piece.data()), piece.size());
        script_.break_after = 0;
        return Fail(FaultCode::kGone, "the connection was lost");
      }
      if (!on_bytes(reinterpret_cast<const char*>(piece.data()), piece.size()))
        return Fail(FaultCode::kGone, "stopped by the receiver");
      at += piece.size();
      script_.bytes += piece.size();
    }
    return reply;
  }

  void Stop() override { stopped_ = true; }

 private:
  Script& script_;
  std::atomic<bool> stopped_{false};
};

class LoaderTest : public testing::Test {
 protected:
  LoaderTest()
      : cache(SlabCache::Open(dir.path()).value()),
        catalog(std::make_shared<const Catalog>(Catalog::Make(Model().detail).value())),
        rack(FakeStack::Factory(behaviour)) {}
  ~LoaderTest() override { StopLoader(); }

  void StartLoader(LoaderOptions options) {
    options.withdraw_grace = 1ms;
    if (options.memory_bytes == 0) options.memory_bytes = 1ull << 30;
    loader =
        std::make_unique<Loader>(options, rack, cache, std::make_unique<FakeHttp>(script), log, [this] { ++changes; });
    thread = std::thread([this] { loader->Run(); });
  }
  void StartLoader() { StartLoader({.retry_first = 20ms, .retry_most = 40ms}); }
  void StopLoader() {
    if (!loader) return;
    loader->Stop();
    thread.join();
    loader.reset();
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }
  bool Settles() {
    return Eventually([this] { return loader->status().settled; });
  }
  std::string Held(std::uint16_t layer) { return FormatRanges(rack.Experts(LayerId(layer))); }

  // The fake's answers carry a byte of the down slab: compares them with the model file.
  void ExpectRightBytes(std::uint16_t layer, std::uint16_t expert) {
    DispatchMessage ask;
    ask.layer = LayerId(layer);
    ask.recipe = Recipe::Swiglu();
    ask.n_rows = 1;
    ask.row_len = 256;
    ask.pairs = {{0, expert}};
    const std::vector<float> x(256, 1);
    std::vector<float> y;
    ASSERT_TRUE(rack.Compute(ask, x, 1 << 20, y));
    const auto slabs = Model().file.Slabs({LayerId(layer), ExpertId(expert)}).value();
    for (const SlabRef& slab : slabs) {
      if (slab.projection != Projection::kDown) continue;
      std::byte first{};
      ASSERT_TRUE(Model().file.ReadAt(slab.file, slab.offset, {&first, 1}));
      EXPECT_EQ(y[0], static_cast<float>(static_cast<int>(first) + 1)) << "layer " << layer << " expert " << expert;
    }
  }
  int PartFiles() {
    int n = 0;
    for (const auto& entry : std::filesystem::directory_iterator(cache.downloads_dir()))
      n += entry.path().extension() == ".part" ? 1 : 0;
    return n;
  }

  TempDir dir;
  const SlabCache cache;
  const std::shared_ptr<const Catalog> catalog;
  FakeStack::Behaviour behaviour;
  FakeHttp::Script script;
  NullLog log;
  Rack rack;
  std::atomic<int> changes{0};
  std::unique_ptr<Loader> loader;
  std::thread thread;
};

TEST_F(LoaderTest, DownloadsVerifiesAndLoadsWhatTheOrdersSay) {
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:3,9"}, {2, "15"}});
  ASSERT_TRUE(Settles()) << loader->status().error;
  EXPECT_EQ(Held(0), "0:3,9");
  EXPECT_EQ(Held(2), "15");
  for (const int expert : {0, 1, 2, 9}) ExpectRightBytes(0, static_cast<std::uint16_t>(expert));
  ExpectRightBytes(2, 15);
  EXPECT_EQ(script.downloads, 2);
  EXPECT_EQ(loader->status().wanted_bytes, 0u);
  EXPECT_EQ(loader->status().slices_wanted, 5u);
  EXPECT_GE(loader->status().downloaded_bytes, 4 * Model().slice_bytes(0) + Model().slice_bytes(2));
  EXPECT_GE(changes, 1);
  EXPECT_EQ(PartFiles(), 0);
}

TEST_F(LoaderTest, ARestartDownloadsNothing) {
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:4"}});
  ASSERT_TRUE(Settles());
  StopLoader();
  rack.Remove(LayerId(0));
  script.downloads = 0;
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:4"}});
  ASSERT_TRUE(Settles());
  EXPECT_EQ(script.downloads, 0);
  EXPECT_EQ(Held(0), "0:4");
  ExpectRightBytes(0, 3);
}

TEST_F(LoaderTest, ABadCacheFileIsDownloadedAgain) {
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:4"}});
  ASSERT_TRUE(Settles());
  StopLoader();
  rack.Remove(LayerId(0));
  const Hash hash = catalog->Find(LayerId(0))->tensors[1].hashes[2];
  std::fstream(cache.PathOf(hash), std::ios::in | std::ios::out | std::ios::binary).put('!').put('!');
  script.downloads = 0;
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:4"}});
  ASSERT_TRUE(Settles());
  EXPECT_EQ(script.downloads, 1);
  EXPECT_EQ(Held(0), "0:4");
  std::vector<std::byte> slab(catalog->Find(LayerId(0))->tensors[1].slab_bytes);
  EXPECT_TRUE(cache.Get(hash, slab));
}

TEST_F(LoaderTest, ABrokenDownloadResumesWhereItStopped) {
  script.break_after = 200'000;
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:8"}});
  ASSERT_TRUE(Settles()) << loader->status().error;
  EXPECT_EQ(script.downloads, 2);
  EXPECT_EQ(script.resumed_at, 200'000u);
  EXPECT_EQ(Held(0), "0:8");
  EXPECT_EQ(loader->status().error, "");
}

TEST_F(LoaderTest, AnotherProcessResumesItToo) {
  script.break_after = 200'000;
  StartLoader({.retry_first = 60s, .retry_most = 60s});
  loader->SetWanted(catalog, {{0, "0:8"}});
  ASSERT_TRUE(Eventually([&] { return !loader->status().error.empty(); }));
  StopLoader();
  EXPECT_EQ(PartFiles(), 1);
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:8"}});
  ASSERT_TRUE(Settles());
  EXPECT_EQ(script.resumed_at, 200'000u);
  EXPECT_EQ(PartFiles(), 0);
}

TEST_F(LoaderTest, BeginsAnewWhenTheShardHasChanged) {
  script.break_after = 200'000;
  StartLoader({.retry_first = 60s, .retry_most = 60s});
  loader->SetWanted(catalog, {{0, "0:8"}});
  ASSERT_TRUE(Eventually([&] { return !loader->status().error.empty(); }));
  StopLoader();
  script.other_etag = true;
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:8"}});
  ASSERT_TRUE(Settles()) << loader->status().error;
  EXPECT_EQ(script.resumed_at, 0u);
  EXPECT_EQ(Held(0), "0:8");
}

TEST_F(LoaderTest, AFlippedByteIsDownloadedOnceMore) {
  script.flip_at = 400'000;  // in the middle of some slab
  script.flips_left = 1;
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:8"}});
  ASSERT_TRUE(Settles()) << loader->status().error;
  EXPECT_EQ(script.downloads, 2);
  EXPECT_EQ(Held(0), "0:8");
  for (std::uint16_t expert = 0; expert < 8; ++expert) ExpectRightBytes(0, expert);
}

TEST_F(LoaderTest, AWrongSliceNeverLoadsHoweverOftenItComes) {
  script.flip_at =
      Shard::Plan(Model().file, Model().manifest, std::vector<std::uint16_t>{0}, std::vector<std::uint16_t>{5})
          ->header_bytes() +
      10;
  script.flips_left = 1000;
  StartLoader({.retry_first = 60s, .retry_most = 60s});
  loader->SetWanted(catalog, {{0, "5"}, {1, "0:2"}});
  ASSERT_TRUE(Eventually([&] { return !loader->status().error.empty(); }));
  EXPECT_NE(loader->status().error.find("layer 0 expert 5"), std::string::npos) << loader->status().error;
  EXPECT_EQ(Held(0), "");
  EXPECT_FALSE(loader->status().settled);
  EXPECT_EQ(script.downloads, 2 + 2) << "twice for each layer, and no more before the next try";
}

TEST_F(LoaderTest, ARefusalIsReportedWithTheCoordinatorsReason) {
  script.status = 404;
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:2"}});
  ASSERT_TRUE(Eventually([&] { return !loader->status().error.empty(); }));
  EXPECT_NE(loader->status().error.find("not for you"), std::string::npos) << loader->status().error;
  script.status = 200;
  ASSERT_TRUE(Settles()) << "it is tried again";
  EXPECT_EQ(loader->status().error, "");
}

TEST_F(LoaderTest, NeverHoldsMoreThanItsBudget) {
  const std::uint64_t slice = Model().slice_bytes(0);
  StartLoader({.memory_bytes = 5 * slice + slice / 2, .retry_first = 60s, .retry_most = 60s});
  loader->SetWanted(catalog, {{0, "0:16"}});
  ASSERT_TRUE(Eventually([&] { return !loader->status().error.empty(); }));
  EXPECT_EQ(Held(0), "0:5") << "what fits is held";
  EXPECT_NE(loader->status().error.find("--memory"), std::string::npos);
  EXPECT_EQ(rack.Slots(LayerId(0)), 5u);
}

TEST_F(LoaderTest, DropsWhatIsNotWantedAnyMore) {
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:4"}, {1, "0:4"}});
  ASSERT_TRUE(Settles());
  loader->SetWanted(catalog, {{1, "2:4"}});
  ASSERT_TRUE(Settles());
  EXPECT_EQ(Held(0), "");
  EXPECT_EQ(Held(1), "2,3");
  EXPECT_EQ(rack.Layers().size(), 1u);
  ExpectRightBytes(1, 3);
}

TEST_F(LoaderTest, GrowsALayerWithoutLosingWhatItHolds) {
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:4"}});
  ASSERT_TRUE(Settles());
  std::atomic<bool> gap{false};
  script.on_piece = [&] { gap = gap || Held(0) != "0:4"; };
  loader->SetWanted(catalog, {{0, "0:4,8:10"}});
  ASSERT_TRUE(Settles());
  EXPECT_FALSE(gap) << "the first four were there all the time";
  EXPECT_EQ(Held(0), "0:4,8,9");
  ExpectRightBytes(0, 2);
  ExpectRightBytes(0, 9);
  EXPECT_EQ(behaviour.alive, 1);
}

TEST_F(LoaderTest, SwapsExpertsInPlace) {
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:4"}});
  ASSERT_TRUE(Settles());
  const int loads = behaviour.loads;
  loader->SetWanted(catalog, {{0, "0:3,10"}});
  ASSERT_TRUE(Settles());
  EXPECT_EQ(behaviour.loads, loads + 1) << "only the new one";
  EXPECT_EQ(Held(0), "0:3,10");
  ExpectRightBytes(0, 10);
}

TEST_F(LoaderTest, GrowsWithinATightBudgetByStartingTheLayerAnew) {
  const std::uint64_t slice = Model().slice_bytes(0);
  // The fake's stacks count 100 bytes a slot, so the budget is tight only for the plan: use real sizes here.
  StartLoader({.memory_bytes = 6 * slice, .retry_first = 20ms, .retry_most = 40ms});
  loader->SetWanted(catalog, {{0, "0:4"}});
  ASSERT_TRUE(Settles());
  loader->SetWanted(catalog, {{0, "0:6"}});
  ASSERT_TRUE(Settles());
  EXPECT_EQ(Held(0), "0:6");
  EXPECT_EQ(behaviour.alive, 1);
}

TEST_F(LoaderTest, NewOrdersInterruptADownload) {
  std::atomic<bool> hold{true};
  script.on_piece = [&] {
    while (hold) std::this_thread::sleep_for(1ms);
  };
  StartLoader();
  loader->SetWanted(catalog, {{0, "0:16"}});
  ASSERT_TRUE(Eventually([&] { return script.downloads == 1; }));
  loader->SetWanted(catalog, {{1, "0"}});
  hold = false;
  ASSERT_TRUE(Settles());
  EXPECT_EQ(Held(0), "");
  EXPECT_EQ(Held(1), "0");
  EXPECT_LT(script.bytes, 8 * Model().slice_bytes(0)) << "the rest of layer 0 was not fetched";
}

TEST_F(LoaderTest, OrdersThatMakeNoSenseAreReported) {
  StartLoader();
  loader->SetWanted(catalog, {{77, "0:2"}});
  ASSERT_TRUE(Eventually([&] { return !loader->status().error.empty(); }));
  EXPECT_NE(loader->status().error.find("layer 77"), std::string::npos);
  loader->SetWanted(catalog, {{0, "0:99"}});
  ASSERT_TRUE(Eventually([&] { return loader->status().error.find("16") != std::string::npos; }))
      << loader->status().error;
}

TEST(Catalog, RefusesDescriptionsThatDoNotHangTogether) {
  const auto broken = [](const std::function<void(ModelDetail&)>& damage) {
    ModelDetail detail = Model().detail;
    damage(detail);
    const auto catalog = Catalog::Make(detail);
    EXPECT_FALSE(catalog);
    return catalog ? std::string() : catalog.error().text;
  };
  EXPECT_NE(broken([](ModelDetail& d) { d.layers[1].tensors[0].type = "Q9_Z"; }).find("Q9_Z"), std::string::npos);
  EXPECT_NE(broken([](ModelDetail& d) { d.layers[1].tensors[0].hashes.pop_back(); }).find("layer 1"),
            std::string::npos);
  broken([](ModelDetail& d) { d.layers[0].tensors[0].hashes[3] = "abc"; });
  broken([](ModelDetail& d) { d.layers[0].tensors[0].slab_bytes = ~0ull; });
  broken([](ModelDetail& d) { d.layers[0].tensors[0].ne = {0, 0, 0}; });
  broken([](ModelDetail& d) { d.layers[0].tensors[0].projection = "sideways"; });
  broken([](ModelDetail& d) { d.layers[0].n_experts = 0; });
  broken([](ModelDetail& d) { d.layers.clear(); });
}

}  // namespace
}  // namespace linkcpp
