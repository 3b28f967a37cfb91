#include "base/kept_file.h"

#include <unistd.h>

#include <climits>
#include <filesystem>
#include <format>
#include <fstream>
#include <iterator>

#include "base/hash.h"
#include "base/replace_file.h"

namespace linkcpp {
namespace {

std::string PathOf(const std::string& folder, std::string_view question) {
  char host[HOST_NAME_MAX + 1] = {};
  ::gethostname(host, sizeof host - 1);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  const Hash hash = HashOf(std::format("{}\n{}\n{}", host, boot, question));
  return std::format("{}/{}.json", folder, hash.Hex().substr(0, 32));
}

}  // namespace

std::optional<std::string> FindKept(const std::string& folder, std::string_view question) {
  if (folder.empty()) return std::nullopt;
  std::ifstream file(PathOf(folder, question), std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

void Keep(const std::string& folder, std::string_view question, std::string_view answer) {
  if (folder.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  ReplaceFile(PathOf(folder, question), answer);
}

}  // namespace linkcpp
