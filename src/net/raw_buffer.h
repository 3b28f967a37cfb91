// Memory without values, for bytes that are about to be written over. Private to src/net.
//
// Its pages stay untouched until bytes arrive, so a claimed length alone costs nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace linkcpp {

class RawBuffer {
 public:
  RawBuffer() = default;
  // False: no memory. Contents are lost when it grows.
  bool Reserve(std::size_t size) {
    if (size <= capacity_) return true;
    Release();
    bytes_.reset(static_cast<std::byte*>(::operator new(size, kAlign, std::nothrow)));
    if (bytes_ == nullptr) return false;
    capacity_ = size;
    return true;
  }
  void Release() {
    bytes_.reset();
    capacity_ = 0;
  }
  std::byte* data() const { return bytes_.get(); }
  std::size_t capacity() const { return capacity_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Delete {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kAlign); }
  };
  std::unique_ptr<std::byte, Delete> bytes_;
  std::size_t capacity_ = 0;
};

}  // namespace linkcpp
