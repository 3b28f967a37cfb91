#include "base/result.h"

namespace linkcpp {

std::string_view FaultCodeName(FaultCode code) {
  switch (code) {
    case FaultCode::kBusy: return "busy";
    case FaultCode::kGone: return "gone";
    case FaultCode::kRefused: return "refused";
    case FaultCode::kMalformed: return "malformed";
    case FaultCode::kLocal: return "local";
  }
  return "unknown";
}

std::unexpected<Fault> Wrap(const Fault& fault, std::string_view doing) {
  return std::unexpected(Fault{fault.code, std::format("{}: {}", doing, fault.text)});
}

}  // namespace linkcpp
