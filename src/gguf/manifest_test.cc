#include "gguf/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>

#include "base/rng.h"
#include "gguf/test_gguf.h"

namespace linkcpp {
namespace {

using test::File;
using test::TempDir;
using test::TinyMoe;
using ::testing::HasSubstr;

ModelFile OpenOrDie(const std::string& path) {
  auto model = ModelFile::Open(path);
  if (!model) ADD_FAILURE() << model.error().text;
  return std::move(model.value());
}

TEST(Manifest, HashesTheBytesOfEverySlab) {
  const TempDir dir;
  const std::string bytes = TinyMoe().Bytes();
  const ModelFile model = OpenOrDie(dir.Write("m.gguf", bytes));
  const auto manifest = Manifest::Compute(model, 3, {});
  ASSERT_TRUE(manifest) << manifest.error().text;
  EXPECT_EQ(manifest->n_slices(), 8u);
  EXPECT_EQ(manifest->header_hash(), model.header_hash());
  for (const MoeLayer& layer : model.moe_layers()) {
    for (std::uint16_t expert = 0; expert < layer.n_experts; ++expert) {
      const SliceId slice{layer.layer, ExpertId(expert)};
      const auto slabs = model.Slabs(slice);
      const auto* hashes = manifest->Find(slice);
      ASSERT_NE(hashes, nullptr);
      ASSERT_EQ(hashes->size(), slabs->size());
      for (std::size_t i = 0; i < hashes->size(); ++i) {
        const SlabRef& slab = slabs->at(i);
        EXPECT_EQ(hashes->at(i).projection, slab.projection);
        EXPECT_EQ(hashes->at(i).kind, slab.kind);
        EXPECT_EQ(hashes->at(i).size_bytes, slab.size_bytes);
        EXPECT_EQ(hashes->at(i).hash, HashOf(std::string_view(bytes).substr(slab.offset, slab.size_bytes)));
      }
    }
  }
  EXPECT_EQ(manifest->Find({LayerId(1), ExpertId(0)}), nullptr);
  EXPECT_EQ(manifest->Find({LayerId(0), ExpertId(4)}), nullptr);
}

// Slabs that are larger than one read and do not end where one ends.
TEST(Manifest, SlabsLargerThanAReadAreHashedWhole) {
  File file;
  const std::uint64_t slab_bytes = 4 * 3 * 250'007;
  file.tensors = {{.name = "blk.3.ffn_up_exps.weight", .ne = {3, 250'007, 5}, .size_bytes = slab_bytes * 5}};
  const TempDir dir;
  const std::string bytes = file.Bytes();
  const ModelFile model = OpenOrDie(dir.Write("m.gguf", bytes));
  std::uint64_t last_done = 0;
  std::uint64_t last_total = 0;
  const auto manifest = Manifest::Compute(model, 2, [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last_done);
    last_done = done;
    last_total = total;
  });
  ASSERT_TRUE(manifest);
  EXPECT_EQ(last_done, 5 * slab_bytes);
  EXPECT_EQ(last_total, 5 * slab_bytes);
  for (std::uint16_t expert = 0; expert < 5; ++expert) {
    EXPECT_EQ(manifest->Find({LayerId(3), ExpertId(expert)})->at(0).hash,
              HashOf(std::string_view(bytes).substr(file.Header().size() + expert * slab_bytes, slab_bytes)));
  }
}

TEST(Manifest, TheModelIdDependsOnEveryExpertByteAndTheHeaderOnly) {
  const TempDir dir;
  const std::string bytes = TinyMoe().Bytes();
  const auto id = [&](const std::string& changed) {
    return Manifest::Compute(OpenOrDie(dir.Write("m.gguf", changed)), 1, {})->model_id();
  };
  const Hash original = id(bytes);
  EXPECT_EQ(id(bytes), original);
  const ModelFile model = OpenOrDie(dir.Write("m.gguf", bytes));
  std::string changed = bytes;
  changed[model.FindTensor("blk.0.ffn_down_exps.bias")->offset + 7] ^= 1;
  EXPECT_NE(id(changed), original);
  changed = bytes;
  changed[changed.find("Tiny")] = 'T' + 1;
  EXPECT_NE(id(changed), original);
  changed = bytes;
  changed[model.FindTensor("token_embd.weight")->offset] ^= 1;  // not an expert's: the id can not see it
  EXPECT_EQ(id(changed), original);
}

TEST(Manifest, ADenseModelHasNoSlices) {
  File file;
  file.tensors = {{.name = "blk.0.ffn_up.weight", .ne = {8}, .size_bytes = 32}};
  const TempDir dir;
  const auto manifest = Manifest::Compute(OpenOrDie(dir.Write("m.gguf", file.Bytes())), 2, {});
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->n_slices(), 0u);
  EXPECT_EQ(Manifest::Decode(manifest->Encode())->model_id(), manifest->model_id());
}

TEST(Manifest, AModelThatShrinksIsAFault) {
  const TempDir dir;
  const std::string path = dir.Write("m.gguf", TinyMoe().Bytes());
  const ModelFile model = OpenOrDie(path);
  std::filesystem::resize_file(path, TinyMoe().Header().size() + 100);
  const auto manifest = Manifest::Compute(model, 2, {});
  ASSERT_FALSE(manifest);
  EXPECT_EQ(manifest.error().code, FaultCode::kLocal);
}

TEST(Manifest, AModelThatChangesIsAFault) {
  const TempDir dir;
  const std::string path = dir.Write("m.gguf", TinyMoe().Bytes());
  const ModelFile model = OpenOrDie(path);
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(5));
  const auto manifest = Manifest::Compute(model, 2, {});
  ASSERT_FALSE(manifest);
  EXPECT_THAT(manifest.error().text, HasSubstr("was changed"));
}

// ---- bytes

TEST(Manifest, DecodesWhatItEncoded) {
  const TempDir dir;
  const auto manifest = Manifest::Compute(OpenOrDie(dir.Write("m.gguf", TinyMoe().Bytes())), 2, {});
  ASSERT_TRUE(manifest);
  const auto decoded = Manifest::Decode(manifest->Encode());
  ASSERT_TRUE(decoded) << decoded.error().text;
  EXPECT_EQ(decoded->model_id(), manifest->model_id());
  EXPECT_EQ(decoded->header_hash(), manifest->header_hash());
  EXPECT_EQ(decoded->slices(), manifest->slices());
}

TEST(Manifest, CutOffOrChangedAnywhereDoesNotDecode) {
  const TempDir dir;
  const std::string bytes = Manifest::Compute(OpenOrDie(dir.Write("m.gguf", TinyMoe().Bytes())), 2, {})->Encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = Manifest::Decode(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(decoded) << size;
    EXPECT_EQ(decoded.error().code, FaultCode::kMalformed);
  }
  EXPECT_FALSE(Manifest::Decode(bytes + '\0'));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0xff}) {
      std::string broken = bytes;
      broken[at] = static_cast<char>(broken[at] ^ flip);
      ASSERT_FALSE(Manifest::Decode(broken)) << "byte " << at << " xor " << flip;
    }
  }
}

// ---- the cache

class ManifestCache : public ::testing::Test {
 protected:
  // How often Compute had to read the model.
  int Load() {
    int n_computed = 0;
    const ModelFile model = OpenOrDie(path_);
    const auto manifest = Manifest::LoadOrCompute(model, cache_dir_, [&](auto done, auto total) {
      if (done == total) n_computed = 1;
    });
    EXPECT_TRUE(manifest);
    EXPECT_EQ(manifest->model_id(), Manifest::Compute(model, 1, {})->model_id());
    return n_computed;
  }

  TempDir dir_;
  std::string path_ = dir_.Write("m.gguf", TinyMoe().Bytes());
  std::string beside_ = path_ + ".linkcpp-manifest";
  std::string cache_dir_ = dir_ / "cache";
};

TEST_F(ManifestCache, IsKeptBesideTheModel) {
  EXPECT_EQ(Load(), 1);
  EXPECT_TRUE(std::filesystem::exists(beside_));
  EXPECT_FALSE(std::filesystem::exists(cache_dir_));
  EXPECT_EQ(Load(), 0);
}

TEST_F(ManifestCache, ABrokenOneIsReplaced) {
  EXPECT_EQ(Load(), 1);
  const std::string good = test::ReadFile(beside_);
  for (const std::string& bad : {good.substr(0, good.size() - 1), good + "x", std::string(), std::string(40, 'x')}) {
    dir_.Write("m.gguf.linkcpp-manifest", bad);
    EXPECT_EQ(Load(), 1);
    EXPECT_EQ(test::ReadFile(beside_), good);
  }
  for (std::size_t at = 0; at < good.size(); at += 13) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    dir_.Write("m.gguf.linkcpp-manifest", bad);
    EXPECT_EQ(Load(), 1) << at;
  }
}

TEST_F(ManifestCache, AStaleOneIsReplaced) {
  EXPECT_EQ(Load(), 1);
  File changed = TinyMoe();
  changed.seed = 1;  // the same header and size, other weights
  const auto before = std::filesystem::last_write_time(path_);
  dir_.Write("m.gguf", changed.Bytes());
  std::filesystem::last_write_time(path_, before + std::chrono::milliseconds(10));
  EXPECT_EQ(Load(), 1);
  EXPECT_EQ(Load(), 0);
}

TEST_F(ManifestCache, GoesToTheCacheFolderWhenItCannotBeBeside) {
  std::filesystem::create_directory(beside_);  // also stops root, whom permissions do not
  std::ofstream(beside_ + "/occupied") << "x";
  EXPECT_EQ(Load(), 1);
  EXPECT_EQ(Load(), 0);
  EXPECT_TRUE(std::filesystem::exists(cache_dir_));
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr(".part")));
  }
  cache_dir_ = "";
  EXPECT_EQ(Load(), 1);  // nowhere to keep it: slow, but right
}

TEST(VerifySlab, TellsADamagedOne) {
  const std::string bytes(100, 'x');
  const SlabHash expected{Projection::kDown, SlabKind::kWeight, HashOf(bytes), bytes.size()};
  const SliceId slice{LayerId(3), ExpertId(9)};
  EXPECT_TRUE(VerifySlab(slice, expected, std::as_bytes(std::span(bytes))));
  std::string flipped = bytes;
  flipped[50] ^= 1;
  const auto fault = VerifySlab(slice, expected, std::as_bytes(std::span(flipped)));
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().code, FaultCode::kMalformed);
  EXPECT_THAT(fault.error().text, HasSubstr("down weight of layer 3, expert 9"));
  EXPECT_THAT(VerifySlab(slice, expected, std::as_bytes(std::span(bytes)).first(99)).error().text,
              HasSubstr("99 bytes"));
}

}  // namespace
}  // namespace linkcpp
