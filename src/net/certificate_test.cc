#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "net/tcp.h"
#include "net/tls.h"

namespace linkcpp {
namespace {

using testing::HasSubstr;

struct CertificateTest : testing::Test {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("linkcpp_certificate_" + std::to_string(getpid()));
  ~CertificateTest() override { std::filesystem::remove_all(folder); }
};

TEST_F(CertificateTest, IsMadeOnceAndKept) {
  const auto first = LoadOrMakeCertificate((folder / "deeper").string(), "host");
  ASSERT_TRUE(first.has_value()) << first.error().text;
  EXPECT_EQ(first->fingerprint.size(), 64u);
  struct stat info{};
  ASSERT_EQ(stat((folder / "deeper" / "tls.pem").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto second = LoadOrMakeCertificate((folder / "deeper").string(), "another name");
  ASSERT_TRUE(second.has_value()) << second.error().text;
  EXPECT_EQ(second->fingerprint, first->fingerprint);
  EXPECT_EQ(second->key_pem, first->key_pem);
  EXPECT_TRUE(TlsServer::Create(*second).has_value());
}

TEST_F(CertificateTest, EachIsItsOwn) {
  EXPECT_NE(MakeCertificate("a")->fingerprint, MakeCertificate("a")->fingerprint);
  EXPECT_TRUE(MakeCertificate("").has_value());
  EXPECT_TRUE(MakeCertificate(std::string(300, 'x') + "\xff\n").has_value());
}

TEST_F(CertificateTest, AKeyThatOthersMayReadIsRefused) {
  ASSERT_TRUE(LoadOrMakeCertificate(folder.string(), "host").has_value());
  chmod((folder / "tls.pem").c_str(), 0644);
  const auto again = LoadOrMakeCertificate(folder.string(), "host");
  ASSERT_FALSE(again.has_value());
  EXPECT_THAT(again.error().text, HasSubstr("chmod 600"));
}

TEST_F(CertificateTest, ADamagedFileIsNamedAndNotReplaced) {
  ASSERT_TRUE(LoadOrMakeCertificate(folder.string(), "host").has_value());
  std::filesystem::resize_file(folder / "tls.pem", std::filesystem::file_size(folder / "tls.pem") - 40);
  const auto again = LoadOrMakeCertificate(folder.string(), "host");
  ASSERT_FALSE(again.has_value());
  EXPECT_THAT(again.error().text, HasSubstr("tls.pem"));
  EXPECT_THAT(again.error().text, HasSubstr("delete it"));
}

TEST_F(CertificateTest, AKeyOfAnotherCertificateIsNoServer) {
  Certificate mixed = *MakeCertificate("a");
  mixed.key_pem = MakeCertificate("b")->key_pem;
  EXPECT_EQ(TlsServer::Create(mixed).error().code, FaultCode::kLocal);
}

TEST(Address, HostPort) {
  const auto parsed = [](std::string_view text) {
    const auto result = ParseHostPort(text);
    return result ? std::format("{}|{}", result->host, result->port) : std::string("fault");
  };
  EXPECT_EQ(parsed("127.0.0.1:80"), "127.0.0.1|80");
  EXPECT_EQ(parsed("[::1]:65535"), "::1|65535");
  EXPECT_EQ(parsed("my-host.local:0"), "my-host.local|0");
  for (const char* text : {"", ":", ":80", "host", "host:", "host:65536", "host:-1", "host:8x", "host: 80", "::1:80",
                           "[::1]", "[::1]80", "[zz]:80", "a b:80", "http://host:80", "host:99999999999999999999"}) {
    EXPECT_EQ(parsed(text), "fault") << text;
  }
}

TEST(Address, Loopback) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1"})
    EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* host :
       {"", "0.0.0.0", "128.0.0.1", "::", "::2", "::ffff:10.0.0.1", "localhost.example.org", "127.0.0.1.example.org"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace linkcpp
