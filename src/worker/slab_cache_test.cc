#include "worker/slab_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "base/rng.h"
#include "worker/seat.h"
#include "worker/test_stack.h"

namespace linkcpp {
namespace {

std::vector<std::byte> Slab(std::uint64_t seed, std::size_t size = 10'000) {
  Rng rng(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.Next());
  return bytes;
}

int FilesIn(const std::string& dir) {
  int n = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) n += entry.is_regular_file() ? 1 : 0;
  return n;
}

TEST(SlabCache, GivesBackWhatWasPut) {
  const TempDir dir;
  const SlabCache cache = SlabCache::Open(dir.path() + "/deep/er").value();
  const auto slab = Slab(1);
  const Hash hash = HashOf(slab);
  EXPECT_FALSE(cache.Has(hash, slab.size()));
  ASSERT_TRUE(cache.Put(hash, slab));
  EXPECT_TRUE(cache.Has(hash, slab.size()));
  EXPECT_FALSE(cache.Has(hash, slab.size() - 1));
  std::vector<std::byte> out(slab.size());
  ASSERT_TRUE(cache.Get(hash, out));
  EXPECT_EQ(out, slab);
  EXPECT_EQ(FilesIn(dir.path()), 1) << "nothing unfinished stays behind";
}

TEST(SlabCache, RefusesBytesThatAreNotTheSlab) {
  const TempDir dir;
  const SlabCache cache = SlabCache::Open(dir.path()).value();
  auto slab = Slab(1);
  const Hash hash = HashOf(slab);
  slab[5000] ^= std::byte{1};
  const auto put = cache.Put(hash, slab);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, FaultCode::kRefused);
  EXPECT_FALSE(cache.Has(hash, slab.size()));
  EXPECT_EQ(FilesIn(dir.path()), 0);
}

TEST(SlabCache, DeletesAFileThatWentBad) {
  const TempDir dir;
  const SlabCache cache = SlabCache::Open(dir.path()).value();
  const auto slab = Slab(1);
  const Hash hash = HashOf(slab);
  std::vector<std::byte> out(slab.size());

  ASSERT_TRUE(cache.Put(hash, slab));
  {
    std::fstream file(cache.PathOf(hash), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1234);
    file.put(static_cast<char>(~static_cast<int>(slab[1234])));
  }
  auto got = cache.Get(hash, out);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, FaultCode::kRefused);
  EXPECT_FALSE(cache.Has(hash, slab.size())) << "a bad file must not be found again";

  ASSERT_TRUE(cache.Put(hash, slab));
  std::filesystem::resize_file(cache.PathOf(hash), 77);  // half a file, as a crash of the machine may leave
  got = cache.Get(hash, out);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, FaultCode::kRefused);
  ASSERT_TRUE(cache.Put(hash, slab));
  EXPECT_TRUE(cache.Get(hash, out));
}

TEST(SlabCache, IsSharedByProcesses) {
  const TempDir dir;
  constexpr int kProcesses = 4, kSlabs = 60;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // everybody writes all of them, in another order, and reads them back
      const auto cache = SlabCache::Open(dir.path());
      bool good = cache.has_value();
      std::vector<std::byte> out(10'000);
      for (int i = 0; good && i < kSlabs; ++i) {
        const auto slab = Slab(static_cast<std::uint64_t>((i * (2 * process + 1)) % kSlabs));
        good = cache->Put(HashOf(slab), slab).has_value() && cache->Get(HashOf(slab), out).has_value() && out == slab;
      }
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(FilesIn(dir.path()), kSlabs);
}

TEST(SlabCache, SaysWhenTheDiskTakesNoMore) {
  const TempDir dir;
  const pid_t child = ::fork();  // the limit is the process's
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto cache = SlabCache::Open(dir.path());
    const auto slab = Slab(1);
    const auto put = cache->Put(HashOf(slab), slab);
    ::_exit(!put && put.error().code == FaultCode::kLocal && put.error().text.find("cannot write") != std::string::npos
                ? 0
                : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(FilesIn(dir.path()), 0) << "half a slab stays nowhere";
}

TEST(SlabCache, NamesTheFolderItCanNotUse) {
  const auto cache = SlabCache::Open("/proc/nowhere");
  ASSERT_FALSE(cache);
  EXPECT_EQ(cache.error().code, FaultCode::kLocal);
  EXPECT_NE(cache.error().text.find("/proc/nowhere"), std::string::npos);
}

TEST(Seat, EachWorkerHasItsOwnAndFindsItAgain) {
  const TempDir dir;
  ASSERT_TRUE(SlabCache::Open(dir.path()));
  {
    const Seat first = Seat::Take(dir.path()).value();
    const Seat second = Seat::Take(dir.path()).value();
    EXPECT_EQ(first.number(), 0);
    EXPECT_EQ(second.number(), 1);
    ASSERT_TRUE(first.Save("model-a", {{.layer = 1, .experts = "0:8"}}));
    ASSERT_TRUE(second.Save("model-a", {{.layer = 1, .experts = "8:16"}}));
  }
  const Seat again = Seat::Take(dir.path()).value();
  EXPECT_EQ(again.number(), 0);
  const auto held = again.Load("model-a");
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].layer, 1);
  EXPECT_EQ(held[0].experts, "0:8");
  EXPECT_TRUE(again.Load("model-b").empty()) << "another model's list is none";
}

TEST(Seat, ADamagedListIsNone) {
  const TempDir dir;
  const Seat seat = Seat::Take(dir.path()).value();
  std::ofstream(dir.path() + "/seats/0.json") << "{\"model\": \"model-a\", \"ready\": [{\"la";
  EXPECT_TRUE(seat.Load("model-a").empty());
}

}  // namespace
}  // namespace linkcpp
