// The kernel against the oracle: every weight type, every function a recipe may name; and kernels made wrong on
// purpose, each of which the bounds must refuse.
//
// LINKCPP_TEST_DEVICE and LINKCPP_TEST_BACKEND choose another device or ggml backend library than the CPU's best.
// The table in docs/numerics.md is what `--gtest_filter='*EveryType*'` prints.
#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <print>

#include "base/log.h"
#include "base/rng.h"
#include "cli/expert_bytes.h"
#include "kernel/device.h"
#include "kernel/expert_stack.h"
#include "oracle/bound.h"
#include "oracle/layer.h"

namespace linkcpp {
namespace {

Device& TestDevice() {
  static NullLog log;
  static const std::unique_ptr<Device> device = [] {
    const char* name = std::getenv("LINKCPP_TEST_DEVICE");
    const char* backend = std::getenv("LINKCPP_TEST_BACKEND");
    auto opened = Device::Open(
        {.name = name != nullptr ? name : "cpu", .n_threads = 2, .backend_path = backend != nullptr ? backend : ""},
        log);
    if (!opened.has_value()) {
      std::println(stderr, "{}", opened.error().text);
      std::abort();
    }
    std::println("device {}: {}", (*opened)->info().name, (*opened)->kernel_class());
    return std::move(*opened);
  }();
  return *device;
}

// ---- experts

OracleExpert Dequantised(const ExpertBytes& bytes) {
  OracleExpert expert;
  for (std::size_t p = 0; p < kProjections; ++p) {
    if (const auto& shape = bytes.shape.projections[p]) {
      expert.projections[p] = OracleMatrix::Make(ProjectionName(static_cast<Projection>(p)), shape->type, shape->n_in,
                                                 shape->n_out, bytes.parts[p][0])
                                  .value();
    }
  }
  return expert;
}

std::vector<std::byte> GaussianWeights(ggml_type type, std::uint32_t n_in, std::uint32_t n_out, double scale,
                                       Rng& rng) {
  std::vector<float> values(std::size_t{n_in} * n_out);
  for (float& v : values) v = static_cast<float>(scale * Gaussian(rng) / std::sqrt(n_in));
  std::vector<std::byte> bytes(ggml_row_size(type, n_in) * n_out);
  if (type == GGML_TYPE_F32) {
    std::ranges::copy(std::as_bytes(std::span(values)), bytes.begin());
  } else {
    ggml_quantize_chunk(type, values.data(), bytes.data(), 0, n_out, n_in, nullptr);
  }
  return bytes;
}

ExpertBytes GaussianExpert(std::uint32_t gate_up_type, std::uint32_t down_type, std::uint32_t n_embd,
                           std::uint32_t n_ff, Rng& rng) {
  ExpertBytes bytes;
  const auto put = [&](Projection p, std::uint32_t type, std::uint32_t n_in, std::uint32_t n_out) {
    const auto index = static_cast<std::size_t>(p);
    bytes.shape.projections[index] = ProjectionShape{.type = type, .n_in = n_in, .n_out = n_out};
    bytes.parts[index][0] = GaussianWeights(static_cast<ggml_type>(type), n_in, n_out, 1, rng);
  };
  put(Projection::kGate, gate_up_type, n_embd, n_ff);
  put(Projection::kUp, gate_up_type, n_embd, n_ff);
  put(Projection::kDown, down_type, n_ff, n_embd);
  return bytes;
}

std::vector<float> GaussianRow(std::size_t n, Rng& rng, double scale = 1) {
  std::vector<float> x;
  for (std::size_t i = 0; i < n; ++i) x.push_back(static_cast<float>(scale * Gaussian(rng)));
  return x;
}

// What the kernel makes of the rows with these bytes and this recipe. Refusals are test failures.
std::vector<std::vector<float>> RunKernel(const ExpertBytes& bytes, const Recipe& recipe,
                                          const std::vector<std::vector<float>>& rows) {
  std::vector<std::vector<float>> out;
  auto stack = ExpertStack::Create(bytes.shape, 1, TestDevice());
  if (!stack.has_value()) {
    ADD_FAILURE() << stack.error().text;
    return out;
  }
  const auto lengths = (*stack)->Check(recipe);
  if (!lengths.has_value()) {
    ADD_FAILURE() << lengths.error().text;
    return out;
  }
  EXPECT_TRUE((*stack)->Load(0, bytes.slabs()).has_value());
  for (const auto& row : rows) {
    auto& y = out.emplace_back(lengths->n_out);
    const SlotPair pair{0, 0};
    const auto run = (*stack)->Run(recipe, row, 1, std::span(&pair, 1), y);
    EXPECT_TRUE(run.has_value()) << run.error().text;
  }
  return out;
}

// The best of the models that kernels on this device may follow.
BoundCheck Check(const OracleExpert& expert, const Recipe& recipe, const std::vector<std::vector<float>>& rows,
                 const std::vector<std::vector<float>>& results) {
  const bool f16_weights = std::ranges::any_of(expert.projections, [](const auto& matrix) {
    return matrix.has_value() && matrix->layout.type == WeightType::kF16;
  });
  std::optional<BoundCheck> best;
  for (const KernelModel& model : KernelModels(TestDevice().info().is_gpu, f16_weights)) {
    BoundCheck check;
    for (std::size_t r = 0; r < results.size(); ++r) {
      check.Add(BoundExpert(recipe, expert, rows[r], model).value(), results[r]);
    }
    if (!best.has_value() ||
        std::pair(!check.Holds(), check.replayed().Nmse()) < std::pair(!best->Holds(), best->replayed().Nmse())) {
      best = check;
    }
  }
  return *best;
}

// ---- right kernels

class EveryType : public testing::TestWithParam<WeightLayout> {};

TEST_P(EveryType, IsInsideItsBounds) {
  Rng rng(11);
  const auto type = std::to_underlying(GetParam().type);
  const ExpertBytes bytes = GaussianExpert(type, type, 1024, 512, rng);
  const std::vector<std::vector<float>> rows{GaussianRow(1024, rng), GaussianRow(1024, rng, 30),
                                             GaussianRow(1024, rng, 1e-3), std::vector<float>(1024)};
  const auto results = RunKernel(bytes, Recipe::Swiglu(), rows);
  const BoundCheck check = Check(Dequantised(bytes), Recipe::Swiglu(), rows, results);
  const Comparison& exact = check.exact();
  std::println("| {} | {} | {:.7f} | {:.2e} | {:.2e} | {:.3f} | {:.4f} | {:.2e} | {:.3f} |", GetParam().name,
               RowFormatName(GetParam().cpu_rows), exact.Cosine(), exact.Nmse(), check.explained().Nmse(),
               check.over_bound(), check.over_worst(), check.replayed().Nmse(), check.over_likely());
  EXPECT_TRUE(check.Holds());
  EXPECT_LE(check.over_bound(), 1);
  EXPECT_GE(exact.Cosine(), 0.9997);
}

INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::ValuesIn(AllWeightLayouts().begin(), AllWeightLayouts().end()),
                         [](const auto& type) { return std::string(type.param.name); });

TEST(RightKernel, The122bShapeIsInsideItsBounds) {
  Rng rng(12);
  const ExpertBytes bytes = GaussianExpert(GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, 3072, 1024, rng);
  const std::vector<std::vector<float>> rows{GaussianRow(3072, rng)};
  const BoundCheck check = Check(Dequantised(bytes), Recipe::Swiglu(), rows, RunKernel(bytes, Recipe::Swiglu(), rows));
  EXPECT_TRUE(check.Holds());
  EXPECT_GE(check.exact().Cosine(), 0.9997);
}

// Every function of the recipe, on values from far below zero to far above: do kernel and oracle mean the same by it?
TEST(RightKernel, EveryFunctionMeansTheSame) {
  Rng rng(13);
  ExpertBytes bytes = GaussianExpert(GGML_TYPE_F32, GGML_TYPE_F32, 256, 256, rng);
  std::vector<std::vector<float>> rows;
  for (const double scale : {0.3, 3.0, 6.0}) rows.push_back(GaussianRow(256, rng, scale));
  const Step up{.op = StepOp::kProject, .projection = Projection::kUp},
      gate{.op = StepOp::kProject, .projection = Projection::kGate};
  std::vector<Recipe> recipes;
  const auto add = [&](Step step) {
    step.a = step.op == StepOp::kGlu && step.b == 1 && step.a == 1 ? 1 : 2;
    recipes.push_back({{up, gate, step}});
  };
  for (int fn = 0; fn < kUnaryFns; ++fn) add({.op = StepOp::kUnary, .fn = static_cast<std::uint8_t>(fn)});
  for (int fn = 0; fn < kGluFns; ++fn) {
    Step glu{.op = StepOp::kGlu, .fn = static_cast<std::uint8_t>(fn), .a = 2, .b = 1, .p0 = 1.702f, .p1 = 3.5f};
    recipes.push_back({{up, gate, glu}});
    if (fn == static_cast<int>(GluFn::kSwigluOai) || fn == static_cast<int>(GluFn::kSwigluClamp))
      continue;  // two inputs only
    glu.a = glu.b = 1;
    recipes.push_back({{up, glu}});
    glu.swapped = true;
    recipes.push_back({{up, glu}});
  }
  recipes.push_back({{up, {.op = StepOp::kSquare, .a = 1}}});
  recipes.push_back({{up, {.op = StepOp::kClamp, .a = 1, .p0 = -0.5f, .p1 = 0.75f}}});
  recipes.push_back({{up, gate, {.op = StepOp::kMul, .a = 2, .b = 1}}});
  recipes.push_back({{up, gate, {.op = StepOp::kAdd, .a = 2, .b = 1}}});
  recipes.push_back({{up, {.op = StepOp::kFactor, .a = 1, .p0 = -1.5f, .p1 = 0.25f}}});
  recipes.push_back({{up, {.op = StepOp::kHalf, .fn = 1, .a = 1}, {.op = StepOp::kUnary, .fn = 0, .a = 2}}});
  const OracleExpert expert = Dequantised(bytes);
  for (const Recipe& recipe : recipes) {
    SCOPED_TRACE(recipe.Describe());
    const auto results = RunKernel(bytes, recipe, rows);
    if (results.empty()) continue;
    const BoundCheck check = Check(expert, recipe, rows, results);
    EXPECT_TRUE(check.Holds()) << "max |Δ| " << check.exact().MaxAbs() << ", " << check.over_likely()
                               << " of the likely bound, " << check.over_worst() << " of the worst case";
  }
}

TEST(RightKernel, BiasesAndScalesAreApplied) {
  Rng rng(14);
  ExpertBytes bytes = GaussianExpert(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 256, 128, rng);
  OracleExpert expert = Dequantised(bytes);
  for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
    const auto i = static_cast<std::size_t>(p);
    auto& matrix = *expert.projections[i];
    matrix.bias = GaussianRow(matrix.n_out, rng);
    matrix.scale = 1.25f + static_cast<float>(i);
    bytes.shape.projections[i]->has_bias = bytes.shape.projections[i]->has_scale = true;
    const auto bias = std::as_bytes(std::span(matrix.bias)), scale = std::as_bytes(std::span(&*matrix.scale, 1));
    bytes.parts[i][1].assign(bias.begin(), bias.end());
    bytes.parts[i][2].assign(scale.begin(), scale.end());
  }
  const ExpertParts parts{
      .weight = {true, true, true, false}, .bias = {true, true, true, false}, .scale = {true, true, true, false}};
  const Recipe recipe = RecipeFor(*RulesOf("gpt-oss"), parts).value();
  const std::vector<std::vector<float>> rows{GaussianRow(256, rng), GaussianRow(256, rng)};
  EXPECT_TRUE(Check(expert, recipe, rows, RunKernel(bytes, recipe, rows)).Holds());
  expert.projections[2]->bias[5] += 0.5f;
  EXPECT_FALSE(Check(expert, recipe, rows, RunKernel(bytes, recipe, rows)).Holds()) << "a bias that differs is seen";
}

// ---- wrong kernels: what a kernel with this mistake would read is given to a right one as bytes

using Block = std::span<std::uint8_t>;

struct Mistake {
  const char* name;
  std::function<void(Block, WeightType)> each_block;  // what it makes of every block
  Recipe recipe = Recipe::Swiglu();
};

void SwapNibbles(Block block, WeightType type) {
  const std::size_t begin = type == WeightType::kQ6_K ? 0 : 16, end = type == WeightType::kQ6_K ? 128 : block.size();
  for (std::size_t i = begin; i < end; ++i) block[i] = static_cast<std::uint8_t>(block[i] << 4 | block[i] >> 4);
}

// Sub-block 5 of every block: its scale without the two high bits (Q4_K), or its neighbour's (Q6_K).
void MisreadOneScale(Block block, WeightType type) {
  if (type == WeightType::kQ4_K) block[4 + 1] &= 0x3f;
  if (type == WeightType::kQ6_K) block[192 + 5] = block[192 + 4];
}

void IgnoreMinima(Block block, WeightType type) {
  if (type == WeightType::kQ4_K) block[2] = block[3] = 0;
}

void IgnoreHighBits(Block block, WeightType type) {
  if (type == WeightType::kQ6_K) std::ranges::fill(block.subspan(128, 64), std::uint8_t{0xaa});
}

Recipe WithoutActivation() {
  return {{{.op = StepOp::kProject, .projection = Projection::kUp},
           {.op = StepOp::kProject, .projection = Projection::kGate},
           {.op = StepOp::kMul, .a = 2, .b = 1},
           {.op = StepOp::kProject, .projection = Projection::kDown, .a = 3}}};
}

Recipe WithOtherGlu(GluFn fn, bool exchanged) {
  Recipe recipe = Recipe::Swiglu();
  recipe.steps[2].fn = static_cast<std::uint8_t>(fn);
  if (exchanged) std::swap(recipe.steps[2].a, recipe.steps[2].b);
  return recipe;
}

std::vector<Mistake> Mistakes() {
  return {{"nibbles in the wrong order", SwapNibbles},
          {"one scale of each block wrong", MisreadOneScale},
          {"minima or high bits ignored",
           [](Block block, WeightType type) { IgnoreMinima(block, type), IgnoreHighBits(block, type); }},
          {"no activation", {}, WithoutActivation()},
          {"relu instead of silu", {}, WithOtherGlu(GluFn::kReglu, false)},
          {"gelu instead of silu", {}, WithOtherGlu(GluFn::kGeglu, false)},
          {"gate and up exchanged", {}, WithOtherGlu(GluFn::kSwiglu, true)}};
}

ExpertBytes Misread(ExpertBytes bytes, const Mistake& mistake) {
  if (!mistake.each_block) return bytes;
  for (std::size_t p = 0; p < kProjections; ++p) {
    if (!bytes.shape.projections[p].has_value()) continue;
    const WeightLayout layout = LayoutOf(bytes.shape.projections[p]->type).value();
    auto& weight = bytes.parts[p][0];
    for (std::size_t at = 0; at < weight.size(); at += layout.block_bytes) {
      mistake.each_block({reinterpret_cast<std::uint8_t*>(weight.data()) + at, layout.block_bytes}, layout.type);
    }
  }
  return bytes;
}

void ExpectEveryMistakeRefused(const ExpertBytes& bytes, const std::vector<std::vector<float>>& rows) {
  const OracleExpert expert = Dequantised(bytes);
  const Recipe right = Recipe::Swiglu();
  EXPECT_TRUE(Check(expert, right, rows, RunKernel(bytes, right, rows)).Holds()) << "the right kernel is let in";
  for (const Mistake& mistake : Mistakes()) {
    const auto results = RunKernel(Misread(bytes, mistake), mistake.recipe, rows);
    for (std::size_t r = 0; r < rows.size(); ++r) {  // one row is enough to tell
      const BoundCheck check = Check(expert, right, {rows[r]}, {results.at(r)});
      EXPECT_FALSE(check.Holds()) << mistake.name << ": cosine " << check.exact().Cosine();
      EXPECT_GT(check.over_bound(), 1) << mistake.name << ": outside the bound against the exact oracle too";
      EXPECT_LT(check.exact().Cosine(), 0.9995) << mistake.name;
    }
  }
}

TEST(WrongKernel, IsRefusedOnEveryExpertOfARealModel) {
  const auto model = ModelFile::Open(LINKCPP_ASSETS "/austen-moe-q4km.gguf").value();
  for (const std::uint32_t layer : {0u, 2u}) {  // down in Q4_K, down in Q6_K
    const auto plan = PlanLayer(model, layer).value();
    const auto rows = MakeRows(model, plan, RowSource::kEmbeddings, 2, layer).value();
    for (std::uint32_t e = 0; e < plan.layer->n_experts; ++e) {
      SCOPED_TRACE(std::format("layer {} expert {}", layer, e));
      ExpectEveryMistakeRefused(LoadExpertBytes(model, plan, e).value(), rows);
    }
  }
}

TEST(WrongKernel, IsRefusedOnRandomBlocks) {
  Rng rng(21);
  for (int trial = 0; trial < 3; ++trial) {
    const ExpertBytes bytes =
        GaussianExpert(GGML_TYPE_Q4_K, trial == 1 ? GGML_TYPE_Q4_K : GGML_TYPE_Q6_K, 768, 512, rng);
    ExpectEveryMistakeRefused(bytes, {GaussianRow(768, rng), GaussianRow(768, rng)});
  }
}

// Not a kernel's mistake but a bit that flipped: one scale of one block of 4,608. Far below row rounding; still seen.
TEST(WrongKernel, OneWrongScaleInAWholeExpertIsSeen) {
  if (TestDevice().info().is_gpu) GTEST_SKIP() << "half-precision tiles hide it; slab hashes do not";
  Rng rng(22);
  const ExpertBytes bytes = GaussianExpert(GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 768, 512, rng);
  const std::vector<std::vector<float>> rows{GaussianRow(768, rng)};
  const OracleExpert expert = Dequantised(bytes);
  for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
    ExpertBytes wrong = bytes;
    auto& byte = wrong.parts[static_cast<std::size_t>(p)][0][144 * 100 + 4];
    byte ^= std::byte{0x10};
    const BoundCheck check = Check(expert, Recipe::Swiglu(), rows, RunKernel(wrong, Recipe::Swiglu(), rows));
    EXPECT_GT(check.exact().Cosine(), 0.9997) << "a cosine does not see it";
    EXPECT_FALSE(check.Holds()) << ProjectionName(p) << ": " << check.over_likely() << " of the likely bound";
  }
}

}  // namespace
}  // namespace linkcpp
