// Slabs on disk, named by the BLAKE3 of their bytes: <dir>/slabs/ab/abcdef….
//
// Several workers on one machine may share a folder: a file is written aside and renamed into place, so what is there
// is whole, and two writers of one name write the same bytes. What is read is hashed again, because disks forget.
// Deleting any of it at any time is safe. Knows nothing of models or layers.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/hash.h"
#include "base/result.h"

namespace linkcpp {

class SlabCache {
 public:
  // Makes the folders. Removes unfinished files older than a day. kLocal: cannot be written (path and reason).
  static Result<SlabCache> Open(const std::string& dir);

  // A file of that name and size is there; its bytes are looked at by Get.
  bool Has(const Hash& hash, std::uint64_t size_bytes) const;

  // `bytes` must hash to `hash` (kRefused otherwise, nothing is written). Already there: nothing to do.
  // kLocal: the disk is full or fails.
  Result<void> Put(const Hash& hash, std::span<const std::byte> bytes) const;

  // Fills `out`, whose size is the slab's. kRefused: not there, another size or other bytes (then it is deleted:
  // download it again). kLocal: the disk fails.
  Result<void> Get(const Hash& hash, std::span<std::byte> out) const;

  std::string PathOf(const Hash& hash) const;
  const std::string& dir() const { return dir_; }
  std::string downloads_dir() const { return dir_ + "/downloads"; }

 private:
  explicit SlabCache(std::string dir) : dir_(std::move(dir)) {}
  std::string dir_;
};

// Free bytes for us on the file system of `dir`; 0 if unknown.
std::uint64_t FreeDiskBytes(const std::string& dir);

// "No space left on device" and its like, worded for people, or the plain reason.
std::string DiskReason(int error_number);
bool IsDiskFull(int error_number);

}  // namespace linkcpp
