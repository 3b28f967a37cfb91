// What a worker held last time, so that it asks for the same again after a restart and downloads nothing.
//
// Several workers may share a cache folder: each takes the first free seat (a locked file) and keeps its list there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "wire/control.h"
#include "worker/file.h"

namespace linkcpp {

class Seat {
 public:
  // kLocal: the folder can not be written.
  static Result<Seat> Take(const std::string& cache_dir);

  std::vector<LayerHoldings> Load(const std::string& model_id) const;  // empty: nothing known of this model
  Result<void> Save(const std::string& model_id, const std::vector<LayerHoldings>& held) const;
  int number() const { return number_; }

 private:
  Seat(File lock, std::string path, int number) : lock_(std::move(lock)), path_(std::move(path)), number_(number) {}
  File lock_;
  std::string path_;
  int number_;
};

}  // namespace linkcpp
