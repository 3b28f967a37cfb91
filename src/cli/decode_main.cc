// linkcpp-decode: stock libllama on a fixed sequence of tokens. `linkcpp verify decode` runs it once without our
// plug-in and once with it; nothing else differs between the two runs.
//
//   linkcpp-decode tokens MODEL TEXT OUT           OUT: "n_vocab NAME-OR-none" and the text's ids, one a line
//   linkcpp-decode logits MODEL TOKENS OUT BATCH N_STEPS THREADS HOLD NOISE SEED
//
// logits: reads ids, one a line, from TOKENS; decodes all but the last N_STEPS in batches of BATCH and those one by
// one; writes every position's logits to OUT (a file or a pipe) as they come: u32 n_vocab, u32 n_positions, then
// [n_positions, n_vocab] f32, all in the machine's byte order. HOLD: a pipe to open at the end, which waits until the
// other side has opened it too ("-": none): so its counters can be asked for while it is still attached.
// NOISE: a power relative to the row's own that is added to what every expert returns, Gaussian, from SEED; 0: none.
#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>
#include <signal.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <format>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

int Fail(const std::string& text) {
  std::fprintf(stderr, "linkcpp-decode: %s\n", text.c_str());
  return 1;
}

void LoadBackends() {
  // The plug-in's own lines come through too: they say why it would not load.
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  ggml_backend_load_all();
}

llama_model* LoadModel(const char* path, bool vocab_only) {
  // The CPU alone, so that both runs compute the backbone in the same way; our device is of another kind and not
  // listed.
  static ggml_backend_dev_t no_devices[] = {nullptr};
  llama_model_params params = llama_model_default_params();
  params.vocab_only = vocab_only;
  params.devices = no_devices;
  params.n_gpu_layers = 0;
  return llama_model_load_from_file(path, params);
}

// ---------------------------------------------------------------- tokens

int Tokens(const char* model_path, const char* text_path, const char* out_path) {
  std::ifstream file(text_path, std::ios::binary);
  if (!file) return Fail(std::format("cannot read {}", text_path));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  LoadBackends();
  llama_model* model = LoadModel(model_path, true);
  if (model == nullptr) return Fail(std::format("libllama cannot load {}", model_path));
  const llama_vocab* vocab = llama_model_get_vocab(model);
  const bool has_text = llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
  std::vector<llama_token> ids;
  if (has_text && !text.empty()) {
    ids.resize(text.size() + 8);
    const int n = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), ids.data(),
                                 static_cast<int32_t>(ids.size()), true, false);
    if (n < 0) return Fail("libllama cannot tokenise the text");
    ids.resize(static_cast<std::size_t>(n));
  }
  std::ofstream out(out_path);
  out << llama_vocab_n_tokens(vocab) << ' ' << (has_text ? "text" : "none") << '\n';
  for (const llama_token id : ids) out << id << '\n';
  out.close();
  llama_model_free(model);
  return out ? 0 : Fail(std::format("cannot write {}", out_path));
}

// ---------------------------------------------------------------- logits

struct Noise {
  double amplitude = 0;  // relative to the row's root mean square
  std::mt19937_64 rng;
};

// The host's graph has computed `node`: shake what the experts' last matmul gave.
bool Shake(ggml_tensor* node, bool ask, void* user) {
  auto& noise = *static_cast<Noise*>(user);
  const bool down = node->op == GGML_OP_MUL_MAT_ID && std::strstr(node->src[0]->name, "ffn_down_exps") != nullptr;
  if (!down || ask) return down || !ask;
  const auto row_len = static_cast<std::size_t>(node->ne[0]);
  std::vector<float> rows(static_cast<std::size_t>(ggml_nelements(node)));
  ggml_backend_tensor_get(node, rows.data(), 0, ggml_nbytes(node));
  std::normal_distribution<double> normal;
  for (std::size_t begin = 0; begin < rows.size(); begin += row_len) {
    double power = 0;
    for (std::size_t i = begin; i < begin + row_len; ++i) power += static_cast<double>(rows[i]) * rows[i];
    const double size = noise.amplitude * std::sqrt(power / static_cast<double>(row_len));
    for (std::size_t i = begin; i < begin + row_len; ++i) rows[i] += static_cast<float>(size * normal(noise.rng));
  }
  ggml_backend_tensor_set(node, rows.data(), 0, ggml_nbytes(node));
  return true;
}

bool Decode(llama_context* context, std::size_t begin, const std::vector<llama_token>& ids, std::size_t count,
            int32_t n_vocab, std::FILE* out) {
  llama_batch batch = llama_batch_init(static_cast<int32_t>(count), 0, 1);
  batch.n_tokens = static_cast<int32_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    batch.token[i] = ids[begin + i];
    batch.pos[i] = static_cast<llama_pos>(begin + i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  bool good = llama_decode(context, batch) == 0;
  const auto n = static_cast<std::size_t>(n_vocab);
  for (std::size_t i = 0; good && i < count; ++i) {
    const float* logits = llama_get_logits_ith(context, static_cast<int32_t>(i));
    good = logits != nullptr && std::fwrite(logits, sizeof(float), n, out) == n && std::fflush(out) == 0;
  }
  llama_batch_free(batch);
  return good;
}

int Logits(char** argv) {
  const char *model_path = argv[2], *tokens_path = argv[3], *out_path = argv[4], *hold = argv[8];
  const std::size_t n_batch = std::strtoull(argv[5], nullptr, 10), n_steps = std::strtoull(argv[6], nullptr, 10);
  const int n_threads = std::atoi(argv[7]);
  Noise noise{.amplitude = std::sqrt(std::strtod(argv[9], nullptr)),
              .rng = std::mt19937_64(std::strtoull(argv[10], nullptr, 10))};
  std::vector<llama_token> ids;
  std::ifstream file(tokens_path);
  for (llama_token id = 0; file >> id;) ids.push_back(id);
  if (ids.empty() || n_batch == 0 || n_steps > ids.size() || n_threads <= 0) return Fail("bad arguments");
  ::signal(SIGPIPE, SIG_IGN);
  std::FILE* out = std::fopen(out_path, "wb");
  if (out == nullptr) return Fail(std::format("cannot write {}", out_path));

  LoadBackends();
  llama_model* model = LoadModel(model_path, false);
  if (model == nullptr) return Fail(std::format("libllama cannot load {}", model_path));
  if (llama_model_has_encoder(model)) return Fail("an encoder-decoder model: only decoders can be compared");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(ids.size() + 8);
  params.n_batch = params.n_ctx;
  params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = n_threads;
  if (noise.amplitude > 0) {
    params.cb_eval = Shake;
    params.cb_eval_user_data = &noise;
  }
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return Fail(std::format("libllama makes no context for {}", model_path));

  const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (const llama_token id : ids) {
    if (id < 0 || id >= n_vocab) return Fail(std::format("token {} is not one of {}", id, n_vocab));
  }
  const uint32_t lead[2] = {static_cast<uint32_t>(n_vocab), static_cast<uint32_t>(ids.size())};
  bool good = std::fwrite(lead, sizeof lead, 1, out) == 1;
  std::size_t position = 0;
  while (good && position < ids.size()) {
    const std::size_t left = ids.size() - n_steps;
    const std::size_t count = position < left ? std::min(n_batch, left - position) : 1;
    good = Decode(context, position, ids, count, n_vocab, out);
    if (good) position += count;
  }
  good = std::fclose(out) == 0 && good;
  if (good && std::string_view(hold) != "-") {
    if (std::FILE* wait = std::fopen(hold, "rb")) std::fclose(wait);
  }
  llama_free(context);
  llama_model_free(model);
  return good ? 0 : Fail(std::format("decoding failed at position {}", position));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "tokens" && argc == 5) return Tokens(argv[2], argv[3], argv[4]);
  if (what == "logits" && argc == 11) return Logits(argv);
  std::fprintf(stderr, "linkcpp-decode is run by `linkcpp verify decode`; see `linkcpp verify decode --help`\n");
  return 2;
}
