// The control plane's messages, as JSON over HTTP between coordinator, workers and backbones. docs/wire.md has the
// table.
//
// All requests carry "Authorization: Bearer <token>". Errors come back as {"error": {"code": …, "message": …}} with a
// fitting HTTP status. Unknown fields are ignored and missing ones take their default, so that versions can differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace linkcpp {

inline constexpr int kProtocolVersion = 1;
// The largest body that a coordinator takes. A backbone's report with heat for 64 × 1024 experts is about 1 MB.
inline constexpr std::size_t kMaxControlBytes = 4u << 20;
inline constexpr std::size_t kMaxNameBytes = 64;  // of what a peer calls itself, and of ids; the rest is cut

// What a worker has ready, one entry a layer. `experts` in the ranges notation of gguf/shard.h ("0:16,40").
struct LayerHoldings {
  std::uint16_t layer = 0;
  std::string experts;
};

// POST /api/nodes — a worker joins.  Answer: JoinReply.
struct JoinRequest {
  int protocol = kProtocolVersion;
  std::string name;          // for people; the host name by default
  std::string software;      // "linkcpp 0.1.0"
  std::string kernel_class;  // Device::kernel_class()
  std::string device;        // "CPU", "Vulkan0"
  int n_threads = 0;
  std::uint64_t memory_bytes = 0;  // what it gives
  std::string model;               // wanted model by name or id; "": the coordinator's only one
  std::string layers;              // chosen by hand, ranges notation; "": let the coordinator choose
  std::string experts;
  std::vector<LayerHoldings> ready;  // what it has loaded or cached from before: a node that joins again keeps it
};
struct JoinReply {
  std::string node_id;
  std::string model_name;           // {m} of /api/proxy/models/{m}
  std::string model_id;             // hex
  std::string header_hash;          // hex
  std::uint32_t poll_seconds = 20;  // how long GET …/orders may hang
  std::string warning;              // what its owner should change: less memory than a slice takes; "": nothing
};

// GET /api/nodes/{id}/orders?after=<version> — long poll: answers when the version has moved past `after`, or after
// poll_seconds with the same version. 404: the coordinator does not know this node (it restarted): join again.
struct BackboneRef {
  std::string backbone_id;
  std::string address;          // host:port to dial; or nats subject for relays, later
  std::string tls_fingerprint;  // hex SHA-256 of the certificate to pin; "": plain TCP (loopback only)
  std::string ticket;           // base64, see wire/ticket.h; for this worker and this backbone, short-lived
};
struct NodeOrders {
  std::uint64_t version = 0;
  std::vector<LayerHoldings> hold;     // the slices this node should have: download what is missing, drop the rest
  std::vector<BackboneRef> backbones;  // dial each; leave those that are not listed any more
  bool admitted = true;                // false: keep off backbones
  std::string refusal;                 // why not admitted
};

// POST /api/nodes/{id}/report — on every change of holdings and every few seconds.
struct NodeReport {
  std::vector<LayerHoldings> ready;  // verified and loaded
  std::uint64_t downloaded_bytes = 0;
  std::uint64_t wanted_bytes = 0;  // still to download
  std::uint64_t memory_used_bytes = 0;
  std::uint64_t pairs_computed = 0;
  std::uint64_t dispatches = 0;
  std::uint64_t busy_us = 0;  // time spent computing
  std::string state;          // "downloading" | "ready" | "idle" (nothing to hold) | "leaving"
  std::string error;          // last thing that went wrong, for `linkcpp status`
};
// DELETE /api/nodes/{id} — goodbye.

// POST /api/backbones — a backbone attaches.  Answer: AttachReply.
struct SlabProbe {  // a few slabs, hashed from the backbone's own file
  std::uint16_t layer = 0;
  std::uint16_t expert = 0;
  std::string tensor;  // "down", or "gate.bias", …
  std::string hash;    // hex
};
struct AttachRequest {
  int protocol = kProtocolVersion;
  std::string program;          // "llama-server"
  std::string kernel_class;     // of its local fallback, for the record
  std::string data_address;     // host:port where workers dial
  std::string tls_fingerprint;  // of its data port's certificate; "": plain
  std::string header_hash;      // hex
  std::vector<SlabProbe> probes;
};
struct AttachReply {
  std::string backbone_id;
  std::string model_id;                  // hex
  std::string ticket_key;                // base64 ed25519 public key that signs tickets
  std::vector<SlabProbe> wanted_probes;  // not empty: attach again with these hashes; nothing else is set then
};

// POST /api/backbones/{id}/report — every second. Answer: BackboneOrders; 404: attach again. Counters since the
// backbone started.
struct LinkReport {
  std::string node_id;
  std::uint64_t dispatches = 0;
  std::uint64_t pairs = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t faults = 0;  // timeouts, refusals, lost while in flight
  double rtt_us_mean = 0;    // dispatch to result, decaying average
  double rtt_us_max = 0;
  bool connected = false;
};
// What a backbone's checks of a worker found: canary rows before it is asked for anything, spot checks of live results
// since. A pair is judged by its derived bound (oracle/bound.h). Where a figure is infinite it says 1e300.
struct NodeCheck {
  std::string node_id;
  std::string state;              // "checking" | "admitted" | "refused"
  std::string kernel_class;       // as the worker says
  std::string kernel_model;       // the model of a kernel that its results follow (oracle/bound.h)
  std::uint64_t canaries = 0;     // pairs judged that nobody but the check wanted
  std::uint64_t spot_checks = 0;  // live pairs judged, or found to have the same bits elsewhere
  std::uint64_t skipped = 0;      // live pairs drawn for a check for which there was no time
  std::uint64_t slices = 0;       // different ones with a pair that was judged
  double cosine = 1;              // over all pairs judged
  double worst_cosine = 1;        // of one pair
  double nmse = 0;                // over all
  double max_abs = 0;             // largest difference
  double over_bound = 0;          // largest difference as a share of its bound
  std::string refusal;
};
struct LayerHeat {
  std::uint16_t layer = 0;
  std::vector<std::uint64_t> pairs_by_expert;  // counters since start
};
struct BackboneReport {
  std::uint64_t dispatches = 0;  // layer-token batches seen
  std::uint64_t pairs = 0;
  std::uint64_t pairs_local = 0;  // computed by the backbone itself: nobody held them
  std::uint64_t pairs_retried = 0;
  std::uint64_t failed = 0;  // graph computations that returned an error
  std::uint64_t round_trips = 0;
  std::vector<LinkReport> links;
  std::vector<LayerHeat> heat;
  std::vector<NodeCheck> checks;  // one a node that is checked or was refused
};
struct Expulsion {
  std::string node_id;
  std::string reason;
};
struct BackboneOrders {
  std::vector<Expulsion> expel;  // nodes it is connected to and must cut off: their token was revoked, they are refused
};
// DELETE /api/backbones/{id} — detach.

// GET /api/status
struct LayerCoverage {
  std::uint16_t layer = 0;
  std::uint32_t n_experts = 0;
  std::uint32_t covered = 0;  // experts with at least one ready holder
  std::uint32_t min_holders = 0;
};
struct NodeStatus {
  std::string node_id, name, kernel_class, device, state, error;
  std::uint64_t memory_bytes = 0;
  std::uint64_t slices_ready = 0;
  std::uint64_t slices_wanted = 0;
  std::uint64_t downloaded_bytes = 0, wanted_bytes = 0;
  std::uint64_t pairs_computed = 0, dispatches = 0, busy_us = 0;
  double seconds_since_seen = 0;
  bool connected = true;  // false: no backbone has its link any more, or it hung up; what it holds does not count
  bool admitted = true;
  std::string refusal;
  std::vector<NodeCheck> checks;  // by the backbones that are attached
  std::vector<LayerHoldings> ready;
};
struct BackboneStatus {
  std::string backbone_id, program, data_address;
  double seconds_since_seen = 0;
  BackboneReport report;
};
struct StatusReply {
  std::string version;  // "0.1.0"
  std::string model_name, model_id, architecture;
  std::uint64_t n_slices = 0, slices_covered = 0, expert_bytes = 0;
  double uptime_seconds = 0;
  std::vector<LayerCoverage> layers;
  std::vector<NodeStatus> nodes;
  std::vector<BackboneStatus> backbones;
};

// GET /api/proxy/models -> {"models": [ModelSummary]};  GET /api/proxy/models/{m} -> ModelDetail
struct ModelSummary {
  std::string name, model_id, header_hash, architecture;
  std::uint64_t n_moe_layers = 0, n_experts = 0, n_experts_used = 0, n_embd = 0;
  std::uint64_t expert_bytes = 0;
};
struct ModelList {
  std::vector<ModelSummary> models;
};
struct TensorDetail {
  std::string projection;         // "gate" | "up" | "down" | "gate_up"
  std::string kind;               // "weight" | "bias" | "scale" | "input_scale"
  std::string type;               // ggml's name: "Q4_K"
  std::vector<std::uint64_t> ne;  // of the whole tensor
  std::uint64_t slab_bytes = 0;
  std::vector<std::string> hashes;  // hex, by expert
};
struct LayerDetail {
  std::uint16_t layer = 0;
  std::uint32_t n_experts = 0;
  std::uint64_t slice_bytes = 0;
  std::vector<TensorDetail> tensors;
};
struct ModelDetail {
  ModelSummary summary;
  std::vector<LayerDetail> layers;
  std::vector<std::string> recipes;  // Describe() texts seen from backbones, as far as known
};

// Encode and decode any of the structs above (instantiated in control.cc). kMalformed: not JSON of that form.
template <class T>
std::string ToJson(const T& value);
template <class T>
Result<T> FromJson(std::string_view text);

// {"error": {"code": …, "message": …}} and back. "": not of that form.
std::string ErrorJson(FaultCode code, std::string_view message);
std::string ErrorMessage(std::string_view json);

}  // namespace linkcpp
