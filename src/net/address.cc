#include <arpa/inet.h>

#include <array>
#include <charconv>

#include "net/tcp.h"

namespace linkcpp {
namespace {

bool IsIpv6(std::string_view host) {
  std::array<unsigned char, 16> bytes;
  return inet_pton(AF_INET6, std::string(host).c_str(), bytes.data()) == 1;
}

bool IsHostName(std::string_view host) {
  if (host.empty() || host.size() > 253) return false;
  for (const char c : host) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '-' && c != '.' && c != '_') return false;
  }
  return true;
}

}  // namespace

Result<HostPort> ParseHostPort(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return Fail(FaultCode::kLocal, "'{}' is not host:port ({}): write 127.0.0.1:8090, [::1]:8090 or name:8090", text,
                why);
  };
  std::string_view host;
  std::string_view port_text;
  if (text.starts_with('[')) {
    const std::size_t end = text.find("]:");
    if (end == std::string_view::npos) return wrong("no ']:' after '['");
    host = text.substr(1, end - 1);
    port_text = text.substr(end + 2);
    if (!IsIpv6(host)) return wrong("no IPv6 address between the brackets");
  } else {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return wrong("no port");
    host = text.substr(0, colon);
    port_text = text.substr(colon + 1);
    if (host.find(':') != std::string_view::npos) return wrong("an IPv6 address needs brackets");
    if (!IsHostName(host)) return wrong("no host name or IPv4 address");
  }
  unsigned port = 0;
  const auto [end, error] = std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size() || port > 65535)
    return wrong("the port is not 0 to 65535");
  return HostPort{std::string(host), static_cast<std::uint16_t>(port)};
}

bool IsLoopback(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") return true;
  std::array<unsigned char, 16> bytes{};
  if (inet_pton(AF_INET, std::string(host).c_str(), bytes.data()) == 1) return bytes[0] == 127;
  if (inet_pton(AF_INET6, std::string(host).c_str(), bytes.data()) != 1) return false;
  constexpr std::array<unsigned char, 16> kOne = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  if (bytes == kOne) return true;
  for (std::size_t i = 0; i < 10; ++i) {
    if (bytes[i] != 0) return false;
  }
  return bytes[10] == 0xff && bytes[11] == 0xff && bytes[12] == 127;  // ::ffff:127.x.y.z
}

}  // namespace linkcpp
