// Prints nothing but writes the logits of a fixed token sequence: a prefill in one batch, then single steps.
//
//   host_logits MODEL OUT.bin [N_PROMPT=24] [N_STEPS=8] [N_BATCHES=1]
//
// Uses stock libllama with its default options, as llama-server would; whether experts live on workers is decided by
// GGML_BACKEND_PATH alone, so two runs of this program differ in nothing else. Raw f32 in OUT.bin: [n_positions,
// n_vocab].
#include <llama.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

// The same ids everywhere, all below n_vocab.
int32_t TokenAt(int position, int32_t n_vocab) {
  const uint32_t mixed = (static_cast<uint32_t>(position) + 1u) * 2654435761u;
  return static_cast<int32_t>((mixed >> 8) % static_cast<uint32_t>(n_vocab));
}

bool Decode(llama_context* context, int begin, int count, int32_t n_vocab, std::FILE* out) {
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (int i = 0; i < count; ++i) {
    batch.token[i] = TokenAt(begin + i, n_vocab);
    batch.pos[i] = begin + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  bool good = llama_decode(context, batch) == 0;
  for (int i = 0; good && i < count; ++i) {
    const float* logits = llama_get_logits_ith(context, i);
    good = logits != nullptr &&
           std::fwrite(logits, sizeof(float), static_cast<size_t>(n_vocab), out) == static_cast<size_t>(n_vocab);
  }
  llama_batch_free(batch);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: host_logits MODEL OUT.bin [N_PROMPT] [N_STEPS] [N_BATCHES]\n");
    return 2;
  }
  const int n_prompt = argc > 3 ? std::atoi(argv[3]) : 24;
  const int n_steps = argc > 4 ? std::atoi(argv[4]) : 8;
  const int n_batches = argc > 5 ? std::atoi(argv[5]) : 1;
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  ggml_backend_load_all();
  llama_model_params model_params = llama_model_default_params();
  if (const char* layers = std::getenv("HOST_LOGITS_NGL")) model_params.n_gpu_layers = std::atoi(layers);
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (model == nullptr) {
    std::fprintf(stderr, "host_logits: cannot load %s\n", argv[1]);
    return 1;
  }
  llama_context_params context_params = llama_context_default_params();
  context_params.n_ctx = static_cast<uint32_t>(n_prompt * n_batches + n_steps + 8);
  context_params.n_batch = context_params.n_ctx;
  context_params.n_ubatch = 512;
  context_params.n_threads = context_params.n_threads_batch = 2;
  llama_context* context = llama_init_from_model(model, context_params);
  if (context == nullptr) {
    std::fprintf(stderr, "host_logits: no context for %s\n", argv[1]);
    return 1;
  }
  std::FILE* out = std::fopen(argv[2], "wb");
  if (out == nullptr) {
    std::perror(argv[2]);
    return 1;
  }
  const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  bool good = true;
  int position = 0;
  for (int i = 0; good && i < n_batches; ++i, position += n_prompt)
    good = Decode(context, position, n_prompt, n_vocab, out);
  for (int i = 0; good && i < n_steps; ++i, ++position) good = Decode(context, position, 1, n_vocab, out);
  std::fclose(out);
  llama_free(context);
  llama_model_free(model);
  if (!good) std::fprintf(stderr, "host_logits: decoding failed at position %d\n", position);
  return good ? 0 : 1;
}
