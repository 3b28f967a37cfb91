#include "base/recipe.h"

#include <gtest/gtest.h>

namespace linkcpp {
namespace {

TEST(Recipe, SurvivesEncoding) {
  const Recipe recipe = Recipe::Swiglu();
  const auto decoded = DecodeRecipe(EncodeRecipe(recipe));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().text;
  EXPECT_EQ(*decoded, recipe);
  EXPECT_EQ(decoded->Describe(), "up.0 gate.0 swiglu(2,1) down.3");
}

TEST(Recipe, RefusesValuesThatDoNotExistYet) {
  Recipe recipe = Recipe::Swiglu();
  recipe.steps[1].a = 2;  // step 1 may use values 0 and 1
  EXPECT_EQ(DecodeRecipe(EncodeRecipe(recipe)).error().code, FaultCode::kMalformed);
}

TEST(Recipe, RefusesEveryUnknownByte) {
  const auto good = EncodeRecipe(Recipe::Swiglu());
  for (std::size_t field = 0; field < 6; ++field) {
    auto bad = good;
    bad[field] = 0xff;
    EXPECT_FALSE(DecodeRecipe(bad).has_value()) << "byte " << field;
  }
  EXPECT_FALSE(DecodeRecipe({}).has_value());
  EXPECT_FALSE(DecodeRecipe(std::span(good).first(good.size() - 1)).has_value());
}

}  // namespace
}  // namespace linkcpp
