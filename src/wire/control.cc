// All of glaze's templates are compiled here and nowhere else.
#include "wire/control.h"

#include "base/write_json.h"

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#endif
#include <glaze/json.hpp>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace linkcpp {

// Not in the unnamed namespace: glaze declares a variable of each type that it reflects, which needs linkage.
struct ControlErrorBody {
  std::string code;
  std::string message;
};
struct ControlErrorReply {
  ControlErrorBody error;
};

namespace {

// A peer's text ends where it ends, everything in it must be JSON, and null is the same as nothing said.
struct ReadOptions : glz::opts {
  bool validate_skipped = true;
  bool validate_trailing_whitespace = true;
  bool skip_null_members_on_read = true;
};
constexpr ReadOptions kRead{{.null_terminated = false, .error_on_unknown_keys = false}};

}  // namespace

template <class T>
std::string ToJson(const T& value) {
  return WriteJson(value);
}

template <class T>
Result<T> FromJson(std::string_view text) {
  T value{};
  if (const auto error = glz::read<kRead>(value, text)) {
    return Fail(FaultCode::kMalformed, "JSON does not decode: {}", glz::format_error(error, text));
  }
  return value;
}

std::string ErrorJson(FaultCode code, std::string_view message) {
  return ToJson(ControlErrorReply{{std::string(FaultCodeName(code)), std::string(message)}});
}

std::string ErrorMessage(std::string_view json) {
  const auto reply = FromJson<ControlErrorReply>(json);
  return reply ? reply->error.message : std::string();
}

#define LINKCPP_JSON(T)                  \
  template std::string ToJson(const T&); \
  template Result<T> FromJson<T>(std::string_view)

LINKCPP_JSON(LayerHoldings);
LINKCPP_JSON(JoinRequest);
LINKCPP_JSON(JoinReply);
LINKCPP_JSON(BackboneRef);
LINKCPP_JSON(NodeOrders);
LINKCPP_JSON(NodeReport);
LINKCPP_JSON(SlabProbe);
LINKCPP_JSON(AttachRequest);
LINKCPP_JSON(AttachReply);
LINKCPP_JSON(LinkReport);
LINKCPP_JSON(LayerHeat);
LINKCPP_JSON(BackboneReport);
LINKCPP_JSON(BackboneOrders);
LINKCPP_JSON(LayerCoverage);
LINKCPP_JSON(NodeStatus);
LINKCPP_JSON(BackboneStatus);
LINKCPP_JSON(StatusReply);
LINKCPP_JSON(ModelSummary);
LINKCPP_JSON(ModelList);
LINKCPP_JSON(TensorDetail);
LINKCPP_JSON(LayerDetail);
LINKCPP_JSON(ModelDetail);

#undef LINKCPP_JSON

}  // namespace linkcpp
