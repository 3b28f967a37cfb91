// Lets calls through on the transport's thread until it is shut from any thread. Private to src/net.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace linkcpp {

class Gate {
 public:
  // On the transport's thread. False: shut, `call` was not made.
  template <class Call>
  bool Run(Call&& call) {
    const std::lock_guard lock(running_);
    if (shut_.load()) return false;
    struct Inside {  // also when the call throws
      bool& flag;
      explicit Inside(bool& f) : flag(f) { flag = true; }
      ~Inside() { flag = false; }
    } const inside(inside_);
    call();
    return true;
  }

  // When it returns, no call is running and none will, except the one that calls Shut itself.
  void Shut(std::thread::id transport_thread) {
    shut_.store(true);
    if (std::this_thread::get_id() == transport_thread) return;  // nothing else can run meanwhile
    const std::lock_guard wait(running_);
  }

  bool shut() const { return shut_.load(); }
  // On the transport's thread: whether a call is on its stack.
  bool inside() const { return inside_; }

 private:
  std::mutex running_;  // held during a call
  std::atomic<bool> shut_ = false;
  bool inside_ = false;  // transport's thread only
};

}  // namespace linkcpp
