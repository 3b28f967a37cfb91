// Manifests kept on disk. A cached one carries a fingerprint of the model's files, so a stale one is never believed.
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/replace_file.h"
#include "gguf/manifest.h"

namespace linkcpp {
namespace {

constexpr std::size_t kFingerprintBytes = sizeof(Hash::bytes);
constexpr std::uint64_t kMaxCacheBytes = 256 << 20;  // 48 layers of 256 experts take 1.2 MB

// What must be the same for a cached manifest to be this model's.
Hash Fingerprint(const ModelFile& model) {
  Hasher hasher;
  hasher.Update("linkcpp manifest cache 1");
  hasher.Update(std::as_bytes(std::span(model.header_hash().bytes)));
  for (std::size_t i = 0; i < model.paths().size(); ++i) {
    const ByteSource& source = model.source(static_cast<std::uint16_t>(i));
    hasher.Update(std::format(" {} {}", source.size_bytes(), source.modified_ns()));
  }
  return hasher.Finish();
}

std::optional<Manifest> Load(const std::string& path, const ModelFile& model, const Hash& fingerprint) {
  const auto source = OpenFileSource(path);
  if (!source || (*source)->size_bytes() > kMaxCacheBytes || (*source)->size_bytes() < kFingerprintBytes) return {};
  std::string bytes((*source)->size_bytes(), '\0');
  if (!(*source)->ReadAt(0, std::as_writable_bytes(std::span(bytes)))) return {};
  if (!std::ranges::equal(std::as_bytes(std::span(bytes)).first(kFingerprintBytes),
                          std::as_bytes(std::span(fingerprint.bytes)))) {
    return {};
  }
  auto manifest = Manifest::Decode(std::string_view(bytes).substr(kFingerprintBytes));
  if (!manifest || manifest->header_hash() != model.header_hash()) return {};
  return std::move(*manifest);
}

bool Store(const std::string& path, const Manifest& manifest, const Hash& fingerprint) {
  const std::string_view head(reinterpret_cast<const char*>(fingerprint.bytes.data()), kFingerprintBytes);
  return ReplaceFile(path, std::string(head) + manifest.Encode());
}

}  // namespace

std::string DefaultCacheDir() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::string(cache) + "/linkcpp";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/linkcpp";
  }
  return "";
}

Result<Manifest> Manifest::LoadOrCompute(const ModelFile& model, const std::string& cache_dir,
                                         const Progress& progress) {
  const Hash fingerprint = Fingerprint(model);
  std::vector<std::string> places{model.paths()[0] + ".linkcpp-manifest"};
  if (!cache_dir.empty())
    places.push_back(std::format("{}/{}.linkcpp-manifest", cache_dir, fingerprint.Hex().substr(0, 32)));
  for (const std::string& place : places) {
    if (auto manifest = Load(place, model, fingerprint)) return std::move(*manifest);
  }
  const auto n_threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
  ASSIGN_OR_RETURN(auto manifest, Compute(model, n_threads, progress));
  std::error_code ignored;
  if (!Store(places[0], manifest, fingerprint) && places.size() > 1) {
    std::filesystem::create_directories(cache_dir, ignored);
    Store(places[1], manifest, fingerprint);
  }
  return manifest;
}

}  // namespace linkcpp
