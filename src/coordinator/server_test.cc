#include "coordinator/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <thread>

#include "coordinator/test_world.h"
#include "net/http_client.h"

namespace linkcpp {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

struct RawReply {
  int status = 0;
  std::string head;  // status line and headers
  std::string body;
};

bool Complete(const std::string& reply, bool head_only) {
  const std::size_t end = reply.find("\r\n\r\n");
  const std::size_t length = reply.find("Content-Length: ");
  if (end == std::string::npos || head_only) return end != std::string::npos;
  return length < end && reply.size() - end - 4 >= std::stoull(reply.substr(length + 16));
}

// One request as it is written, one answer as it comes: for what a decent client would not send.
RawReply Raw(std::uint16_t port, const std::string& request) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  RawReply reply;
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    std::string_view left = request;
    while (!left.empty()) {
      const ssize_t sent = ::send(socket, left.data(), left.size(), MSG_NOSIGNAL);
      if (sent <= 0) break;  // the server may have said no already
      left.remove_prefix(static_cast<std::size_t>(sent));
    }
    std::string all;
    char bytes[65536];
    while (!Complete(all, request.starts_with("HEAD"))) {
      const ssize_t got = ::recv(socket, bytes, sizeof bytes, 0);
      if (got <= 0) break;
      all.append(bytes, static_cast<std::size_t>(got));
    }
    const std::size_t end = all.find("\r\n\r\n");
    reply.head = all.substr(0, end);
    if (end != std::string::npos) reply.body = all.substr(end + 4);
    if (all.size() > 12) std::from_chars(all.data() + 9, all.data() + 12, reply.status);
  }
  ::close(socket);
  return reply;
}

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    tokens_ = TokenStore::Open(folder_.path() + "/tokens.db").value();
    token_ = tokens_->New("test").value();
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.version = "test";
    auto server = CoordinatorServer::Start(options, Austen(), registry_, *tokens_, log_);
    ASSERT_TRUE(server) << server.error().text;
    server_ = std::move(*server);
  }

  std::unique_ptr<HttpClient> Client(const std::string& token) const {
    return HttpClient::Create({std::format("http://127.0.0.1:{}", server_->port()), token, ""});
  }
  std::unique_ptr<HttpClient> Client() const { return Client(token_.token); }

  HttpReply Call(const std::string& method, const std::string& path, const std::string& body = "") {
    auto reply = Client()->Call(method, path, body, 20s);
    if (!reply) {
      ADD_FAILURE() << method << " " << path << ": " << reply.error().text;
      return {};
    }
    return *reply;
  }
  template <class T>
  T Ask(const std::string& method, const std::string& path, const std::string& body = "") {
    const HttpReply reply = Call(method, path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return FromJson<T>(reply.body).value();
  }

  // "GET /path" with our token and whatever headers.
  RawReply RawCall(const std::string& line, const std::string& headers = "", const std::string& body = "") {
    return Raw(server_->port(),
               std::format("{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n"
                           "{}\r\n{}",
                           line, token_.token, headers, body));
  }

  std::string ShardPath(const std::string& query) const {
    return "/api/proxy/models/" + Austen().name() + "/expert-shard?" + query;
  }
  static std::string ShardBytes(const std::string& layers, const std::string& experts) {
    const auto shard = Austen().PlanShard(layers, experts).value();
    std::string bytes(shard->size_bytes(), '\0');
    EXPECT_TRUE(shard->Read(0, std::as_writable_bytes(std::span(bytes))));
    return bytes;
  }

  TempFolder folder_;
  TestClock clock_;
  NullLog log_;
  std::unique_ptr<TokenStore> tokens_;
  TokenStore::NewToken token_;
  Registry registry_{Austen(), MakeTicketKeys(), QuickPolls(), clock_, log_};
  std::unique_ptr<CoordinatorServer> server_;
};

// ---- a worker's life

TEST_F(ServerTest, AWorkerJoinsIsToldWhatToHoldReportsAndLeaves) {
  const auto joined = Ask<JoinReply>("POST", "/api/nodes", ToJson(Worker("one", kPlenty)));
  EXPECT_EQ(joined.model_id, Austen().model_id());
  const std::string node = "/api/nodes/" + joined.node_id;
  const auto orders = Ask<NodeOrders>("GET", node + "/orders?after=0");
  EXPECT_EQ(Austen().FromHoldings(orders.hold).value().size(), Austen().manifest().n_slices());

  NodeReport report;
  report.state = "ready";
  report.ready = orders.hold;
  EXPECT_EQ(Call("POST", node + "/report", ToJson(report)).status, 200);
  const auto status = Ask<StatusReply>("GET", "/api/status");
  EXPECT_EQ(status.slices_covered, status.n_slices);
  EXPECT_EQ(status.nodes.at(0).state, "ready");
  EXPECT_EQ(status.version, "test");

  EXPECT_EQ(Call("DELETE", node).status, 200);
  EXPECT_EQ(Call("GET", node + "/orders?after=0").status, 404);
  EXPECT_EQ(Ask<StatusReply>("GET", "/api/status").slices_covered, 0u);
}

TEST_F(ServerTest, ALongPollAnswersWhenTheOrdersChange) {
  const auto joined = Ask<JoinReply>("POST", "/api/nodes", ToJson(Worker("one", MemoryFor(2))));
  const std::string orders = "/api/nodes/" + joined.node_id + "/orders?after=";
  const auto first = Ask<NodeOrders>("GET", orders + "0");
  NodeOrders next;
  // Polls of 0.3 s here: repeat as a worker does, until the news.
  std::thread worker([&] {
    do {
      next = Ask<NodeOrders>("GET", orders + std::to_string(first.version));
    } while (next.version == first.version);
  });
  AttachRequest attach = Backbone();
  attach.probes = Ask<AttachReply>("POST", "/api/backbones", ToJson(attach)).wanted_probes;
  for (SlabProbe& probe : attach.probes) {
    probe.hash = Austen().SlabHashOf(probe.layer, probe.expert, probe.tensor).value();
  }
  const auto attached = Ask<AttachReply>("POST", "/api/backbones", ToJson(attach));
  worker.join();
  EXPECT_EQ(next.backbones.at(0).backbone_id, attached.backbone_id);
  EXPECT_FALSE(attached.ticket_key.empty());
  EXPECT_EQ(Call("POST", "/api/backbones/" + attached.backbone_id + "/report", ToJson(BackboneReport{})).status, 200);
  EXPECT_EQ(Call("DELETE", "/api/backbones/" + attached.backbone_id).status, 200);
  EXPECT_EQ(Call("POST", "/api/backbones/" + attached.backbone_id + "/report", ToJson(BackboneReport{})).status, 404);
}

TEST_F(ServerTest, AWorkerThatFallsSilentIsDroppedByTheServersOwnThread) {
  Ask<JoinReply>("POST", "/api/nodes", ToJson(Worker("one", kPlenty)));
  clock_.Advance(31s);
  for (int i = 0; i < 100 && !registry_.Status().nodes.empty(); ++i) std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(registry_.Status().nodes.empty());
}

TEST_F(ServerTest, AnotherModelsBackboneIsRefused) {
  AttachRequest attach = Backbone();
  attach.header_hash = Hash{}.Hex();
  const HttpReply reply = Call("POST", "/api/backbones", ToJson(attach));
  EXPECT_EQ(reply.status, 409);
  EXPECT_THAT(ErrorMessage(reply.body), HasSubstr("the backbone's file differs from the coordinator's"));
}

TEST_F(ServerTest, StoppingEndsALongPollAtOnce) {
  const auto joined = Ask<JoinReply>("POST", "/api/nodes", ToJson(Worker("one", MemoryFor(2))));
  const auto orders = Ask<NodeOrders>("GET", "/api/nodes/" + joined.node_id + "/orders?after=0");
  std::thread worker([&, client = Client()] {
    (void)client->Call("GET", std::format("/api/nodes/{}/orders?after={}", joined.node_id, orders.version), "", 20s);
  });
  std::this_thread::sleep_for(50ms);
  const auto start = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  worker.join();
}

TEST_F(ServerTest, AHundredWorkersThatWaitDoNotKeepOthersWaiting) {
  std::vector<std::thread> workers;
  std::atomic<int> n_waited = 0;
  for (int i = 0; i < 100; ++i) {
    workers.emplace_back([&, client = Client()] {
      const auto joined = client->Call("POST", "/api/nodes", ToJson(Worker("one", MemoryFor(1))), 20s);
      ASSERT_TRUE(joined) << joined.error().text;
      const std::string node = FromJson<JoinReply>(joined->body).value().node_id;
      // Others that join may bring news at first; then a poll waits its time.
      std::uint64_t version = 0;
      for (int poll = 0; poll < 3; ++poll) {
        const auto orders = client->Call("GET", std::format("/api/nodes/{}/orders?after={}", node, version), "", 20s);
        ASSERT_TRUE(orders) << orders.error().text;
        version = FromJson<NodeOrders>(orders->body).value().version;
      }
      ++n_waited;
    });
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Call("GET", "/api/status").status, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(n_waited, 100);
}

// ---- tokens

TEST_F(ServerTest, WithoutATokenThatWorksNothingButHealthAnswers) {
  for (const char* path : {"/", "/metrics", "/api/status", "/api/proxy/models", "/api/nodes/00/orders", "/nowhere"}) {
    const auto wrong = Client("lk_wrong")->Call("GET", path, "", 5s);
    ASSERT_FALSE(wrong) << path;
    EXPECT_EQ(wrong.error().code, FaultCode::kRefused) << path;
    EXPECT_EQ(Raw(server_->port(), std::format("GET {} HTTP/1.1\r\nConnection: close\r\n\r\n", path)).status, 401);
  }
  const RawReply join =
      Raw(server_->port(), "POST /api/nodes HTTP/1.1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(join.status, 401);
  EXPECT_EQ(Raw(server_->port(), "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n").status, 200);
}

TEST_F(ServerTest, ARevokedTokenStopsWorkingAtOnce) {
  EXPECT_EQ(Call("GET", "/api/status").status, 200);
  // As another process does it.
  ASSERT_TRUE(TokenStore::Open(folder_.path() + "/tokens.db").value()->Revoke(token_.info.id));
  EXPECT_EQ(RawCall("GET /api/status").status, 401);
}

TEST_F(ServerTest, WhoCameWithATokenThatIsRevokedElsewhereIsDropped) {
  Ask<JoinReply>("POST", "/api/nodes", ToJson(Worker("one", kPlenty)));
  std::this_thread::sleep_for(1s);
  ASSERT_EQ(registry_.Status().nodes.size(), 1u);
  ASSERT_TRUE(TokenStore::Open(folder_.path() + "/tokens.db").value()->Revoke(token_.info.id));
  for (int i = 0; i < 100 && !registry_.Status().nodes.empty(); ++i) std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(registry_.Status().nodes.empty());
}

TEST_F(ServerTest, ABrowserMayGiveTheTokenAsPasswordToReadOnly) {
  // base64 of "me:<token>"; the token has 67 characters, so the text is 70 bytes
  const std::string text = "me:" + token_.token;
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string base64;
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0);
    for (int k = 3; k >= 0; --k) base64 += kDigits[bits >> (6 * k) & 63];
  }
  for (std::size_t k = 0; k < (3 - text.size() % 3) % 3; ++k) base64[base64.size() - 1 - k] = '=';
  const std::string header = "Authorization: Basic " + base64 + "\r\nConnection: close\r\n";
  const RawReply page = Raw(server_->port(), "GET / HTTP/1.1\r\n" + header + "\r\n");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr(Austen().name()));
  EXPECT_EQ(Raw(server_->port(), "DELETE /api/nodes/00 HTTP/1.1\r\n" + header + "\r\n").status, 401);
}

// ---- models and shards

TEST_F(ServerTest, TheModelIsDescribedWithItsSlabHashes) {
  const auto list = Ask<ModelList>("GET", "/api/proxy/models");
  ASSERT_EQ(list.models.size(), 1u);
  const auto detail = Ask<ModelDetail>("GET", "/api/proxy/models/" + list.models[0].name);
  EXPECT_EQ(detail.summary.model_id, Austen().model_id());
  ASSERT_EQ(detail.layers.size(), Austen().geometry().size());
  for (const LayerDetail& layer : detail.layers) {
    std::uint64_t slice_bytes = 0;
    for (const TensorDetail& tensor : layer.tensors) {
      ASSERT_EQ(tensor.hashes.size(), layer.n_experts);
      const std::string name = tensor.projection + (tensor.kind == "weight" ? "" : "." + tensor.kind);
      EXPECT_EQ(tensor.hashes[1], Austen().SlabHashOf(layer.layer, 1, name).value());
      slice_bytes += tensor.slab_bytes;
    }
    EXPECT_EQ(slice_bytes, layer.slice_bytes);
  }
  EXPECT_EQ(Call("GET", "/api/proxy/models/" + Austen().model_id()).status, 200);
  EXPECT_EQ(Call("GET", "/api/proxy/models/other").status, 404);
}

TEST_F(ServerTest, AShardComesAsItIs) {
  std::string got;
  const auto reply =
      Client()->Download(ShardPath("layers=0:2&experts=0:3,5"), 0, "", [&](const char* data, std::size_t n) {
        got.append(data, n);
        return true;
      });
  ASSERT_TRUE(reply) << reply.error().text;
  EXPECT_EQ(reply->status, 200);
  EXPECT_FALSE(reply->etag.empty());
  EXPECT_TRUE(got == ShardBytes("0:2", "0:3,5"));
}

TEST_F(ServerTest, ABrokenDownloadGoesOnWhereItStopped) {
  const std::string path = ShardPath("layers=all&experts=0:4");
  const std::string whole = ShardBytes("all", "0:4");
  std::string got;
  std::string etag;
  (void)Client()->Download(
      path, 0, "",
      [&](const HttpReply& reply, std::uint64_t) {
        etag = reply.etag;
        return true;
      },
      [&](const char* data, std::size_t n) {
        got.append(data, n);
        return got.size() < whole.size() / 3;
      });
  ASSERT_LT(got.size(), whole.size());
  ASSERT_FALSE(etag.empty());
  const auto rest = Client()->Download(path, got.size(), etag, [&](const char* data, std::size_t n) {
    got.append(data, n);
    return true;
  });
  ASSERT_TRUE(rest) << rest.error().text;
  EXPECT_EQ(rest->status, 206);
  EXPECT_TRUE(got == whole);
}

TEST_F(ServerTest, RangesAreServedAsTheStandardSays) {
  const std::string line = "GET " + ShardPath("layers=0&experts=0");
  const std::string whole = ShardBytes("0", "0");
  const RawReply full = RawCall(line);
  EXPECT_EQ(full.status, 200);
  EXPECT_THAT(full.head, HasSubstr("Accept-Ranges: bytes"));
  EXPECT_THAT(full.head, HasSubstr(std::format("Content-Length: {}", whole.size())));
  EXPECT_TRUE(full.body == whole);
  const std::string etag = full.head.substr(full.head.find("ETag: ") + 6)
                               .substr(0, full.head.substr(full.head.find("ETag: ") + 6).find("\r\n"));

  const RawReply middle = RawCall(line, "Range: bytes=10-19\r\n");
  EXPECT_EQ(middle.status, 206);
  EXPECT_THAT(middle.head, HasSubstr(std::format("Content-Range: bytes 10-19/{}", whole.size())));
  EXPECT_EQ(middle.body, whole.substr(10, 10));

  const RawReply tail = RawCall(line, "Range: bytes=-7\r\n");
  EXPECT_EQ(tail.status, 206);
  EXPECT_EQ(tail.body, whole.substr(whole.size() - 7));

  const RawReply open = RawCall(line, std::format("Range: bytes={}-\r\nIf-Range: {}\r\n", whole.size() - 5, etag));
  EXPECT_EQ(open.status, 206);
  EXPECT_EQ(open.body, whole.substr(whole.size() - 5));

  const RawReply stale = RawCall(line, "Range: bytes=10-19\r\nIf-Range: \"another\"\r\n");
  EXPECT_EQ(stale.status, 200);
  EXPECT_TRUE(stale.body == whole);

  const RawReply stale_past_end =
      RawCall(line, std::format("Range: bytes={}-\r\nIf-Range: \"another\"\r\n", whole.size() + 5));
  EXPECT_EQ(stale_past_end.status, 200);

  const RawReply several = RawCall(line, "Range: bytes=0-1,4-5\r\n");
  EXPECT_EQ(several.status, 200);
  EXPECT_TRUE(several.body == whole);

  EXPECT_EQ(RawCall(line, std::format("Range: bytes={}-\r\n", whole.size())).status, 416);
  EXPECT_EQ(RawCall(line, "Range: bytes=20-10\r\n").status, 416);
}

TEST_F(ServerTest, HeadSaysHowLongAShardIs) {
  const RawReply reply = RawCall("HEAD " + ShardPath("layers=0:2&experts=0:3"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.head, HasSubstr(std::format("Content-Length: {}", ShardBytes("0:2", "0:3").size())));
  EXPECT_THAT(reply.head, HasSubstr("ETag: \""));
  EXPECT_TRUE(reply.body.empty());
}

TEST_F(ServerTest, AShardThatCannotBeIsRefusedWithTheReason) {
  for (const auto& [query, reason] :
       std::initializer_list<std::pair<const char*, const char*>>{{"layers=99&experts=0", "99"},
                                                                  {"layers=0&experts=0:5000", "16 is out of range"},
                                                                  {"layers=x&experts=0", "x"},
                                                                  {"layers=0&experts=3:1", "3:1"},
                                                                  {"layers=-1&experts=0", "-1"}}) {
    const HttpReply reply = Call("GET", ShardPath(query));
    EXPECT_EQ(reply.status, 400) << query;
    EXPECT_THAT(ErrorMessage(reply.body), HasSubstr(reason)) << query;
  }
}

TEST_F(ServerTest, ManyDownloadsAtOnceEachGetTheirBytes) {
  const std::string whole = ShardBytes("all", "all");
  std::vector<std::thread> workers;
  std::atomic<int> n_right = 0;
  for (int i = 0; i < 12; ++i) {
    workers.emplace_back([&, client = Client()] {
      std::string got;
      (void)client->Download(ShardPath("layers=all&experts=all"), 0, "", [&](const char* data, std::size_t n) {
        got.append(data, n);
        return true;
      });
      if (got == whole) ++n_right;
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(n_right, 12);
}

// ---- nonsense

TEST_F(ServerTest, GarbageIsABadRequest) {
  const auto joined = Ask<JoinReply>("POST", "/api/nodes", ToJson(Worker("one", kPlenty)));
  const std::string reports[] = {"", "{", "[]", "null", "{\"ready\": 7}", "{\"ready\": [{\"layer\": -1}]}", "\xff\xfe"};
  for (const std::string& body : reports) {
    EXPECT_EQ(Call("POST", "/api/nodes/" + joined.node_id + "/report", body).status, 400) << body;
  }
  const std::string joins[] = {"",        "{", "[]", "null", "{\"memory_bytes\": \"much\"}", "{\"memory_bytes\": -1}",
                               "\xff\xfe"};
  for (const std::string& body : joins) {
    EXPECT_EQ(Call("POST", "/api/nodes", body).status, 400) << body;
    EXPECT_EQ(Call("POST", "/api/backbones", body).status, 400) << body;
  }
  EXPECT_EQ(Call("GET", "/nowhere").status, 404);
  EXPECT_EQ(Call("POST", "/api/status", "{}").status, 404);
  EXPECT_EQ(RawCall("DELETE /api/nodes/00").status, 404);  // without Content-Length: there is no body to wait for
  EXPECT_EQ(Raw(server_->port(), std::string(100, '\x16') + "\r\n\r\n").status, 400);
  EXPECT_EQ(Call("GET", "/api/status").status, 200);  // still there
}

TEST_F(ServerTest, AHugeBodyIsCutOff) {
  // Not waited for: the announcement is enough.
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(RawCall("POST /api/nodes", "Content-Length: 99999999999\r\n", "{").status, 413);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 4s);
  const std::string large(5u << 20, 'x');
  EXPECT_EQ(RawCall("POST /api/nodes", std::format("Content-Length: {}\r\n", large.size()), large).status, 413);
  EXPECT_EQ(Call("GET", "/api/status").status, 200);
}

TEST_F(ServerTest, APortThatIsTakenIsAFaultThatNamesIt) {
  ServerOptions options;
  options.listen = std::format("127.0.0.1:{}", server_->port());
  const auto second = CoordinatorServer::Start(options, Austen(), registry_, *tokens_, log_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, FaultCode::kLocal);
  EXPECT_THAT(second.error().text, HasSubstr(options.listen));
}

TEST_F(ServerTest, OffLoopbackItIsTlsOrNothing) {
  ServerOptions options;
  options.listen = "0.0.0.0:0";
  EXPECT_FALSE(CoordinatorServer::Start(options, Austen(), registry_, *tokens_, log_));
  options.certificate = LoadOrMakeCertificate(folder_.path(), "linkcpp coordinator").value();
  Registry registry(Austen(), MakeTicketKeys(), QuickPolls(), clock_, log_);
  const auto server = CoordinatorServer::Start(options, Austen(), registry, *tokens_, log_);
  ASSERT_TRUE(server) << server.error().text;
  const std::string url = std::format("https://127.0.0.1:{}", (*server)->port());
  const auto pinned = HttpClient::Create({url, token_.token, options.certificate->fingerprint});
  const auto reply = pinned->Call("GET", "/api/status", "", 10s);
  ASSERT_TRUE(reply) << reply.error().text;
  EXPECT_EQ(reply->status, 200);
  const auto other = HttpClient::Create({url, token_.token, std::string(64, '0')});
  EXPECT_FALSE(other->Call("GET", "/api/status", "", 10s));
}

TEST_F(ServerTest, MetricsCountWhatTheStatusSays) {
  Ask<JoinReply>("POST", "/api/nodes", ToJson(Worker("with \"quotes\"", kPlenty)));
  const std::string text = Call("GET", "/metrics").body;
  EXPECT_THAT(text, HasSubstr(std::format("linkcpp_slices{{model=\"{}\"}} {}\n", Austen().name(),
                                          Austen().manifest().n_slices())));
  EXPECT_THAT(text, HasSubstr("linkcpp_nodes 1\n"));
  EXPECT_THAT(text, HasSubstr("name=\"with \\\"quotes\\\"\""));
}

}  // namespace
}  // namespace linkcpp
