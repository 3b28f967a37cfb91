#include "gguf/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/rng.h"
#include "gguf/test_gguf.h"

namespace linkcpp {
namespace {

using test::File;
using test::TempDir;
using test::TinyMoe;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::vector<std::uint16_t>;

// ---- ranges

TEST(Ranges, ReadAndWritten) {
  EXPECT_THAT(ParseRanges("0:3,7", 16).value(), ElementsAre(0, 1, 2, 7));
  EXPECT_THAT(ParseRanges("7,0:3,2:4,7", 16).value(), ElementsAre(0, 1, 2, 3, 7));
  EXPECT_THAT(ParseRanges("all", 3).value(), ElementsAre(0, 1, 2));
  EXPECT_THAT(ParseRanges("", 3).value(), ElementsAre(0, 1, 2));
  EXPECT_EQ(ParseRanges("all", 65536)->size(), 65536u);
  EXPECT_EQ(FormatRanges(Numbers{0, 1, 2, 7}), "0:3,7");
  EXPECT_EQ(FormatRanges(Numbers{8, 9}), "8,9");
  EXPECT_EQ(FormatRanges(Numbers{65534, 65535}), "65534,65535");
  EXPECT_EQ(FormatRanges(Numbers{}), "");
  Rng rng(3);
  for (int i = 0; i < 200; ++i) {
    Numbers numbers;
    for (std::uint16_t n = 0; n < 40; ++n) {
      if (rng.Below(2) == 0) numbers.push_back(n);
    }
    if (numbers.empty()) continue;
    EXPECT_EQ(ParseRanges(FormatRanges(numbers), 40).value(), numbers);
  }
}

TEST(Ranges, WrongNotationIsMalformedAndWrongNumbersAreRefused) {
  for (const char* text : {",", "1,", ",1", "1:", ":1", "a", "1-3", "1:2:3", " 1", "1 ", "-1", "+1", "0x1", "3:3",
                           "4:2", "1,,2", "ALL", "all,1", "1.0"}) {
    const auto numbers = ParseRanges(text, 16);
    ASSERT_FALSE(numbers) << "'" << text << "'";
    EXPECT_EQ(numbers.error().code, FaultCode::kMalformed) << "'" << text << "'";
  }
  for (const char* text : {"16", "0:17", "3,99999999999999999999999", "5:99999999999999999999999", "70000"}) {
    const auto numbers = ParseRanges(text, 16);
    ASSERT_FALSE(numbers) << text;
    EXPECT_EQ(numbers.error().code, FaultCode::kRefused) << text;
    EXPECT_THAT(numbers.error().text, HasSubstr("0 to 15 exist"));
  }
  EXPECT_THAT(ParseRanges("0:20", 16).error().text, HasSubstr("16 is out of range"));
  EXPECT_EQ(ParseRanges("0", 0).error().code, FaultCode::kRefused);
}

// ---- cutting

class ShardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = ModelFile::Open(path_);
    ASSERT_TRUE(model) << model.error().text;
    model_ = std::make_unique<ModelFile>(std::move(*model));
    auto manifest = Manifest::Compute(*model_, 2, {});
    ASSERT_TRUE(manifest);
    manifest_ = std::make_unique<Manifest>(std::move(*manifest));
  }

  Result<Shard> Plan(const Numbers& layers, const Numbers& experts) const {
    return Shard::Plan(*model_, *manifest_, layers, experts);
  }

  static std::string ReadAll(const Shard& shard) {
    std::string bytes(shard.size_bytes(), 'x');
    EXPECT_TRUE(shard.Read(0, std::as_writable_bytes(std::span(bytes))));
    return bytes;
  }

  static std::string SlabBytes(const ModelFile& model, SliceId slice) {
    std::string all;
    for (const SlabRef& slab : model.Slabs(slice).value()) {
      std::string bytes(slab.size_bytes, '\0');
      EXPECT_TRUE(model.ReadAt(slab.file, slab.offset, std::as_writable_bytes(std::span(bytes))));
      all += bytes;
    }
    return all;
  }

  TempDir dir_;
  std::string path_ = dir_.Write("m.gguf", TinyMoe().Bytes());
  std::unique_ptr<ModelFile> model_;
  std::unique_ptr<Manifest> manifest_;
};

TEST_F(ShardTest, HoldsTheSameBytesUnderTheSameNames) {
  const auto plan = Plan({0, 2}, {0, 1, 3});
  ASSERT_TRUE(plan) << plan.error().text;
  EXPECT_EQ(plan->n_slices(), 6u);
  const std::string out = dir_ / "shard.gguf";
  std::uint64_t shown = 0;
  ASSERT_TRUE(plan->WriteTo(out, [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_LE(done, total);
    shown = done;
  }));
  EXPECT_EQ(shown, plan->size_bytes());
  EXPECT_EQ(test::ReadFile(out), ReadAll(*plan));
  EXPECT_FALSE(std::filesystem::exists(out + ".part"));

  const auto shard = ModelFile::Open(out);
  ASSERT_TRUE(shard) << shard.error().text;
  EXPECT_EQ(shard->architecture(), "tinymoe");
  EXPECT_EQ(shard->Integer("tinymoe.block_count"), 3u);
  EXPECT_EQ(shard->tensors().size(), 7u);  // no router, no shared expert, no dense layer
  EXPECT_EQ(shard->FindTensor("blk.0.ffn_gate_inp.weight"), nullptr);
  EXPECT_EQ(shard->FindTensor("blk.0.ffn_up_shexp.weight"), nullptr);
  EXPECT_THAT(shard->FindTensor("blk.0.ffn_down_exps.weight")->ne, ElementsAre(8, 32, 3, 1));
  EXPECT_THAT(shard->FindTensor("blk.0.ffn_down_exps.bias")->ne, ElementsAre(32, 3, 1, 1));
  EXPECT_THAT(shard->FindTensor("blk.0.ffn_up_exps.scale")->ne, ElementsAre(3, 1, 1, 1));

  const auto info = ReadShardInfo(*shard);
  ASSERT_TRUE(info) << info.error().text;
  EXPECT_EQ(info->model_id, manifest_->model_id());
  EXPECT_EQ(info->header_hash, model_->header_hash());
  EXPECT_THAT(info->layers, ElementsAre(0, 2));
  EXPECT_THAT(info->experts, ElementsAre(0, 1, 3));
  EXPECT_EQ(info->LocalIndex(ExpertId(3)), 2u);
  EXPECT_EQ(info->LocalIndex(ExpertId(2)), std::nullopt);
  for (const std::uint16_t layer : info->layers) {
    for (std::uint16_t local = 0; local < 3; ++local) {
      const SliceId original{LayerId(layer), ExpertId(info->experts[local])};
      EXPECT_EQ(SlabBytes(*shard, {LayerId(layer), ExpertId(local)}), SlabBytes(*model_, original));
      for (std::size_t i = 0; i < shard->FindMoeLayer(LayerId(layer))->tensors.size(); ++i) {
        EXPECT_EQ(ShardSlabHash(*shard, shard->FindMoeLayer(LayerId(layer))->tensors[i], local).value(),
                  manifest_->Find(original)->at(i).hash);
      }
    }
  }
  EXPECT_TRUE(VerifyShard(*shard, 2, {}));
}

TEST_F(ShardTest, AnyRangeOfBytesIsThatRange) {
  const auto plan = Plan({0, 2}, {1, 3});
  ASSERT_TRUE(plan);
  const std::string whole = ReadAll(*plan);
  Rng rng(5);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t offset = rng.Below(whole.size() + 1);
    std::string part(rng.Below(std::min<std::uint64_t>(whole.size() - offset, 700) + 1), 'x');
    ASSERT_TRUE(plan->Read(offset, std::as_writable_bytes(std::span(part))));
    ASSERT_EQ(part, whole.substr(offset, part.size())) << offset;
  }
  std::string past(2, 'x');
  EXPECT_EQ(plan->Read(whole.size() - 1, std::as_writable_bytes(std::span(past))).error().code, FaultCode::kRefused);
  EXPECT_EQ(plan->Read(UINT64_MAX, std::as_writable_bytes(std::span(past))).error().code, FaultCode::kRefused);
}

TEST_F(ShardTest, TheEtagSaysWhatIsInIt) {
  EXPECT_EQ(Plan({0}, {1, 2})->etag(), Plan({0}, {1, 2})->etag());
  EXPECT_NE(Plan({0}, {1, 2})->etag(), Plan({0}, {1, 3})->etag());
  EXPECT_NE(Plan({0}, {1, 2})->etag(), Plan({2}, {1, 2})->etag());
  EXPECT_THAT(Plan({0}, {1})->etag(), ::testing::MatchesRegex("\"[0-9a-f]{64}\""));
}

TEST_F(ShardTest, WhatDoesNotExistIsRefusedByName) {
  EXPECT_THAT(Plan({0, 1}, {0}).error().text, HasSubstr("layer 1"));
  EXPECT_THAT(Plan({0, 9}, {0}).error().text, HasSubstr("layer 9"));
  EXPECT_THAT(Plan({0}, {0, 4}).error().text, HasSubstr("experts 0 to 3, not 4"));
  EXPECT_EQ(Plan({}, {0}).error().code, FaultCode::kRefused);
  EXPECT_EQ(Plan({0}, {}).error().code, FaultCode::kRefused);
  EXPECT_EQ(Plan({0}, {1, 1}).error().code, FaultCode::kRefused);
  EXPECT_EQ(Plan({2, 0}, {1}).error().code, FaultCode::kRefused);
  EXPECT_THAT(ParseLayers("all", *model_).value(), ElementsAre(0, 2));
  EXPECT_THAT(ParseLayers("0:4", *model_).error().text, HasSubstr("layer 3 is out of range: 0 to 2 exist"));
  EXPECT_THAT(ParseExperts("4", *model_).error().text, HasSubstr("expert 4 is out of range: 0 to 3 exist"));
}

TEST_F(ShardTest, AManifestOfAnotherModelIsRefused) {
  File other = TinyMoe();
  other.keys[1] = test::Text("general.name", "Other");
  const auto model = ModelFile::Open(dir_.Write("other.gguf", other.Bytes()));
  ASSERT_TRUE(model);
  EXPECT_EQ(Shard::Plan(*model, *manifest_, Numbers{0}, Numbers{0}).error().code, FaultCode::kRefused);
}

TEST_F(ShardTest, AShardOfAShardIsRefused) {
  const std::string out = dir_ / "shard.gguf";
  ASSERT_TRUE(Plan({0}, {1})->WriteTo(out, {}));
  const auto shard = ModelFile::Open(out);
  ASSERT_TRUE(shard);
  const auto manifest = Manifest::Compute(*shard, 1, {});
  ASSERT_TRUE(manifest);
  EXPECT_THAT(Shard::Plan(*shard, *manifest, Numbers{0}, Numbers{0}).error().text, HasSubstr("itself a shard"));
  EXPECT_EQ(ReadShardInfo(*model_).error().code, FaultCode::kRefused);
}

TEST_F(ShardTest, ADamagedShardIsFound) {
  const auto plan = Plan({0, 2}, {1, 3});
  const std::string whole = ReadAll(*plan);
  const std::string path = dir_.Write("shard.gguf", whole);
  const auto intact = ModelFile::Open(path);
  ASSERT_TRUE(intact);
  for (const TensorInfo& tensor : intact->tensors()) {
    std::string damaged = whole;
    damaged[tensor.offset + tensor.size_bytes - 1] ^= 0x10;
    const auto shard = ModelFile::Open(dir_.Write("damaged.gguf", damaged));
    ASSERT_TRUE(shard);
    const auto fault = VerifyShard(*shard, 2, {});
    ASSERT_FALSE(fault) << tensor.name;
    EXPECT_EQ(fault.error().code, FaultCode::kMalformed);
    EXPECT_THAT(fault.error().text, HasSubstr("'" + tensor.name + "' of expert 3"));
  }
}

TEST_F(ShardTest, NeverOverwritesTheModel) {
  const auto plan = Plan({0}, {1});
  const std::string before = test::ReadFile(path_);
  for (const std::string& target : {path_, dir_.path() + "/./m.gguf"}) {
    const auto fault = plan->WriteTo(target, {});
    ASSERT_FALSE(fault);
    EXPECT_THAT(fault.error().text, HasSubstr("is the model itself"));
  }
  std::filesystem::create_symlink(path_, dir_ / "link.gguf");
  EXPECT_FALSE(plan->WriteTo(dir_ / "link.gguf", {}));
  std::filesystem::create_symlink(path_, dir_ / "x.gguf.part");
  EXPECT_FALSE(plan->WriteTo(dir_ / "x.gguf", {}));
  EXPECT_EQ(test::ReadFile(path_), before);
}

TEST_F(ShardTest, PlacesThatCannotBeWritten) {
  const auto plan = Plan({0}, {1});
  EXPECT_THAT(plan->WriteTo(dir_.path(), {}).error().text, HasSubstr("is a directory"));
  EXPECT_THAT(plan->WriteTo(dir_ / "no/such/folder.gguf", {}).error().text, HasSubstr("cannot create"));
  EXPECT_THAT(plan->WriteTo("/dev/null", {}).error().text, HasSubstr("not a plain file"));
}

// A model that changes under the copy: the fault names the file, and no half shard is left.
TEST_F(ShardTest, AModelThatShrinksLeavesNoPart) {
  const auto plan = Plan({2}, {3});
  ASSERT_TRUE(plan);
  std::filesystem::resize_file(path_, TinyMoe().Header().size());
  const auto fault = plan->WriteTo(dir_ / "shard.gguf", {});
  ASSERT_FALSE(fault);
  EXPECT_THAT(fault.error().text, HasSubstr("m.gguf"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "shard.gguf"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "shard.gguf.part"));
}

TEST(Shard, OfAModelInMemoryNeedsNoFileDescriptor) {
  std::vector<std::unique_ptr<ByteSource>> sources;
  sources.push_back(std::make_unique<MemorySource>(TinyMoe().Bytes()));
  const auto model = ModelFile::FromSources({"memory"}, std::move(sources));
  ASSERT_TRUE(model);
  const auto manifest = Manifest::Compute(*model, 1, {});
  const auto plan = Shard::Plan(*model, *manifest, Numbers{0, 2}, Numbers{0, 2});
  ASSERT_TRUE(plan);
  const TempDir dir;
  ASSERT_TRUE(plan->WriteTo(dir / "s.gguf", {}));  // the read and write fallback
  EXPECT_TRUE(VerifyShard(ModelFile::Open(dir / "s.gguf").value(), 1, {}));
}

}  // namespace
}  // namespace linkcpp
