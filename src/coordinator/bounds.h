// How much of what a peer says is kept: names, ids and lists get an end, and every node and layer is named once.
//
// A peer with a token is trusted with its own work, not with the coordinator's memory, logs and pages. What is beyond a
// bound is cut or dropped and named, so that it can be logged. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "market/coverage.h"
#include "wire/control.h"

namespace linkcpp {

inline constexpr std::size_t kMaxLinksKept = 4096;   // of one backbone's report; connected ones first
inline constexpr std::size_t kMaxChecksKept = 4096;  // likewise
inline constexpr std::size_t kMaxProbes = 256;       // of one attachment; a coordinator asks for a few

// Makes texts plain (plain_text.h) and cuts them, in place: names to kMaxNameBytes, the rest to 200 bytes. Returns what
// was too much, for people: "a name of 70000 bytes, …"; "": nothing.
std::string Bound(JoinRequest& request);
std::string Bound(NodeReport& report);
std::string Bound(AttachRequest& request);
std::string Bound(BackboneReport& report, std::span<const LayerGeometry> layers);

// kMalformed: too many probes, or a fingerprint that is not "" or 64 hex digits.
Result<void> CheckAttach(const AttachRequest& request);

}  // namespace linkcpp
