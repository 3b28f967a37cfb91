// By which address is this machine reached? What stands in the join line.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "net/tcp.h"

namespace linkcpp {

// The host by which this machine reaches what listens on `listen_host`: loopback for all interfaces, else itself.
std::string OwnHost(const std::string& listen_host);
// The host by which others reach it: for all interfaces, the address of the first interface that is up and not
// loopback.
std::string ReachableHost(const std::string& listen_host);

std::string UrlHost(const std::string& host);  // IPv6 in brackets
// "http://host:port", or "https://host:port#sha256=<fingerprint>".
std::string ControlUrl(const std::string& host, std::uint16_t port, const std::string& fingerprint);

// kLocal: something listens there already, or the address is not of this machine. Only a look ahead: llama-server binds
// it for itself a little later.
Result<void> CheckPortIsFree(const HostPort& address);

}  // namespace linkcpp
