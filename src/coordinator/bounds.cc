#include "coordinator/bounds.h"

#include <algorithm>
#include <format>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/plain_text.h"

namespace linkcpp {
namespace {

// Collects what was too much: each kind once.
class Excess {
 public:
  void Note(std::string_view what) {
    if (!text_.contains(what)) text_ += std::format("{}{}", text_.empty() ? "" : ", ", what);
  }
  void Cut(std::string& text, std::string_view what, std::size_t most = kMaxPlainBytes) {
    if (text.size() > most) Note(std::format("a {} of more than {} bytes", what, most));
    text = PlainText(text, most);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

// Entries with an id of ours at most: what is longer than any id is nobody's.
template <class Entry>
void KeepNodes(std::vector<Entry>& entries, std::size_t most, std::string_view what, Excess& excess) {
  std::set<std::string, std::less<>> seen;
  const auto dropped = std::erase_if(entries, [&](const Entry& entry) {
    return entry.node_id.size() > kMaxNameBytes || !seen.insert(entry.node_id).second;
  });
  if (dropped > 0) excess.Note(std::format("{} of no node or of one that was named before", what));
  if (entries.size() <= most) return;
  excess.Note(std::format("more than {} {}", most, what));
  entries.resize(most);
}

}  // namespace

std::string Bound(JoinRequest& request) {
  Excess excess;
  excess.Cut(request.name, "name", kMaxNameBytes);
  excess.Cut(request.software, "software");
  excess.Cut(request.kernel_class, "kernel class");
  excess.Cut(request.device, "device", kMaxNameBytes);
  return excess.Take();
}

std::string Bound(NodeReport& report) {
  Excess excess;
  excess.Cut(report.state, "state", kMaxNameBytes);
  excess.Cut(report.error, "error");
  return excess.Take();
}

std::string Bound(AttachRequest& request) {
  Excess excess;
  excess.Cut(request.program, "program", kMaxNameBytes);
  excess.Cut(request.kernel_class, "kernel class");
  return excess.Take();
}

std::string Bound(BackboneReport& report, std::span<const LayerGeometry> layers) {
  Excess excess;
  std::ranges::stable_partition(report.links, &LinkReport::connected);
  KeepNodes(report.links, kMaxLinksKept, "links", excess);
  KeepNodes(report.checks, kMaxChecksKept, "checks", excess);
  for (NodeCheck& check : report.checks) {
    excess.Cut(check.state, "state", kMaxNameBytes);
    excess.Cut(check.kernel_class, "kernel class");
    excess.Cut(check.kernel_model, "kernel model", kMaxNameBytes);
    excess.Cut(check.refusal, "refusal");
  }
  std::map<std::uint16_t, std::size_t> n_experts;
  for (const LayerGeometry& layer : layers) n_experts[layer.layer.value] = layer.n_experts;
  const auto dropped = std::erase_if(report.heat, [&](const LayerHeat& heat) {
    const auto layer = n_experts.find(heat.layer);
    if (layer == n_experts.end() || heat.pairs_by_expert.size() > layer->second) return true;
    n_experts.erase(layer);  // once each
    return false;
  });
  if (dropped > 0) excess.Note("heat of layers or experts that the model does not have, or again");
  return excess.Take();
}

Result<void> CheckAttach(const AttachRequest& request) {
  if (request.probes.size() > kMaxProbes) {
    return Fail(FaultCode::kMalformed, "{} probes, at most {} make sense", request.probes.size(), kMaxProbes);
  }
  const std::string& pin = request.tls_fingerprint;
  const bool hex = std::ranges::all_of(pin, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (!pin.empty() && (pin.size() != 64 || !hex)) {
    return Fail(FaultCode::kMalformed, "tls_fingerprint is not 64 hex digits");
  }
  return {};
}

}  // namespace linkcpp
