// Rows of real decoding: what the experts of one layer are given while stock libllama decodes a text token by token.
//
//   capture_rows MODEL TEXT LAYER N_TOKENS OUT.f32     raw float32, [n_tokens, n_embd]
//
// For `linkcpp verify expert --rows-from OUT.f32`. Listens to the host's graph: the second operand of the first matmul
// with the layer's expert weights.
#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <format>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

struct Capture {
  std::string up, gate_up;  // names of the weights to listen for
  std::vector<float> rows;
};

bool Listen(ggml_tensor* node, bool ask, void* user) {
  auto& capture = *static_cast<Capture*>(user);
  if (node->op != GGML_OP_MUL_MAT_ID) return !ask;
  const std::string weights = node->src[0]->name;
  if (weights != capture.up && weights != capture.gate_up) return !ask;
  if (!ask) {
    const ggml_tensor* rows = node->src[1];
    const std::size_t begin = capture.rows.size();
    capture.rows.resize(begin + static_cast<std::size_t>(ggml_nelements(rows)));
    ggml_backend_tensor_get(rows, capture.rows.data() + begin, 0, ggml_nbytes(rows));
  }
  return true;
}

int Fail(const std::string& text) {
  std::fprintf(stderr, "capture_rows: %s\n", text.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: capture_rows MODEL TEXT LAYER N_TOKENS OUT.f32\n");
    return 2;
  }
  const int n_tokens = std::atoi(argv[4]);
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Capture capture{
      std::format("blk.{}.ffn_up_exps.weight", argv[3]), std::format("blk.{}.ffn_gate_up_exps.weight", argv[3]), {}};

  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  ggml_backend_load_all();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return Fail(std::format("cannot load {}", argv[1]));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(n_tokens + 8);
  params.n_threads = params.n_threads_batch = 2;
  params.cb_eval = Listen;
  params.cb_eval_user_data = &capture;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return Fail("cannot make a context");

  std::vector<llama_token> tokens(text.size() + 8);
  const int found = llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(text.size()),
                                   tokens.data(), static_cast<int32_t>(tokens.size()), true, false);
  if (found < n_tokens) return Fail(std::format("{} has {} tokens, not {}", argv[2], found, n_tokens));
  capture.rows.clear();  // a context may be warmed up
  for (int i = 0; i < n_tokens; ++i) {
    if (llama_decode(context, llama_batch_get_one(&tokens[static_cast<std::size_t>(i)], 1)) != 0) {
      return Fail(std::format("decoding failed at token {}", i));
    }
  }
  const auto n_embd = static_cast<std::size_t>(llama_model_n_embd(model));
  llama_free(context);
  llama_model_free(model);
  if (capture.rows.size() != n_embd * static_cast<std::size_t>(n_tokens)) {
    return Fail(std::format("layer {} gave {} numbers for {} tokens of {}: not a MoE layer?", argv[3],
                            capture.rows.size(), n_tokens, n_embd));
  }
  std::ofstream out(argv[5], std::ios::binary);
  out.write(reinterpret_cast<const char*>(capture.rows.data()),
            static_cast<std::streamsize>(capture.rows.size() * sizeof(float)));
  if (!out) return Fail(std::format("{}: cannot be written", argv[5]));
  std::printf("%d rows of %zu from layer %s\n", n_tokens, n_embd, argv[3]);
  return 0;
}
