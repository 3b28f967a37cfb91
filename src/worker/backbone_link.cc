#include "worker/backbone_link.h"

#include <algorithm>
#include <utility>

namespace linkcpp {

// One connection. Its handlers run on the transport's thread; the last reference is never dropped there, because the
// owner keeps one until on_close has run.
class BackboneLink::Session final : public ReplyPort, public std::enable_shared_from_this<Session> {
 public:
  Session(std::unique_ptr<Link> link, Dispatcher& dispatcher, LogSink& log)
      : dispatcher_(dispatcher), log_(log), link_(std::move(link)) {}

  void Start() {
    link_->Start({.on_frame = [this](const FrameView& frame) { return OnFrame(frame); },
                  .on_close = [this](const Fault& why) { OnClose(why); }});
  }

  void Send(std::span<const std::byte> header, std::span<const std::byte> payload) override {
    const std::span<const std::byte> pieces[] = {payload};
    const auto sent = link_->Send(header, payload.empty() ? std::span<const std::span<const std::byte>>() : pieces);
    // An answer must not get lost silently: a peer that does not read is cut off and asks someone else.
    if (!sent && sent.error().code != FaultCode::kGone) link_->Close(sent.error().text);
  }
  void Send(const Message& message) { Send(EncodeMessage(message), {}); }
  std::uint64_t max_payload_bytes() const override { return max_payload_bytes_; }

  enum class Phase { kGreeting, kWelcome, kRefused, kClosed };
  // Waits while greeting, at most `timeout`.
  Phase WaitForWelcome(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return phase_ != Phase::kGreeting; });
    return phase_;
  }
  // False: `timeout` passed first.
  bool WaitForClose(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return closed_; });
  }
  void Close(std::string reason) { link_->Close(std::move(reason)); }
  std::string why() {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  std::uint64_t frames_received() const { return link_->stats().frames_received; }

 private:
  Result<void> OnFrame(const FrameView& frame) {
    auto message = DecodeMessage(frame.header, frame.payload.size());
    if (!message) return std::unexpected(std::move(message).error());
    if (auto* fault = std::get_if<FaultMessage>(&*message)) {
      if (fault->id != 0) return {};
      // "Busy" means later, with the same ticket; anything else needs fresh orders.
      const bool greeting = SetPhase(fault->code == FaultCode::kBusy ? Phase::kClosed : Phase::kRefused, fault->text);
      if (!greeting) log_.Warning("backbone {} reports: {}", link_->peer(), fault->text);
      return {};
    }
    if (auto* welcome = std::get_if<WelcomeMessage>(&*message)) {
      if (welcome->max_payload_bytes != 0)
        max_payload_bytes_ = std::min(welcome->max_payload_bytes, LinkLimits().max_payload_bytes);
      SetPhase(Phase::kWelcome, "");
      return {};
    }
    if (phase() != Phase::kWelcome) return Fail(FaultCode::kMalformed, "a frame before the welcome");
    if (auto* dispatch = std::get_if<DispatchMessage>(&*message)) {
      const std::uint64_t id = dispatch->id;
      if (const auto queued = dispatcher_.Submit(std::move(*dispatch), frame.payload, shared_from_this()); !queued) {
        Send(FaultMessage{.id = id, .code = queued.error().code, .text = queued.error().text});
      }
      return {};
    }
    if (const auto* ping = std::get_if<PingMessage>(&*message)) {
      if (!ping->reply) Send(PingMessage{.nonce = ping->nonce, .reply = true});
      return {};
    }
    if (const auto* goodbye = std::get_if<GoodbyeMessage>(&*message)) {
      log_.Info("backbone {} says goodbye: {}", link_->peer(), goodbye->reason);
      return {};
    }
    return Fail(FaultCode::kMalformed, "a message that a backbone does not send");
  }

  void OnClose(const Fault& why) {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kGreeting || phase_ == Phase::kWelcome) {  // otherwise the reason is known already
      phase_ = Phase::kClosed;
      why_ = why.text;
    }
    closed_ = true;
    changed_.notify_all();
  }

  // True: we were still greeting and the phase has changed.
  bool SetPhase(Phase phase, std::string why) {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kGreeting) return false;
    phase_ = phase;
    why_ = std::move(why);
    changed_.notify_all();
    return true;
  }
  Phase phase() {
    const std::lock_guard lock(mutex_);
    return phase_;
  }

  Dispatcher& dispatcher_;
  LogSink& log_;
  std::atomic<std::uint32_t> max_payload_bytes_{LinkLimits().max_payload_bytes};
  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kGreeting;  // guarded by mutex_
  bool closed_ = false;             // guarded by mutex_
  std::string why_;                 // guarded by mutex_
  std::unique_ptr<Link> link_;      // last: its destructor ends the handlers while the rest is still there
};

BackboneLink::BackboneLink(BackboneRef backbone, WorkerIdentity identity, Dial dial, Holdings holdings,
                           Dispatcher& dispatcher, LogSink& log, LinkTiming timing)
    : dial_(std::move(dial)),
      holdings_(std::move(holdings)),
      dispatcher_(dispatcher),
      log_(log),
      timing_(timing),
      id_(backbone.backbone_id),
      backbone_(std::move(backbone)),
      identity_(std::move(identity)),
      thread_([this] { Loop(); }) {}

BackboneLink::~BackboneLink() {
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    session = session_;
  }
  changed_.notify_all();
  if (session) session->Close("the worker leaves");
  session.reset();
  thread_.join();
}

void BackboneLink::Update(const BackboneRef& backbone, const WorkerIdentity& identity) {
  const std::lock_guard lock(mutex_);
  backbone_ = backbone;
  identity_ = identity;
  changed_.notify_all();
}

void BackboneLink::SendHoldings() {
  const std::lock_guard one_at_a_time(holdings_mutex_);
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    if (connected_) session = session_;
  }
  if (session) session->Send(HoldingsMessage{.ready = holdings_()});
}

void BackboneLink::SayGoodbye(const std::string& reason) {
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    if (connected_) session = session_;
  }
  changed_.notify_all();
  if (session) session->Send(GoodbyeMessage{.reason = reason});
}

void BackboneLink::Loop() {
  auto wait = timing_.backoff_first;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      // With a refused ticket there is nothing to do before fresh orders.
      changed_.wait(
          lock, [this] { return stop_ || leaving_ || backbone_.ticket != refused_ticket_ || refused_ticket_.empty(); });
      if (stop_ || leaving_) return;
    }
    const bool welcomed = Connect();
    if (welcomed) wait = timing_.backoff_first;
    {
      std::unique_lock lock(mutex_);
      if (stop_ || leaving_) return;
      const std::string address = backbone_.address;
      changed_.wait_for(lock, wait, [&] { return stop_ || leaving_ || backbone_.address != address; });
    }
    if (!welcomed) wait = std::min(wait * 2, timing_.backoff_most);
  }
}

bool BackboneLink::Connect() {
  BackboneRef backbone;
  WorkerIdentity identity;
  {
    const std::lock_guard lock(mutex_);
    backbone = backbone_;
    identity = identity_;
  }
  const auto failed = [&](const std::string& reason) {
    if (reason != last_reason_) log_.Warning("backbone {} at {}: {}", id_, backbone.address, reason);
    last_reason_ = reason;
    return false;
  };
  auto dialled = dial_(backbone.address, backbone.tls_fingerprint, timing_.dial);
  if (!dialled) return failed(dialled.error().text);
  auto session = std::make_shared<Session>(std::move(*dialled), dispatcher_, log_);
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || leaving_) return false;
    session_ = session;
  }
  session->Start();
  session->Send(HelloMessage{.node_id = identity.node_id,
                             .model_id = identity.model_id,
                             .kernel_class = identity.kernel_class,
                             .ticket = backbone.ticket});
  const auto phase = session->WaitForWelcome(timing_.welcome);
  bool welcomed = false;
  if (phase == Session::Phase::kWelcome) {
    welcomed = true;
    last_reason_.clear();
    connected_ = true;
    SendHoldings();
    log_.Info("connected to backbone {} at {}", id_, backbone.address);
    // A backbone pings when it has nothing else to say; one that is silent for long has vanished without a word.
    for (std::uint64_t heard = 0; !session->WaitForClose(timing_.silence);) {
      const std::uint64_t now = session->frames_received();
      if (now == heard) session->Close(std::format("nothing heard for {} s", timing_.silence.count() / 1000));
      heard = now;
    }
    connected_ = false;
    const std::lock_guard lock(mutex_);
    if (!stop_) log_.Info("backbone {} at {} is gone: {}", id_, backbone.address, session->why());
  } else if (phase == Session::Phase::kRefused) {
    failed(std::format("refused us: {}", session->why()));
    const std::lock_guard lock(mutex_);
    refused_ticket_ = backbone.ticket;
  } else {
    failed(phase == Session::Phase::kClosed ? session->why() : "did not answer our greeting");
  }
  session->Close("done");
  session->WaitForClose(timing_.close);
  const std::lock_guard lock(mutex_);
  session_.reset();
  return welcomed;
}

}  // namespace linkcpp
