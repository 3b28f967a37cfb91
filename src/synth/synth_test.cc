// What the makers of models promise: the reference model's exact totals, llama.cpp's quantisation rules at known
// places, blocks that ggml accepts with the spread that was asked for, and the same bytes for the same seed.
#include <ggml.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>
#include <set>

#include "synth/fill.h"
#include "synth/layers.h"
#include "synth/plan.h"
#include "synth/vocabulary.h"
#include "synth/write.h"

namespace linkcpp {
namespace {

SynthPlan Plan(const PlanOptions& options) {
  auto plan = PlanSynth(options);
  EXPECT_TRUE(plan.has_value()) << plan.error().text;
  return plan.value_or(SynthPlan{});
}

const PlannedTensor& Find(const SynthPlan& plan, std::string_view name) {
  static const PlannedTensor none;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return none;
}

std::vector<char> Bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::temp_directory_path() / std::format("synth_test.{}", ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(std::string_view name) const { return path_ / name; }
  bool Empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

// ---- types

TEST(TensorTypes, AgreeWithGgml) {
  for (const TensorTypeInfo& info : AllTensorTypes()) {
    const auto type = static_cast<ggml_type>(info.type);
    EXPECT_EQ(info.name, ggml_type_name(type));
    EXPECT_EQ(info.block_elements, ggml_blck_size(type)) << info.name;
    EXPECT_EQ(info.block_bytes, ggml_type_size(type)) << info.name;
  }
}

TEST(HalfBits, RoundsAsGgmlDoes) {
  Rng rng(1);
  for (int i = 0; i < 200'000; ++i) {
    const float value =
        static_cast<float>((rng.Uniform() - 0.5) * std::ldexp(1.0, static_cast<int>(rng.Below(44)) - 27));
    ASSERT_EQ(HalfBits(value), ggml_fp32_to_fp16(value)) << value;
  }
  for (const float value : {0.f, -0.f, 65504.f, 65519.f, 65520.f, 1e9f, -1e9f, 6e-8f, 2.9e-8f, 6.1035e-5f}) {
    EXPECT_EQ(HalfBits(value), ggml_fp32_to_fp16(value)) << value;
  }
}

// ---- blocks

TEST(BlockFiller, BlocksAreValidAndHaveTheWantedSpread) {
  constexpr std::size_t kElements = 1 << 18;
  constexpr double kWanted = 0.018;  // 1/√3072
  for (const TensorTypeInfo& info : AllTensorTypes()) {
    const auto type = static_cast<ggml_type>(info.type);
    std::vector<std::byte> bytes(kElements / info.block_elements * info.block_bytes);
    Rng rng(7);
    BlockFiller(info.type, Fill::Spread(kWanted)).Draw(rng, bytes);
    EXPECT_TRUE(ggml_validate_row_data(type, bytes.data(), bytes.size())) << info.name;

    std::vector<float> values(kElements);
    if (info.type == TensorType::kF32) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      ggml_get_type_traits(type)->to_float(bytes.data(), values.data(), kElements);
    }
    double sum = 0, square = 0;
    for (const float value : values) {
      sum += value;
      square += static_cast<double>(value) * value;
    }
    const double mean = sum / kElements, deviation = std::sqrt(square / kElements - mean * mean);
    // Scales are drawn per block, so fewer independent draws than elements: 1024 blocks of 256 give about 1 %; MXFP4's
    // mixture of two powers of two is in sixteenths, 3 %.
    EXPECT_NEAR(deviation / kWanted, 1, 0.04) << info.name;
    EXPECT_LT(std::abs(mean) / kWanted, 0.02) << info.name;
  }
}

TEST(BlockFiller, Q8NeverHoldsMinus128) {
  std::vector<std::byte> bytes(34 * 1000);
  Rng rng(3);
  BlockFiller(TensorType::kQ8_0, Fill::Spread(1)).Draw(rng, bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i % 34 < 2) continue;  // the scale
    ASSERT_NE(bytes[i], std::byte{0x80}) << i;
  }
}

TEST(BlockFiller, RangesAreKept) {
  std::vector<float> values(10'000);
  Rng rng(3);
  BlockFiller(TensorType::kF32, Fill::Range(-16, -1)).Draw(rng, std::as_writable_bytes(std::span(values)));
  const auto [least, greatest] = std::ranges::minmax(values);
  EXPECT_GE(least, -16);
  EXPECT_LT(least, -15.9);
  EXPECT_LE(greatest, -1);
  EXPECT_GT(greatest, -1.1);
}

// ---- the reference model, as its published files have it

TEST(Qwen35_122B, TotalsOfTheQ4KMFile) {
  const PlanTotals totals = Plan({.like = "qwen3.5-122b"}).Totals();
  EXPECT_EQ(totals.n_tensors, 879);
  EXPECT_EQ(totals.n_parameters, 122'111'526'912);
  EXPECT_EQ(totals.expert_bytes, 70'212'648'960);
  EXPECT_EQ(totals.other_bytes, 3'989'090'304);
}

TEST(Qwen35_122B, TotalsOfTheQ8File) {
  const SynthPlan plan = Plan({.like = "Qwen3.5-122B-A10B", .type = "q8_0"});
  EXPECT_NEAR(static_cast<double>(plan.data_bytes) / 1e9, 129.861, 0.001);
}

TEST(Qwen35_35B, HasAsManyTensorsAsThePublishedFile) {
  EXPECT_EQ(Plan({.like = "qwen3.5-35b"}).Totals().n_tensors, 733);
}

TEST(Qwen35_122B, OneExpert) {
  const SynthPlan plan = Plan({.like = "qwen3.5-122b"});
  std::uint64_t slice = 0;
  for (const char* part : {"gate", "up", "down"}) {
    slice += Find(plan, std::format("blk.0.ffn_{}_exps.weight", part)).size_bytes / 256;
  }
  EXPECT_EQ(slice, 6'119'424);
}

TEST(Qwen35_122B, MoreBitsOnTheseLayers) {
  const std::set<int> more = {0, 1, 2, 3, 4, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35, 38, 41, 42, 43, 44, 45, 46, 47};
  const SynthPlan plan = Plan({.like = "qwen3.5-122b"});
  for (int layer = 0; layer < 48; ++layer) {
    const TensorType wanted = more.contains(layer) ? TensorType::kQ6_K : TensorType::kQ4_K;
    EXPECT_EQ(Find(plan, std::format("blk.{}.ffn_down_exps.weight", layer)).type, wanted) << layer;
    EXPECT_EQ(Find(plan, std::format("blk.{}.ffn_down_shexp.weight", layer)).type, wanted) << layer;
    EXPECT_EQ(Find(plan, std::format("blk.{}.ffn_up_exps.weight", layer)).type, TensorType::kQ4_K) << layer;
    const bool full = (layer + 1) % 4 == 0;
    EXPECT_EQ(Find(plan, std::format("blk.{}.{}.weight", layer, full ? "attn_v" : "attn_qkv")).type, wanted) << layer;
  }
  EXPECT_EQ(Find(plan, "output.weight").type, TensorType::kQ6_K);
  EXPECT_EQ(Find(plan, "token_embd.weight").type, TensorType::kQ4_K);
  EXPECT_EQ(Find(plan, "blk.0.ffn_gate_inp.weight").type, TensorType::kF32);
  EXPECT_EQ(Find(plan, "blk.0.ssm_conv1d.weight").type, TensorType::kF32);
}

TEST(Qwen35_122B, FourLayersFollowTheRuleOfFour) {
  const SynthPlan plan = Plan({.like = "qwen3.5-122b", .layers = 4, .vocabulary = 2048});
  const std::vector<bool> more = {false, false, true, true};  // n/8 = 0, 7n/8 = 3, (il - 0) % 3 == 2
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(UseMoreBits(layer, 4), more[layer]) << layer;
    EXPECT_EQ(Find(plan, std::format("blk.{}.ffn_down_exps.weight", layer)).type == TensorType::kQ6_K, more[layer]);
  }
}

// ---- all models

TEST(Geometries, HaveThePublishedNumberOfParameters) {
  for (const Geometry& g : KnownGeometries()) {
    const PlanTotals totals = Plan({.like = g.name}).Totals();
    EXPECT_EQ(std::format("{:.2f}", static_cast<double>(totals.n_parameters) / 1e9),
              std::format("{:.2f}", g.published_billions))
        << g.name;
  }
}

TEST(Geometries, EveryTensorIsInPlaceAtEveryType) {
  for (const Geometry& g : KnownGeometries()) {
    for (const Mix& mix : KnownMixes()) {
      const SynthPlan plan = Plan({.like = g.name, .type = mix.name, .layers = 4, .vocabulary = 512});
      std::uint64_t end = 0;
      std::set<std::string> names;
      for (const PlannedTensor& tensor : plan.tensors) {
        EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
        EXPECT_EQ(tensor.ne[0] % InfoOf(tensor.type).block_elements, 0) << g.name << ' ' << tensor.name;
        EXPECT_EQ(tensor.offset % kDataAlignment, 0);
        EXPECT_GE(tensor.offset, end);
        EXPECT_GT(tensor.size_bytes, 0) << tensor.name;
        end = tensor.offset + tensor.size_bytes;
      }
      EXPECT_LE(end, plan.data_bytes);
      EXPECT_GT(plan.Totals().expert_bytes, 0) << g.name;
    }
  }
}

TEST(Geometries, ShortRowsTakeTheFallbackTypes) {
  const SynthPlan plan = Plan({.like = "deepseek-v2-lite"});  // experts of width 1408, not a multiple of 256
  EXPECT_EQ(Find(plan, "blk.1.ffn_down_exps.weight").type, TensorType::kQ8_0);  // more bits
  EXPECT_EQ(Find(plan, "blk.3.ffn_down_exps.weight").type, TensorType::kQ5_0);
  EXPECT_EQ(Find(plan, "blk.3.ffn_up_exps.weight").type, TensorType::kQ4_K);
}

TEST(Geometries, EightExpertsHaveRulesOfTheirOwn) {
  const SynthPlan plan = Plan({.like = "mixtral-8x7b"});
  EXPECT_EQ(Find(plan, "blk.5.attn_v.weight").type, TensorType::kQ8_0);
  EXPECT_EQ(Find(plan, "blk.5.attn_k.weight").type, TensorType::kQ8_0);
  EXPECT_EQ(Find(plan, "blk.5.attn_output.weight").type, TensorType::kQ5_K);
}

// ---- asking for what can not be

TEST(PlanSynth, RefusesWhatLlamaCppCouldNotLoad) {
  const auto refused = [](const PlanOptions& options, std::string_view part) {
    const auto plan = PlanSynth(options);
    ASSERT_FALSE(plan.has_value());
    EXPECT_EQ(plan.error().code, FaultCode::kRefused);
    EXPECT_NE(plan.error().text.find(part), std::string::npos) << plan.error().text;
    EXPECT_EQ(plan.error().text.find('\n'), std::string::npos);
  };
  refused({.like = "no-such-model"}, "qwen3.5-122b");
  refused({.like = "qwen3.5"}, "qwen3.5-35b, qwen3.5-122b, qwen3.5-397b");
  refused({.like = ""}, "unknown model");
  refused({.like = "qwen3.5-122b", .type = "Q9_X"}, "Q4_K_M");
  refused({.like = "qwen3.5-122b", .layers = 0}, "0 layers");
  refused({.like = "qwen3.5-122b", .layers = 4'000'000'000}, "4000000000 layers");
  refused({.like = "qwen3.5-122b", .layers = 4, .experts = 1}, "1 experts");
  refused({.like = "qwen3.5-122b", .layers = 4, .experts = 1025}, "1025 experts");
  refused({.like = "qwen3.5-122b", .layers = 4, .vocabulary = 10}, "10 tokens");
  refused({.like = "llama-4-maverick", .layers = 3}, "at least 4");
  refused({.like = "qwen3.5-122b", .layers = 3}, "at least 4");
  refused({.like = "lfm2-8b-a1b", .layers = 2}, "at least 3");
}

TEST(PlanSynth, FewerExpertsLeaveNoImpossibleGroups) {
  const SynthPlan plan = Plan({.like = "deepseek-v3", .layers = 4, .experts = 12, .vocabulary = 512});
  EXPECT_EQ(plan.geometry.n_groups, 1);
  EXPECT_EQ(Plan({.like = "deepseek-v3", .layers = 4, .experts = 32}).geometry.n_groups, 8);
  EXPECT_EQ(plan.geometry.n_dense_lead, 3);
  EXPECT_EQ(Plan({.like = "deepseek-v3", .layers = 2}).geometry.n_dense_lead, 1);
}

// ---- vocabulary

TEST(Vocabulary, TokensAreDistinctAndMergesMakeTokens) {
  const Vocabulary vocabulary = MakeVocabulary(248'320, 247'587);
  EXPECT_EQ(vocabulary.tokens.size(), 248'320);
  EXPECT_EQ(vocabulary.types.size(), 248'320);
  EXPECT_EQ(vocabulary.merges.size(), 247'587);
  const std::set<std::string> tokens(vocabulary.tokens.begin(), vocabulary.tokens.end());
  EXPECT_EQ(tokens.size(), 248'320);
  for (const std::string& merge : vocabulary.merges) {
    const auto space = merge.find(' ');
    ASSERT_NE(space, std::string::npos);
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    ASSERT_TRUE(tokens.contains(left) && tokens.contains(right) && tokens.contains(left + right)) << merge;
  }
}

TEST(Vocabulary, SmallOnesHaveAllBytes) {
  const Vocabulary vocabulary = MakeVocabulary(320, 0);
  EXPECT_EQ(vocabulary.tokens.size(), 320);
  EXPECT_EQ(vocabulary.tokens['A'], "A");
  EXPECT_EQ(vocabulary.tokens[' '], "\u0120");
  EXPECT_EQ(vocabulary.tokens['\n'], "\u010a");
  EXPECT_EQ(vocabulary.tokens[vocabulary.end_of_text], "<|endoftext|>");
}

// ---- files

TEST(WriteSynth, SameSeedSameBytesWhateverTheThreads) {
  const TempFolder folder;
  const SynthPlan plan = Plan({.like = "granite-1b-a400m", .layers = 2, .experts = 8, .vocabulary = 320});
  ASSERT_TRUE(WriteSynth(plan, folder / "a", {.seed = 5, .threads = 1}).has_value());
  ASSERT_TRUE(WriteSynth(plan, folder / "b", {.seed = 5, .threads = 3}).has_value());
  ASSERT_TRUE(WriteSynth(plan, folder / "c", {.seed = 6, .threads = 2}).has_value());
  const auto a = Bytes(folder / "a"), b = Bytes(folder / "b"), c = Bytes(folder / "c");
  EXPECT_EQ(a.size(), GgufHeader(plan).size() + plan.data_bytes);
  EXPECT_TRUE(a == b);
  EXPECT_EQ(a.size(), c.size());
  EXPECT_FALSE(a == c);
}

TEST(WriteSynth, ASkeletonIsAllThereAndTakesNoRoom) {
  const TempFolder folder;
  const SynthPlan plan = Plan({.like = "qwen3.5-122b"});
  const auto outcome = WriteSynth(plan, folder / "skeleton", {.skeleton = true});
  ASSERT_TRUE(outcome.has_value()) << outcome.error().text;
  struct stat status{};
  ASSERT_EQ(::stat((folder / "skeleton").c_str(), &status), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), outcome->header_bytes + plan.data_bytes);
  EXPECT_LT(status.st_blocks * 512, 50'000'000);
}

TEST(WriteSynth, LeavesNothingBehindWhenStopped) {
  const TempFolder folder;
  const SynthPlan plan = Plan({.like = "olmoe-1b-7b", .layers = 2, .experts = 8, .vocabulary = 320});
  const auto outcome = WriteSynth(plan, folder / "m", {.progress = [](auto, auto) { return false; }});
  ASSERT_FALSE(outcome.has_value());
  EXPECT_NE(outcome.error().text.find("stopped"), std::string::npos);
  EXPECT_TRUE(folder.Empty());
}

TEST(WriteSynth, KeepsAFileThatIsThere) {
  const TempFolder folder;
  std::ofstream(folder / "m") << "precious";
  const SynthPlan plan = Plan({.like = "olmoe-1b-7b", .layers = 1, .experts = 2, .vocabulary = 320});
  const auto outcome = WriteSynth(plan, folder / "m", {});
  ASSERT_FALSE(outcome.has_value());
  EXPECT_NE(outcome.error().text.find("exists already"), std::string::npos);
  EXPECT_EQ(Bytes(folder / "m").size(), 8);
}

TEST(WriteSynth, SaysWhenThereIsNoRoom) {
  const TempFolder folder;
  const SynthPlan plan = Plan({.like = "kimi-k2", .type = "F32"});  // 4.1 TB
  const auto outcome = WriteSynth(plan, folder / "m", {});
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, FaultCode::kLocal);
  EXPECT_NE(outcome.error().text.find("GB free"), std::string::npos) << outcome.error().text;
  EXPECT_TRUE(folder.Empty());
  EXPECT_FALSE(WriteSynth(plan, "/no/such/folder/m", {}).has_value());
}

}  // namespace
}  // namespace linkcpp
