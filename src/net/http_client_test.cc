#include "net/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

#include <future>
#include <thread>

#include "net/tcp.h"
#include "wire/control.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

const std::string kBytes = [] {
  std::string bytes(3'000'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 24);
  return bytes;
}();

// A coordinator of few words.
class Server {
 public:
  explicit Server(const Certificate* certificate = nullptr) {
    if (certificate != nullptr) {
      const httplib::SSLServer::PemMemory pem{certificate->certificate_pem.data(),
                                              certificate->certificate_pem.size(),
                                              certificate->key_pem.data(),
                                              certificate->key_pem.size(),
                                              nullptr,
                                              0,
                                              nullptr};
      server_ = std::make_unique<httplib::SSLServer>(pem);
    } else {
      server_ = std::make_unique<httplib::Server>();
    }
    server_->set_pre_routing_handler([this](const httplib::Request& request, httplib::Response&) {
      ++n_requests;
      last_authorization = request.get_header_value("Authorization");
      last_range = request.get_header_value("Range");
      last_if_range = request.get_header_value("If-Range");
      return httplib::Server::HandlerResponse::Unhandled;
    });
    server_->Post("/echo", [](const httplib::Request& request, httplib::Response& response) {
      response.set_content(request.body + request.get_param_value("tail"), "application/json");
    });
    server_->Get("/denied", [](const httplib::Request&, httplib::Response& response) {
      response.status = 401;
      response.set_content(ErrorJson(FaultCode::kRefused, "no such token"), "application/json");
    });
    server_->Get("/slow", [this](const httplib::Request&, httplib::Response& response) {
      for (int i = 0; i < 500 && !stopping_; ++i) std::this_thread::sleep_for(10ms);
      response.set_content("late", "text/plain");
    });
    server_->Get("/bytes", [](const httplib::Request&, httplib::Response& response) {
      response.set_header("ETag", "\"v1\"");
      response.set_content(kBytes, "application/octet-stream");  // httplib answers ranges by itself
    });
    server_->Get("/cut", [](const httplib::Request&, httplib::Response& response) {
      response.set_content_provider(1'000'000, "application/octet-stream",
                                    [](std::size_t offset, std::size_t, httplib::DataSink& sink) {
                                      if (offset >= 500'000) return false;
                                      return sink.write(kBytes.data(), 100'000);
                                    });
    });
    port_ = server_->bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    server_->wait_until_ready();
  }
  ~Server() {
    stopping_ = true;
    server_->stop();
    thread_.join();
  }
  HttpEndpoint endpoint(const std::string& fingerprint = "") const {
    const std::string url = fingerprint.empty() ? std::format("http://127.0.0.1:{}", port_)
                                                : std::format("https://127.0.0.1:{}#sha256={}", port_, fingerprint);
    return *ParseEndpoint(url, "sesame");
  }

  std::atomic<int> n_requests = 0;
  std::string last_authorization, last_range, last_if_range;

 private:
  std::unique_ptr<httplib::Server> server_;
  std::atomic<bool> stopping_ = false;
  int port_ = 0;
  std::thread thread_;
};

TEST(HttpClient, CallsWithItsToken) {
  Server server;
  const auto client = HttpClient::Create(server.endpoint());
  const auto reply = client->Call("POST", "/echo?tail=%20end", R"({"x":1})", 5s);
  ASSERT_TRUE(reply.has_value()) << reply.error().text;
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body, R"({"x":1} end)");
  EXPECT_EQ(server.last_authorization, "Bearer sesame");
  EXPECT_EQ(client->Call("GET", "/nothing-here", "", 5s)->status, 404);
}

TEST(HttpClient, ARefusedTokenSaysWhy) {
  Server server;
  const auto reply = HttpClient::Create(server.endpoint())->Call("GET", "/denied", "", 5s);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, FaultCode::kRefused);
  EXPECT_THAT(reply.error().text, HasSubstr("no such token"));
  EXPECT_THAT(reply.error().text, testing::Not(HasSubstr("sesame")));
}

TEST(HttpClient, NoAnswerInTimeIsGone) {
  Server server;
  const auto client = HttpClient::Create(server.endpoint());
  const auto start = std::chrono::steady_clock::now();
  const auto reply = client->Call("GET", "/slow", "", 200ms);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, FaultCode::kGone);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s);
}

TEST(HttpClient, StopEndsACallFromAnotherThread) {
  Server server;
  const auto client = HttpClient::Create(server.endpoint());
  auto call = std::async([&] { return client->Call("GET", "/slow", "", 60s); });
  while (server.n_requests == 0) std::this_thread::sleep_for(1ms);
  const auto start = std::chrono::steady_clock::now();
  client->Stop();
  const auto reply = call.get();
  EXPECT_EQ(reply.error().code, FaultCode::kGone);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  EXPECT_EQ(client->Call("GET", "/bytes", "", 5s).error().code, FaultCode::kGone) << "stays stopped";
}

TEST(HttpClient, NobodyListening) {
  HttpEndpoint endpoint;
  {
    Server server;
    endpoint = server.endpoint();
  }
  const auto reply = HttpClient::Create(endpoint)->Call("GET", "/", "", 2s);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, FaultCode::kGone);
}

TEST(HttpClient, DownloadsWholeAndFromTheMiddle) {
  Server server;
  const auto client = HttpClient::Create(server.endpoint());
  std::string got;
  std::uint64_t announced = 0;
  const auto keep = [&](const char* data, std::size_t size) {
    got.append(data, size);
    return true;
  };
  const auto whole = client->Download(
      "/bytes", 0, "", [&](const HttpReply&, std::uint64_t length) { return announced = length, true; }, keep);
  ASSERT_TRUE(whole.has_value()) << whole.error().text;
  EXPECT_EQ(whole->status, 200);
  EXPECT_EQ(whole->etag, "\"v1\"");
  EXPECT_EQ(announced, kBytes.size());
  EXPECT_TRUE(got == kBytes);

  got.clear();
  const auto rest = client->Download("/bytes", 1'000'000, "\"v1\"", keep);
  ASSERT_TRUE(rest.has_value()) << rest.error().text;
  EXPECT_EQ(rest->status, 206);
  EXPECT_EQ(server.last_range, "bytes=1000000-");
  EXPECT_EQ(server.last_if_range, "\"v1\"");
  EXPECT_TRUE(got == kBytes.substr(1'000'000));
}

TEST(HttpClient, TheReceiverMayStopADownload) {
  Server server;
  const auto client = HttpClient::Create(server.endpoint());
  std::size_t n = 0;
  const auto reply =
      client->Download("/bytes", 0, "", [&](const char*, std::size_t size) { return (n += size) < 100'000; });
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, FaultCode::kGone);
  EXPECT_LT(n, kBytes.size());
  EXPECT_EQ(client->Call("GET", "/bytes", "", 5s)->body.size(), kBytes.size()) << "the client can be used again";
}

TEST(HttpClient, AnErrorsTextIsNotTakenForBytes) {
  Server server;
  const auto client = HttpClient::Create(server.endpoint());
  const auto none = [](const char*, std::size_t) {
    ADD_FAILURE() << "bytes of an error page";
    return true;
  };
  EXPECT_EQ(client->Download("/missing", 0, "", none)->status, 404);
  EXPECT_EQ(client->Download("/denied", 0, "", none).error().code, FaultCode::kRefused);
}

TEST(HttpClient, ADownloadThatBreaksOffIsGone) {
  Server server;
  const auto client = HttpClient::Create(server.endpoint());
  std::size_t n = 0;
  const auto reply = client->Download("/cut", 0, "", [&](const char*, std::size_t size) { return n += size, true; });
  ASSERT_FALSE(reply.has_value()) << reply->status << " after " << n;
  EXPECT_EQ(reply.error().code, FaultCode::kGone);
}

TEST(HttpClient, PathsAndTokensThatWouldBreakTheRequestAreRefusedHere) {
  Server server;
  const auto client = HttpClient::Create(server.endpoint());
  EXPECT_EQ(client->Call("GET", "/a b", "", 1s).error().code, FaultCode::kLocal);
  EXPECT_EQ(client->Call("GET", "/a\r\nX: y", "", 1s).error().code, FaultCode::kLocal);
  EXPECT_EQ(client->Call("GET", "bytes", "", 1s).error().code, FaultCode::kLocal);
  EXPECT_EQ(ParseEndpoint("http://127.0.0.1:1", "a\nb").error().code, FaultCode::kLocal);
  EXPECT_EQ(server.n_requests, 0);
}

TEST(HttpClient, ThePinnedCertificateIsAccepted) {
  const Certificate certificate = *MakeCertificate("coordinator");
  Server server(&certificate);
  const auto client = HttpClient::Create(server.endpoint(certificate.fingerprint));
  const auto reply = client->Call("POST", "/echo", "{}", 5s);
  ASSERT_TRUE(reply.has_value()) << reply.error().text;
  EXPECT_EQ(reply->body, "{}");
  EXPECT_EQ(server.last_authorization, "Bearer sesame");
}

TEST(HttpClient, AnotherCertificateGetsNoRequestAndNoToken) {
  const Certificate certificate = *MakeCertificate("coordinator");
  const Certificate other = *MakeCertificate("other");
  Server server(&certificate);
  const auto client = HttpClient::Create(server.endpoint(other.fingerprint));
  const auto reply = client->Call("POST", "/echo", "{}", 5s);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, FaultCode::kRefused);
  EXPECT_THAT(reply.error().text, HasSubstr(certificate.fingerprint));
  EXPECT_EQ(server.n_requests, 0);

  HttpEndpoint unpinned = server.endpoint(certificate.fingerprint);
  unpinned.fingerprint = "";
  EXPECT_EQ(HttpClient::Create(unpinned)->Call("GET", "/bytes", "", 5s).error().code, FaultCode::kRefused);
  EXPECT_EQ(server.n_requests, 0);
}

TEST(HttpClient, PlainHttpToATlsPortIsToldOfTheJoinLine) {
  const Certificate certificate = *MakeCertificate("coordinator");
  Server server(&certificate);
  HttpEndpoint plain = server.endpoint(certificate.fingerprint);
  plain.url.replace(0, 5, "http");
  plain.fingerprint = "";
  const auto reply = HttpClient::Create(plain)->Call("GET", "/bytes", "", 5s);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, FaultCode::kGone);
  EXPECT_THAT(reply.error().text, HasSubstr("join line"));
  EXPECT_EQ(server.n_requests, 0);
}

TEST(Endpoint, JoinLines) {
  const std::string pin(64, 'A');
  const auto secure = ParseEndpoint("https://host:8090#sha256=" + pin, "t");
  ASSERT_TRUE(secure.has_value()) << secure.error().text;
  EXPECT_EQ(secure->url, "https://host:8090");
  EXPECT_EQ(secure->fingerprint, std::string(64, 'a'));
  EXPECT_EQ(ParseEndpoint("http://host/", "")->url, "http://host:80");
  EXPECT_EQ(ParseEndpoint("https://[::1]", "")->url, "https://[::1]:443");
  for (const std::string& url :
       {std::string(""), std::string("host:80"), std::string("ftp://host"), std::string("http://"),
        "http://host#sha256=" + pin, "https://host#sha256=" + pin.substr(1), "https://host#md5=" + pin,
        std::string("http://host/path"), std::string("http://host:0"), std::string("http://host:99999"),
        "https://host#sha256=" + std::string(64, 'g')}) {
    EXPECT_EQ(ParseEndpoint(url, "").has_value(), false) << url;
  }
}

}  // namespace
}  // namespace linkcpp
