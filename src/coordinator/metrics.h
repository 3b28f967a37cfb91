// /metrics: the status as Prometheus' text format. Pure.
#pragma once

#include <string>

#include "wire/control.h"

namespace linkcpp {

std::string PrometheusText(const StatusReply& status);

}  // namespace linkcpp
