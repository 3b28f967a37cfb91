#include "coordinator/reach.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <format>
#include <memory>

namespace linkcpp {
namespace {

bool IsWildcard(const std::string& host) {
  return host == "0.0.0.0" || host == "::";
}

std::string FirstAddress(int family) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::array<char, NI_MAXHOST> text{};
    const auto size = static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (::getnameinfo(entry->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    const std::string address = text.data();
    if (!address.contains('%')) return address;  // link-local addresses mean nothing elsewhere
  }
  return "";
}

}  // namespace

std::string OwnHost(const std::string& listen_host) {
  if (listen_host == "0.0.0.0") return "127.0.0.1";
  return listen_host == "::" ? "::1" : listen_host;
}

std::string ReachableHost(const std::string& listen_host) {
  if (!IsWildcard(listen_host)) return listen_host;
  for (const int family : {AF_INET, AF_INET6}) {
    if (family == AF_INET6 && listen_host != "::") break;
    if (std::string address = FirstAddress(family); !address.empty()) return address;
  }
  return OwnHost(listen_host);
}

std::string UrlHost(const std::string& host) {
  return host.contains(':') ? "[" + host + "]" : host;
}

std::string ControlUrl(const std::string& host, std::uint16_t port, const std::string& fingerprint) {
  if (fingerprint.empty()) return std::format("http://{}:{}", UrlHost(host), port);
  return std::format("https://{}:{}#sha256={}", UrlHost(host), port, fingerprint);
}

Result<void> CheckPortIsFree(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int error = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Fail(FaultCode::kLocal, "{}: {}", address.host, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  const int socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool free = ::bind(socket, found->ai_addr, found->ai_addrlen) == 0 && ::listen(socket, 1) == 0;
  const int error = errno;
  ::close(socket);
  if (free) return {};
  return Fail(FaultCode::kLocal, "cannot listen on {}:{}: {}; choose another address or port", UrlHost(address.host),
              address.port, std::strerror(error));
}

}  // namespace linkcpp
