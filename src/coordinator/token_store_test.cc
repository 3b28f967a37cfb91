#include "coordinator/token_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <format>
#include <fstream>
#include <iterator>

#include "coordinator/kept.h"
#include "coordinator/state_folder.h"
#include "coordinator/test_world.h"

namespace linkcpp {
namespace {

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

unsigned Mode(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
}

class TokenStoreTest : public testing::Test {
 protected:
  TempFolder folder_;
  std::string path_ = folder_.path() + "/tokens.db";
};

TEST_F(TokenStoreTest, ANewTokenWorksAndAnyOtherTextDoesNot) {
  auto store = TokenStore::Open(path_).value();
  const auto fresh = store->New("laptop").value();
  EXPECT_EQ(store->Check(fresh.token).value(), fresh.info.id);
  std::string wrong = fresh.token;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  EXPECT_EQ(store->Check(wrong).value(), std::nullopt);
  EXPECT_EQ(store->Check("").value(), std::nullopt);
  EXPECT_EQ(store->Check(std::string(1 << 20, 'x')).value(), std::nullopt);
  EXPECT_EQ(store->Check(fresh.info.id).value(), std::nullopt);
}

TEST_F(TokenStoreTest, ATokenRevokedElsewhereStopsAtOnce) {
  auto coordinator = TokenStore::Open(path_).value();
  auto command = TokenStore::Open(path_).value();
  const auto fresh = command->New("laptop").value();
  ASSERT_TRUE(coordinator->Check(fresh.token).value());
  ASSERT_TRUE(command->Revoke(fresh.info.id));
  EXPECT_EQ(coordinator->Check(fresh.token).value(), std::nullopt);
}

TEST_F(TokenStoreTest, TokensOutliveTheProgramAndTheSecretIsNotInTheFile) {
  const auto fresh = TokenStore::Open(path_).value()->New("laptop").value();
  EXPECT_TRUE(TokenStore::Open(path_).value()->Check(fresh.token).value());
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_FALSE(Content(entry.path()).contains(fresh.token)) << entry.path();
    EXPECT_EQ(Mode(entry.path()), 0600u) << entry.path();
  }
}

TEST_F(TokenStoreTest, TwoStoresHashTheSameTokenDifferently) {
  auto one = TokenStore::Open(path_).value();
  auto other = TokenStore::Open(folder_.path() + "/other.db").value();
  EXPECT_EQ(other->Check(one->New("laptop").value().token).value(), std::nullopt);
}

TEST_F(TokenStoreTest, TheListNamesThemInOrder) {
  auto store = TokenStore::Open(path_).value();
  const auto first = store->New("first").value();
  const auto second = store->New("o'second; DROP TABLE tokens").value();
  ASSERT_TRUE(store->Revoke(first.info.id));
  const auto list = store->List().value();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].name, "first");
  EXPECT_NE(list[0].revoked_unix_s, 0);
  EXPECT_EQ(list[1].name, "o'second; DROP TABLE tokens");
  EXPECT_EQ(list[1].revoked_unix_s, 0);
}

TEST_F(TokenStoreTest, RevokingWhatIsNotThereSaysSo) {
  auto store = TokenStore::Open(path_).value();
  const auto outcome = store->Revoke("1f2e3d4c");
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, FaultCode::kRefused);
  EXPECT_TRUE(outcome.error().text.contains("1f2e3d4c"));
}

TEST_F(TokenStoreTest, AFileThatIsNoStoreIsAFault) {
  std::ofstream(path_) << std::string(5000, 'x');
  const auto store = TokenStore::Open(path_);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, FaultCode::kLocal);
  EXPECT_TRUE(store.error().text.contains(path_)) << store.error().text;
}

TEST_F(TokenStoreTest, TheJoinTokenIsKeptUntilItIsRevoked) {
  auto store = TokenStore::Open(path_).value();
  const std::string token = KeepToken(*store, folder_.path(), "join-token", "join").value();
  EXPECT_EQ(KeepToken(*store, folder_.path(), "join-token", "join").value(), token);
  EXPECT_EQ(Mode(folder_.path() + "/join-token"), 0600u);
  ASSERT_TRUE(store->Revoke(store->Check(token).value().value()));
  const std::string next = KeepToken(*store, folder_.path(), "join-token", "join").value();
  EXPECT_NE(next, token);
  EXPECT_TRUE(store->Check(next).value());
}

TEST_F(TokenStoreTest, KeysAndTheServeRecordAreKeptAndASecretOthersCanReadIsRefused) {
  const TicketKeys keys = KeepTicketKeys(folder_.path()).value();
  EXPECT_EQ(KeepTicketKeys(folder_.path()).value().secret_key, keys.secret_key);
  EXPECT_FALSE(LoadServeRecord(folder_.path()).value());
  ASSERT_TRUE(SaveServeRecord(folder_.path(), {"http://127.0.0.1:1", "lk_x", "", "/m.gguf", 7}));
  EXPECT_EQ(LoadServeRecord(folder_.path()).value()->token, "lk_x");
  const std::string record = folder_.path() + "/serve.json";
  EXPECT_EQ(Mode(record), 0600u);
  ::chmod(record.c_str(), 0644);
  const auto open_to_all = LoadServeRecord(folder_.path());
  ASSERT_FALSE(open_to_all);
  EXPECT_TRUE(open_to_all.error().text.contains("chmod 600")) << open_to_all.error().text;
}

TEST_F(TokenStoreTest, AFolderHasOneServeAtATime) {
  {
    const auto first = FolderLock::Take(folder_.path());
    ASSERT_TRUE(first) << first.error().text;
    const auto second = FolderLock::Take(folder_.path());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, FaultCode::kBusy);
    EXPECT_THAT(second.error().text, testing::HasSubstr(std::format("process {}", ::getpid())));
    EXPECT_THAT(second.error().text, testing::HasSubstr(folder_.path()));
    EXPECT_THAT(second.error().text, testing::HasSubstr("--state"));
  }
  EXPECT_TRUE(FolderLock::Take(folder_.path()));
  // Whoever is killed with -9 leaves the file, not the lock.
  const pid_t child = ::fork();
  if (child == 0) {
    const auto held = FolderLock::Take(folder_.path());
    ::kill(::getpid(), held ? SIGKILL : SIGTERM);
  }
  int how = 0;
  ::waitpid(child, &how, 0);
  EXPECT_EQ(WTERMSIG(how), SIGKILL);
  EXPECT_TRUE(FolderLock::Take(folder_.path()));
}

TEST_F(TokenStoreTest, ATokenCanBeLookedUpByItsId) {
  const auto store = TokenStore::Open(path_).value();
  const auto token = store->New("guest").value();
  EXPECT_TRUE(store->Works(token.info.id).value());
  EXPECT_FALSE(store->Works("nobody").value());
  ASSERT_TRUE(store->Revoke(token.info.id));
  EXPECT_FALSE(store->Works(token.info.id).value());
}

TEST_F(TokenStoreTest, TheStateFolderIsForItsOwnerAlone) {
  const std::string deep = folder_.path() + "/a/b/state";
  ASSERT_TRUE(OpenStateFolder(deep));
  EXPECT_EQ(Mode(deep), 0700u);
  std::ofstream(folder_.path() + "/file") << "x";
  EXPECT_FALSE(OpenStateFolder(folder_.path() + "/file"));
  EXPECT_FALSE(OpenStateFolder(folder_.path() + "/file/below"));
}

}  // namespace
}  // namespace linkcpp
