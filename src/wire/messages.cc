#include "wire/messages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "messages_generated.h"

namespace linkcpp {
namespace {

static_assert(std::endian::native == std::endian::little, "rows and lengths are little-endian on the wire");

// Faults carry words for people; a peer's megabyte of them helps nobody.
constexpr std::size_t kMaxFaultText = 4096;
// An id names a link, a model or a device; see docs/wire.md for each field's cap.
constexpr std::size_t kMaxIdText = 1024;
constexpr std::size_t kMaxTicketText = 4096;
constexpr std::size_t kMaxHoldings = 1u << 16;  // one a layer
constexpr std::size_t kMaxExpertsText = 1u << 16;

using Builder = flatbuffers::FlatBufferBuilder;
using BodyOffset = std::pair<fb::Body, flatbuffers::Offset<void>>;

// ---------------------------------------------------------------- encoding, one overload a kind

BodyOffset Build(Builder& b, const HelloMessage& m) {
  const auto node_id = b.CreateString(m.node_id);
  const auto model_id = b.CreateString(m.model_id);
  const auto kernel_class = b.CreateString(m.kernel_class);
  const auto ticket = b.CreateString(m.ticket);
  return {fb::Body::Hello, fb::CreateHello(b, m.protocol, node_id, model_id, kernel_class, ticket).Union()};
}

BodyOffset Build(Builder& b, const WelcomeMessage& m) {
  return {fb::Body::Welcome, fb::CreateWelcome(b, b.CreateString(m.backbone_id), m.max_payload_bytes).Union()};
}

BodyOffset Build(Builder& b, const HoldingsMessage& m) {
  std::vector<flatbuffers::Offset<fb::Holding>> entries;
  entries.reserve(m.ready.size());
  for (const LayerHoldings& layer : m.ready) {
    entries.push_back(fb::CreateHolding(b, layer.layer, b.CreateString(layer.experts)));
  }
  return {fb::Body::Holdings, fb::CreateHoldings(b, b.CreateVector(entries)).Union()};
}

BodyOffset Build(Builder& b, const DispatchMessage& m) {
  const auto recipe = b.CreateVector(EncodeRecipe(m.recipe));
  std::uint32_t* rows = nullptr;
  std::uint16_t* experts = nullptr;
  const auto rows_at = b.CreateUninitializedVector(m.pairs.size(), &rows);
  for (std::size_t i = 0; i < m.pairs.size(); ++i) rows[i] = m.pairs[i].row;
  const auto experts_at = b.CreateUninitializedVector(m.pairs.size(), &experts);  // may move what `rows` points to
  for (std::size_t i = 0; i < m.pairs.size(); ++i) experts[i] = m.pairs[i].expert;
  return {fb::Body::Dispatch,
          fb::CreateDispatch(b, m.id, m.layer.value, recipe, std::to_underlying(m.row_type),
                             std::to_underlying(m.reply_type), m.n_rows, m.row_len, rows_at, experts_at)
              .Union()};
}

BodyOffset Build(Builder& b, const ResultMessage& m) {
  return {fb::Body::Result,
          fb::CreateResult(b, m.id, std::to_underlying(m.row_type), m.n_pairs, m.row_len, m.compute_us).Union()};
}

BodyOffset Build(Builder& b, const FaultMessage& m) {
  const auto text = b.CreateString(m.text.data(), std::min(m.text.size(), kMaxFaultText));
  return {fb::Body::Fault, fb::CreateFault(b, m.id, std::to_underlying(m.code), text).Union()};
}

BodyOffset Build(Builder& b, const PingMessage& m) {
  return {fb::Body::Ping, fb::CreatePing(b, m.nonce, m.reply).Union()};
}

BodyOffset Build(Builder& b, const GoodbyeMessage& m) {
  const auto reason = b.CreateString(m.reason.data(), std::min(m.reason.size(), kMaxFaultText));
  return {fb::Body::Goodbye, fb::CreateGoodbye(b, reason).Union()};
}

// ---------------------------------------------------------------- decoding, after the verifier has passed

Result<std::string> Text(const flatbuffers::String* text, std::size_t max_bytes, const char* field) {
  if (text == nullptr) return std::string();
  if (text->size() > max_bytes) {
    return Fail(FaultCode::kMalformed, "{} of {} bytes, more than {}", field, text->size(), max_bytes);
  }
  return text->str();
}

Result<RowType> CheckedRowType(std::uint8_t value, const char* field) {
  if (value > std::to_underlying(RowType::kQ8_0))
    return Fail(FaultCode::kMalformed, "{}: unknown row type {}", field, value);
  return static_cast<RowType>(value);
}

Result<void> CheckRowLen(std::uint32_t row_len, RowType type) {
  if (row_len == 0 || row_len > kMaxRowLen) {
    return Fail(FaultCode::kMalformed, "row_len {} is not in 1..{}", row_len, kMaxRowLen);
  }
  if (type == RowType::kQ8_0 && row_len % kQ8BlockValues != 0) {
    return Fail(FaultCode::kMalformed, "row_len {} is not a multiple of {}, which q8_0 needs", row_len, kQ8BlockValues);
  }
  return {};
}

Result<void> CheckPayload(std::size_t payload_bytes, std::uint64_t n_rows, RowType type, std::uint32_t row_len) {
  const std::uint64_t expected = n_rows * RowBytes(type, row_len);
  if (payload_bytes != expected) {
    return Fail(FaultCode::kMalformed, "payload of {} bytes where {} rows need {}", payload_bytes, n_rows, expected);
  }
  return {};
}

Result<void> NoPayload(std::size_t payload_bytes, const char* kind) {
  if (payload_bytes != 0) return Fail(FaultCode::kMalformed, "{} with a payload of {} bytes", kind, payload_bytes);
  return {};
}

Result<Message> Read(const fb::Hello& in, std::size_t payload_bytes) {
  RETURN_IF_FAULT(NoPayload(payload_bytes, "Hello"));
  HelloMessage m;
  m.protocol = in.protocol();
  ASSIGN_OR_RETURN(m.node_id, Text(in.node_id(), kMaxIdText, "Hello.node_id"));
  ASSIGN_OR_RETURN(m.model_id, Text(in.model_id(), kMaxIdText, "Hello.model_id"));
  ASSIGN_OR_RETURN(m.kernel_class, Text(in.kernel_class(), kMaxIdText, "Hello.kernel_class"));
  ASSIGN_OR_RETURN(m.ticket, Text(in.ticket(), kMaxTicketText, "Hello.ticket"));
  return m;
}

Result<Message> Read(const fb::Welcome& in, std::size_t payload_bytes) {
  RETURN_IF_FAULT(NoPayload(payload_bytes, "Welcome"));
  WelcomeMessage m;
  ASSIGN_OR_RETURN(m.backbone_id, Text(in.backbone_id(), kMaxIdText, "Welcome.backbone_id"));
  m.max_payload_bytes = in.max_payload_bytes();
  return m;
}

Result<Message> Read(const fb::Holdings& in, std::size_t payload_bytes) {
  RETURN_IF_FAULT(NoPayload(payload_bytes, "Holdings"));
  HoldingsMessage m;
  if (in.ready() == nullptr) return m;
  if (in.ready()->size() > kMaxHoldings) {
    return Fail(FaultCode::kMalformed, "Holdings of {} layers, more than {}", in.ready()->size(), kMaxHoldings);
  }
  m.ready.reserve(in.ready()->size());
  for (const fb::Holding* entry : *in.ready()) {
    ASSIGN_OR_RETURN(std::string experts, Text(entry->experts(), kMaxExpertsText, "Holdings.experts"));
    m.ready.push_back({entry->layer(), std::move(experts)});
  }
  return m;
}

Result<Message> Read(const fb::Dispatch& in, std::size_t payload_bytes) {
  DispatchMessage m;
  m.id = in.id();
  m.layer = LayerId(in.layer());
  ASSIGN_OR_RETURN(m.row_type, CheckedRowType(in.row_type(), "Dispatch.row_type"));
  ASSIGN_OR_RETURN(m.reply_type, CheckedRowType(in.reply_type(), "Dispatch.reply_type"));
  m.n_rows = in.n_rows();
  m.row_len = in.row_len();
  if (m.n_rows == 0 || m.n_rows > kMaxRows) {
    return Fail(FaultCode::kMalformed, "Dispatch.n_rows {} is not in 1..{}", m.n_rows, kMaxRows);
  }
  RETURN_IF_FAULT(CheckRowLen(m.row_len, m.row_type));
  RETURN_IF_FAULT(CheckPayload(payload_bytes, m.n_rows, m.row_type, m.row_len));

  const std::size_t n_pairs = in.rows() == nullptr ? 0 : in.rows()->size();
  if (n_pairs == 0 || n_pairs > kMaxPairs) {
    return Fail(FaultCode::kMalformed, "Dispatch of {} pairs, not 1 to {}", n_pairs, kMaxPairs);
  }
  if (in.experts() == nullptr || in.experts()->size() != n_pairs) {
    return Fail(FaultCode::kMalformed, "Dispatch with {} rows but {} experts", n_pairs,
                in.experts() == nullptr ? 0 : in.experts()->size());
  }
  const std::uint32_t* rows = in.rows()->data();
  const std::uint16_t* experts = in.experts()->data();
  if (const std::uint32_t highest = *std::max_element(rows, rows + n_pairs); highest >= m.n_rows) {
    return Fail(FaultCode::kMalformed, "Dispatch: a pair names row {} of {}", highest, m.n_rows);
  }
  m.pairs.resize(n_pairs);
  for (std::size_t i = 0; i < n_pairs; ++i) m.pairs[i] = {rows[i], experts[i]};

  if (in.recipe() == nullptr) return Fail(FaultCode::kMalformed, "Dispatch without a recipe");
  ASSIGN_OR_RETURN(m.recipe, DecodeRecipe(std::span(in.recipe()->data(), in.recipe()->size())));
  return m;
}

Result<Message> Read(const fb::Result& in, std::size_t payload_bytes) {
  ResultMessage m;
  m.id = in.id();
  ASSIGN_OR_RETURN(m.row_type, CheckedRowType(in.row_type(), "Result.row_type"));
  m.n_pairs = in.n_pairs();
  m.row_len = in.row_len();
  m.compute_us = in.compute_us();
  if (m.n_pairs == 0 || m.n_pairs > kMaxPairs) {
    return Fail(FaultCode::kMalformed, "Result of {} pairs, not 1 to {}", m.n_pairs, kMaxPairs);
  }
  RETURN_IF_FAULT(CheckRowLen(m.row_len, m.row_type));
  RETURN_IF_FAULT(CheckPayload(payload_bytes, m.n_pairs, m.row_type, m.row_len));
  return m;
}

Result<Message> Read(const fb::Fault& in, std::size_t payload_bytes) {
  RETURN_IF_FAULT(NoPayload(payload_bytes, "Fault"));
  FaultMessage m;
  m.id = in.id();
  if (in.code() < std::to_underlying(FaultCode::kBusy) || in.code() > std::to_underlying(FaultCode::kLocal)) {
    return Fail(FaultCode::kMalformed, "Fault.code {} is unknown", in.code());
  }
  m.code = static_cast<FaultCode>(in.code());
  ASSIGN_OR_RETURN(m.text, Text(in.text(), kMaxFaultText, "Fault.text"));
  return m;
}

Result<Message> Read(const fb::Ping& in, std::size_t payload_bytes) {
  RETURN_IF_FAULT(NoPayload(payload_bytes, "Ping"));
  return PingMessage{in.nonce(), in.reply()};
}

Result<Message> Read(const fb::Goodbye& in, std::size_t payload_bytes) {
  RETURN_IF_FAULT(NoPayload(payload_bytes, "Goodbye"));
  GoodbyeMessage m;
  ASSIGN_OR_RETURN(m.reason, Text(in.reason(), kMaxFaultText, "Goodbye.reason"));
  return m;
}

Result<Message> Dispatched(const fb::Header& header, std::size_t payload_bytes) {
  if (header.body() == nullptr) return Fail(FaultCode::kMalformed, "a header without a message");
  switch (header.body_type()) {
    case fb::Body::NONE: break;
    case fb::Body::Hello: return Read(*header.body_as_Hello(), payload_bytes);
    case fb::Body::Welcome: return Read(*header.body_as_Welcome(), payload_bytes);
    case fb::Body::Holdings: return Read(*header.body_as_Holdings(), payload_bytes);
    case fb::Body::Dispatch: return Read(*header.body_as_Dispatch(), payload_bytes);
    case fb::Body::Result: return Read(*header.body_as_Result(), payload_bytes);
    case fb::Body::Fault: return Read(*header.body_as_Fault(), payload_bytes);
    case fb::Body::Ping: return Read(*header.body_as_Ping(), payload_bytes);
    case fb::Body::Goodbye: return Read(*header.body_as_Goodbye(), payload_bytes);
  }
  return Fail(FaultCode::kMalformed, "unknown kind of message {}", std::to_underlying(header.body_type()));
}

}  // namespace

std::vector<std::byte> EncodeMessage(const Message& message) {
  Builder builder(512);  // a decode step's Dispatch fits
  const auto [kind, body] = std::visit([&](const auto& m) { return Build(builder, m); }, message);
  fb::FinishHeaderBuffer(builder, fb::CreateHeader(builder, kind, body));
  const auto bytes = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  return {bytes.begin(), bytes.end()};
}

Result<Message> DecodeMessage(std::span<const std::byte> header, std::size_t payload_bytes) {
  // FlatBuffers reads fields in place, so the bytes must be aligned as its widest field is. A link's always are.
  constexpr std::size_t kAlign = alignof(std::uint64_t);
  std::vector<std::uint64_t> aligned;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(header.data());
  if (reinterpret_cast<std::uintptr_t>(bytes) % kAlign != 0) {
    aligned.resize((header.size() + kAlign - 1) / kAlign);
    std::memcpy(aligned.data(), bytes, header.size());
    bytes = reinterpret_cast<const std::uint8_t*>(aligned.data());
  }
  flatbuffers::Verifier::Options options;
  options.max_depth = 8;
  options.max_tables = kMaxHoldings + 8;
  flatbuffers::Verifier verifier(bytes, header.size(), options);
  if (!fb::VerifyHeaderBuffer(verifier)) {
    return Fail(FaultCode::kMalformed, "{} header bytes are not a linkcpp message", header.size());
  }
  return Dispatched(*fb::GetHeader(bytes), payload_bytes);
}

void PutFrameLengths(FrameLengths lengths, std::span<std::byte, kFrameLengthBytes> out) {
  std::memcpy(out.data(), &lengths.header_bytes, 4);
  std::memcpy(out.data() + 4, &lengths.payload_bytes, 4);
}

FrameLengths GetFrameLengths(std::span<const std::byte, kFrameLengthBytes> bytes) {
  FrameLengths lengths;
  std::memcpy(&lengths.header_bytes, bytes.data(), 4);
  std::memcpy(&lengths.payload_bytes, bytes.data() + 4, 4);
  return lengths;
}

}  // namespace linkcpp
