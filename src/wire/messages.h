// The data plane's messages between a worker and a backbone, and their bytes.
//
// A frame is 8 bytes of lengths (u32 header bytes, u32 payload bytes, little-endian), a FlatBuffers header
// (messages.fbs), and raw rows. Headers are verified before any field is read. docs/wire.md lists every field.
// Encode* makes the header bytes only; the payload travels beside it (net/link.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/recipe.h"
#include "base/result.h"
#include "wire/control.h"

namespace linkcpp {

enum class RowType : std::uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2, kQ8_0 = 3 };  // on the wire: do not renumber

// worker -> backbone, first frame of a link.
struct HelloMessage {
  int protocol = kProtocolVersion;
  std::string node_id;
  std::string model_id;  // hex
  std::string kernel_class;
  std::string ticket;  // base64, wire/ticket.h
};
// backbone -> worker: accepted.
struct WelcomeMessage {
  std::string backbone_id;
  std::uint32_t max_payload_bytes = 0;
};
// worker -> backbone: everything it holds now (replaces what it said before).
struct HoldingsMessage {
  std::vector<LayerHoldings> ready;
};
// backbone -> worker. Payload: the rows, [n_rows, row_len] of row_type.
struct PairMessage {
  std::uint32_t row = 0;
  std::uint16_t expert = 0;
};
struct DispatchMessage {
  std::uint64_t id = 0;  // of this link; answered by exactly one Result or FaultMessage
  LayerId layer;
  Recipe recipe;
  RowType row_type = RowType::kF32;
  RowType reply_type = RowType::kF32;
  std::uint32_t n_rows = 0;
  std::uint32_t row_len = 0;
  std::vector<PairMessage> pairs;
};
// worker -> backbone. Payload: one row per pair, in the order asked, [n_pairs, row_len] of row_type.
struct ResultMessage {
  std::uint64_t id = 0;
  RowType row_type = RowType::kF32;
  std::uint32_t n_pairs = 0;
  std::uint32_t row_len = 0;
  std::uint32_t compute_us = 0;  // time in the kernel, for link figures
};
// Either way. id 0: about the link as a whole.
struct FaultMessage {
  std::uint64_t id = 0;
  FaultCode code = FaultCode::kLocal;
  std::string text;
};
struct PingMessage {
  std::uint64_t nonce = 0;
  bool reply = false;
};
// worker -> backbone: send no more dispatches; what is in flight will be answered.
struct GoodbyeMessage {
  std::string reason;
};

using Message = std::variant<HelloMessage, WelcomeMessage, HoldingsMessage, DispatchMessage, ResultMessage,
                             FaultMessage, PingMessage, GoodbyeMessage>;

std::vector<std::byte> EncodeMessage(const Message& message);

// kMalformed: does not verify, a value out of its range (row_len 0, more than kMaxPairs pairs, a pair's row >= n_rows,
// a bad recipe), or a payload that is not exactly as long as the header says.
Result<Message> DecodeMessage(std::span<const std::byte> header, std::size_t payload_bytes);

inline constexpr std::uint32_t kMaxPairs = 1u << 16;
inline constexpr std::uint32_t kMaxRows = 1u << 16;
inline constexpr std::uint32_t kMaxRowLen = 1u << 18;

inline constexpr std::uint32_t kQ8BlockValues = 32;

// Bytes of one row. q8_0: blocks of 32 values, f16 scale then 32 int8 (34 bytes); row_len must be a multiple of 32.
std::size_t RowBytes(RowType type, std::uint32_t row_len);
// rows: [n, row_len] f32. out: n * RowBytes. Rounding: nearest even for f16 and bf16; q8_0 as ggml's reference
// quantiser.
void PackRows(RowType type, std::span<const float> rows, std::uint32_t row_len, std::span<std::byte> out);
void UnpackRows(RowType type, std::span<const std::byte> bytes, std::uint32_t row_len, std::span<float> out);

// The outer frame: 8 bytes of lengths.
inline constexpr std::size_t kFrameLengthBytes = 8;
struct FrameLengths {
  std::uint32_t header_bytes = 0;
  std::uint32_t payload_bytes = 0;
};
void PutFrameLengths(FrameLengths lengths, std::span<std::byte, kFrameLengthBytes> out);
FrameLengths GetFrameLengths(std::span<const std::byte, kFrameLengthBytes> bytes);

}  // namespace linkcpp
