#include "worker/seat.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "worker/slab_cache.h"

namespace linkcpp {

Result<Seat> Seat::Take(const std::string& cache_dir) {
  const std::string folder = cache_dir + "/seats";
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return Fail(FaultCode::kLocal, "cannot make {}: {}", folder, DiskReason(errno));
  }
  constexpr int kMostSeats = 4096;
  for (int number = 0; number < kMostSeats; ++number) {
    const std::string path = std::format("{}/{}", folder, number);
    ASSIGN_OR_RETURN(File lock, File::Open(path + ".lock", O_RDWR | O_CREAT));
    if (lock.TryLock()) return Seat(std::move(lock), path + ".json", number);
  }
  return Fail(FaultCode::kLocal, "{} workers share {} already", kMostSeats, cache_dir);
}

std::vector<LayerHoldings> Seat::Load(const std::string& model_id) const {
  std::ifstream file(path_);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto kept = FromJson<JoinRequest>(text);  // its "model" and "ready" are just what is kept
  if (!kept || kept->model != model_id) return {};
  return std::move(kept->ready);
}

Result<void> Seat::Save(const std::string& model_id, const std::vector<LayerHoldings>& held) const {
  JoinRequest keep;
  keep.model = model_id;
  keep.ready = held;
  const std::string text = ToJson(keep);
  const std::string part = path_ + ".part";
  {
    ASSIGN_OR_RETURN(File file, File::Open(part, O_WRONLY | O_CREAT | O_TRUNC));
    RETURN_IF_FAULT(file.WriteAt(0, std::as_bytes(std::span(text))));
    RETURN_IF_FAULT(file.Close());
  }
  if (::rename(part.c_str(), path_.c_str()) != 0) {
    return Fail(FaultCode::kLocal, "cannot move {} into place: {}", part, DiskReason(errno));
  }
  return {};
}

}  // namespace linkcpp
