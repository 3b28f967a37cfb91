#include <chrono>
#include <glaze/glaze.hpp>
#include <string>
#include <thread>

#include "base/kept_file.h"
#include "cli/cpu_speed.h"

namespace linkcpp {
namespace {

constexpr std::int64_t kKeptS = 3600;  // what else the machine does changes by the hour

struct SpeedFile {
  std::int64_t measured_unix_s = 0;
  CpuSpeed speed;
};

// What the figures depend on beside the question.
struct SpeedKey {
  std::string program = "linkcpp " LINKCPP_VERSION;
  std::uint32_t n_cores = std::thread::hardware_concurrency();
  SpeedQuestion question;
};

std::int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string KeyOf(const SpeedQuestion& question) {
  return glz::write_json(SpeedKey{.question = question}).value_or("");
}

}  // namespace

std::optional<KeptSpeed> FindKeptSpeed(const std::string& folder, const SpeedQuestion& question) {
  const auto json = FindKept(folder, KeyOf(question));
  SpeedFile kept;
  if (!json || glz::read_json(kept, *json)) return std::nullopt;
  const std::int64_t age_s = UnixNow() - kept.measured_unix_s;
  if (age_s < 0 || age_s > kKeptS || kept.speed.workers.size() != question.threads.size()) return std::nullopt;
  return KeptSpeed{.speed = std::move(kept.speed), .age_s = age_s};
}

void KeepSpeed(const std::string& folder, const SpeedQuestion& question, const CpuSpeed& speed) {
  const auto json = glz::write_json(SpeedFile{.measured_unix_s = UnixNow(), .speed = speed});
  if (json) Keep(folder, KeyOf(question), *json);
}

}  // namespace linkcpp
