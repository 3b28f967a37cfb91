// linkcpp verify decode: options and the printed page; cli/verify_decode.h does the work.
#include <CLI/CLI.hpp>
#include <glaze/glaze.hpp>
#include <memory>
#include <print>

#include "base/write_json.h"
#include "cli/commands.h"
#include "cli/count_text.h"
#include "cli/usage.h"
#include "cli/verify_decode.h"

namespace linkcpp {
namespace {

struct Options : VerifyDecodeOptions {
  bool json = false;
};

std::string Number(std::optional<double> value) {
  return value ? std::format("{:.3g}", *value) : "infinite";
}

void Print(const VerifyDecodeReport& r) {
  std::println("model    {}: {} ({} in batches of {}, {} one by one), {} each; text: {}", r.model,
               CountText(r.tokens, "token"), r.in_batches, r.batch, r.one_by_one, CountText(r.vocabulary, "logit"),
               r.text);
  std::println("host     {}", r.host_kernel_class);
  for (const VerifyDecodeWorker& w : r.workers) {
    std::println("worker   {}: {}, {}{}{}", w.name, CountText(w.pairs, "pair"), w.device,
                 w.same_class ? ", the host's kernel class" : ", " + w.kernel_class,
                 w.faults > 0 ? ", " + CountText(w.faults, "fault") : "");
  }
  std::println("pairs    {} by workers, {} on this machine{}", r.pairs_by_workers, r.pairs_local,
               r.pairs_asked_again > 0 ? std::format("; {} asked again", r.pairs_asked_again) : "");
  if (r.bit_identical) {
    std::println("logits   bit-identical at {}{}", r.tokens == 1 ? "" : "all ", CountText(r.tokens, "position"));
  } else {
    std::println("logits   differ at {} of {}, first at {}; max|Δ| {:.3g}{}", r.positions_differing,
                 CountText(r.tokens, "position"), r.first_differing_position.value_or(0), r.max_abs,
                 r.not_finite > 0 ? std::format("; {} NOT FINITE", r.not_finite) : "");
  }
  std::println("NMSE     {:.3g}{}", r.nmse, r.bound ? std::format(" (bound {:.3g})", r.bound->nmse) : "");
  std::println("KL       mean {}{}, max {}", Number(r.kl_mean),
               r.bound ? std::format(" (bound {:.3g})", r.bound->kl_mean) : "", Number(r.kl_max));
  std::println("top-1    the same at {} of {} ({:.2f} %)", r.top1_agree, CountText(r.tokens, "position"),
               100 * r.top1_agreement);
  std::println("time     {:.1f} s alone, {:.1f} s with workers", r.seconds_alone, r.seconds_with_workers);
  std::println("verdict  {}: {}", r.Good() ? r.verdict : "NOT VERIFIED (" + r.verdict + ")", r.why);
}

}  // namespace

void AddVerifyDecode(CLI::App& verify, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = verify.add_subcommand(
      "decode", "the same tokens through libllama alone and with its experts on workers: the same logits?");
  command->footer(
      "Runs stock libllama twice on the same tokens, without and with the plug-in, and compares every logit as it "
      "comes.\n"
      "Workers of this machine's kernel class must give the same bits. Others must stay inside a bound: what libllama\n"
      "alone does when its experts are shaken by as much as right kernels may differ (docs/verify.md).\n"
      "Exit status 0: bit-identical, or inside the bound; 1: not, or workers computed nothing, or it failed; 2: an\n"
      "option or the model can not be used.\n"
      "Example: linkcpp verify decode -m assets/austen-moe-q4km.gguf\n"
      "         LINKCPP_TOKEN=… linkcpp verify decode -m MODEL.gguf --swarm http://127.0.0.1:8090");
  command->add_option("-m,--model", options->model, "model file (GGUF; the first split of several)")->required();
  auto* workers = command->add_option("--workers", options->n_workers, "start this many workers here, on loopback")
                      ->check(CLI::Range(1, 64))
                      ->capture_default_str();
  auto* swarm = command->add_option("--swarm", options->swarm, "use this running swarm: the coordinator's URL");
  swarm->excludes(workers);
  command->add_option("--token-file", options->token_file, "a file with the swarm's token (default: LINKCPP_TOKEN)")
      ->needs(swarm);
  command
      ->add_option("--data-listen", options->data_listen,
                   "where the swarm's workers dial this machine (default: loopback, or all interfaces)")
      ->needs(swarm)
      ->check(IsHostPort(true));
  command->add_option("--worker-device", options->worker_device, "device of workers started here: cpu, auto, Vulkan0 …")
      ->excludes(swarm)
      ->capture_default_str();
  command
      ->add_option("--local", options->local,
                   "may this machine compute what no worker holds? (default: allow with --swarm, else deny)")
      ->check(CLI::IsMember({"allow", "deny"}));
  command->add_option("--wait", options->wait_s, "until workers hold every slice: seconds without one more")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  command->add_option("--tokens", options->n_tokens, "how many tokens to compare (default: 128, or all of your text)")
      ->check(CLI::Range(1u, 1u << 20));
  command->add_option("--batch", options->n_batch, "tokens in a batch; the last quarter goes one by one")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  auto* file =
      command->add_option("--prompt-file", options->prompt_file, "a text to decode instead of the built-in one");
  command->add_option("--text", options->text, "the same on the command line")->excludes(file);
  command->add_option("--threads", options->n_threads, "threads of libllama; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print a JSON object");
  command->callback([options, &context] {
    const auto log = MakeStderrLog("verify", LogLevel::kWarning);
    if (const auto fine = CheckVerifyDecode(*options); !fine) {
      return ReportUsage(context, fine.error(), options->json);
    }
    const auto report = VerifyDecode(*options, *log);
    if (!report) return ReportFault(context, report.error(), options->json);
    if (options->json) {
      std::println("{}", WriteJson(*report));
    } else {
      Print(*report);
    }
    if (!report->Good()) context.status = 1;
  });
}

}  // namespace linkcpp
