// Everything that decodes what a peer sent: frames' headers, the control plane's JSON, tickets, recipes.
//
// The first byte chooses the decoder, so that one corpus serves all. What decodes must encode again to something that
// decodes to the same: that finds fields that are read but not written, and the other way round.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/recipe.h"
#include "wire/control.h"
#include "wire/messages.h"
#include "wire/ticket.h"

namespace linkcpp {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void Header(std::span<const std::byte> bytes, std::size_t payload_bytes) {
  const auto message = DecodeMessage(bytes, payload_bytes);
  if (!message) return;
  const auto again = EncodeMessage(*message);
  const auto back = DecodeMessage(again, payload_bytes);
  Require(back.has_value() && back->index() == message->index());
  Require(EncodeMessage(*back) == again);
}

// A Dispatch or Result whose payload is as long as its header says, which guessing would hardly hit.
std::size_t ClaimedPayload(std::span<const std::byte> bytes) {
  for (const std::size_t payload : {0, 64, 1088, 4096}) {
    if (DecodeMessage(bytes, payload)) return payload;
  }
  return 0;
}

template <class T>
void Json(std::string_view text) {
  const auto value = FromJson<T>(text);
  if (!value) return;
  const std::string again = ToJson(*value);
  const auto back = FromJson<T>(again);
  Require(back.has_value());
  Require(ToJson(*back) == again);
}

void Rows(std::span<const std::byte> bytes) {
  for (const RowType type : {RowType::kF32, RowType::kF16, RowType::kBf16, RowType::kQ8_0}) {
    const std::size_t row_bytes = RowBytes(type, 32);
    const std::size_t n_rows = bytes.size() / row_bytes;
    std::vector<float> rows(n_rows * 32);
    std::vector<std::byte> packed(n_rows * row_bytes);
    UnpackRows(type, bytes.first(n_rows * row_bytes), 32, rows);
    PackRows(type, rows, 32, packed);
  }
}

void RecipeBytes(std::span<const std::uint8_t> bytes) {
  const auto recipe = DecodeRecipe(bytes);
  if (!recipe) return;
  (void)recipe->Describe();
  const auto again = EncodeRecipe(*recipe);
  Require(again.size() == bytes.size());
}

}  // namespace
}  // namespace linkcpp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkcpp;
  if (size == 0) return 0;
  const std::span<const std::uint8_t> raw(data + 1, size - 1);
  const auto bytes = std::as_bytes(raw);
  const std::string_view text(reinterpret_cast<const char*>(raw.data()), raw.size());
  switch (data[0] % 16) {
    case 0: Header(bytes, ClaimedPayload(bytes)); break;
    case 1:
      if (bytes.size() >= kFrameLengthBytes) {
        Header(bytes.subspan(kFrameLengthBytes), GetFrameLengths(bytes.first<kFrameLengthBytes>()).payload_bytes);
      }
      break;
    case 2: RecipeBytes(raw); break;
    case 3: Rows(bytes); break;
    case 4: {
      static const TicketKeys keys = MakeTicketKeys();
      (void)OpenTicket(text, keys.public_key, 1'800'000'000);
      (void)OpenTicket(keys.public_key, text, 1'800'000'000);
      break;
    }
    case 5: Json<JoinRequest>(text); break;
    case 6: Json<JoinReply>(text); break;
    case 7: Json<NodeOrders>(text); break;
    case 8: Json<NodeReport>(text); break;
    case 9: Json<AttachRequest>(text); break;
    case 10: Json<AttachReply>(text); break;
    case 11: Json<BackboneReport>(text); break;
    case 12: Json<StatusReply>(text); break;
    case 13: Json<ModelList>(text); break;
    case 14: Json<ModelDetail>(text); break;
    case 15: (void)ErrorMessage(text); break;
  }
  return 0;
}
