// Result<T>: a value, or a Fault that says what happened, to what, and what to do next.
//
// Nothing a peer, a file or the network does is an exception or an abort in linkcpp: it is a Fault that travels up to
// someone who can act on it. The five codes say what the caller should do.
#pragma once

#include <cstdint>
#include <expected>
#include <format>
#include <string>
#include <string_view>
#include <utility>

namespace linkcpp {

enum class FaultCode : std::uint8_t {
  kBusy = 1,       // later, or another holder
  kGone = 2,       // link lost or deadline passed: another holder, now
  kRefused = 3,    // version, hash, dtype, credit: not this pair, not this peer
  kMalformed = 4,  // the peer's or the file's bytes do not decode: drop it
  kLocal = 5,      // our disk, memory, configuration: tell the operator
};

std::string_view FaultCodeName(FaultCode code);

struct Fault {
  FaultCode code = FaultCode::kLocal;
  std::string text;
};

template <class T>
using Result = std::expected<T, Fault>;

template <class... Args>
std::unexpected<Fault> Fail(FaultCode code, std::format_string<Args...> format, Args&&... args) {
  return std::unexpected(Fault{code, std::format(format, std::forward<Args>(args)...)});
}

// The same fault with what we were doing in front: "opening model.gguf: …".
std::unexpected<Fault> Wrap(const Fault& fault, std::string_view doing);

}  // namespace linkcpp

#define LINKCPP_CONCAT_(a, b) a##b
#define LINKCPP_CONCAT(a, b) LINKCPP_CONCAT_(a, b)

// RETURN_IF_FAULT(Write(file));
#define RETURN_IF_FAULT(expression)                          \
  do {                                                       \
    if (auto result_ = (expression); !result_.has_value()) { \
      return std::unexpected(std::move(result_).error());    \
    }                                                        \
  } while (false)

// ASSIGN_OR_RETURN(auto file, Open(path));
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_(LINKCPP_CONCAT(result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                              \
  if (!result.has_value()) {                               \
    return std::unexpected(std::move(result).error());     \
  }                                                        \
  declaration = std::move(*result)
