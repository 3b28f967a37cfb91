// How big each part of a model is, layer by layer, from the shapes and types of its tensors.
//
// Never from averages and, where a tensor can tell, never from keys: experts may differ from layer to layer, leading
// layers may be dense, embeddings may be tied. Reads a ModelFile's directory only. Knows nothing of machines.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"

namespace linkcpp {

// A cache of its own beside attention's: the keys an indexer looks through, or keys compressed from several tokens
// each.
struct SideCache {
  std::uint64_t k_elements = 0, v_elements = 0;
  std::uint32_t tokens_per_cell = 1;
};

// What a device takes or does not: weights of one ggml type and shape. n_experts 0: a plain matrix.
struct WeightKind {
  std::uint32_t type = 0, n_in = 0, n_out = 0, n_experts = 0, n_used = 0;
  friend auto operator<=>(const WeightKind&, const WeightKind&) = default;
};

struct PlainMatrix {
  std::string name;  // "blk.3.attn_q.weight"
  std::uint64_t bytes = 0;
  WeightKind kind = {};
};

struct LayerSizes {
  std::uint32_t layer = 0;
  std::uint64_t backbone_bytes = 0;   // attention, norms, router, shared expert, a dense layer's FFN
  std::vector<PlainMatrix> matrices;  // those of backbone_bytes that every token is multiplied with
  std::uint64_t amx_bytes = 0;        // by how much its matrices grow when ggml packs them for a processor with AMX
  std::uint64_t expert_bytes = 0;     // routed experts with biases and scales; 0: a dense layer
  std::uint64_t expert_elements = 0;
  std::uint64_t slice_bytes = 0;  // one expert
  std::uint64_t largest_expert_tensor_bytes = 0;
  // "ffn_gate_exps" and so on, with bias and scale: what can be placed by itself.
  struct ExpertPart {
    std::string name;
    std::uint64_t bytes = 0;
    WeightKind kind = {};  // of its weights
  };
  std::vector<ExpertPart> expert_parts;
  std::uint32_t n_experts = 0, n_used = 0, n_ff_exp = 0;
  std::uint32_t n_ff_shared = 0, n_ff_dense = 0;  // of the shared expert, of a dense feed-forward; 0: none
  bool indexer_pools = false;
  double indexer_pair_bytes = 0;  // that an indexer's scores take of the compute buffer for a token and a cell
  // Elements of K and V a cell of the cache holds for this layer. MLA keeps its latent in K and no V.
  std::uint64_t k_elements = 0, v_elements = 0;
  bool sliding = false;  // the cache holds the window only
  std::vector<SideCache> side_caches;
  std::uint64_t recurrent_bytes = 0;  // F32 state of one sequence
  // Steps of its graph that are neither matrix product, attention nor choosing of experts (counted on llama.cpp 0.7).
  std::uint32_t n_steps = 0;
};

struct ModelSizes {
  std::string name, architecture;
  std::uint32_t n_embd = 0, n_vocab = 0, n_head = 0, context_length = 0, sliding_window = 0;
  std::uint32_t n_head_kv = 0, head_length = 0;  // the most of any layer
  bool qk_norms = false;
  std::uint32_t indexer_row = 0;    // elements of an indexer's queries for a token
  bool compute_is_a_guess = false;  // what this architecture computes with is not derived, only a lower bound of it
  std::uint64_t head_gcd = 0;       // divides the lengths of all key and value heads; 0: no attention
  bool flash_attention = true;      // llama.cpp runs this architecture with it
  std::uint64_t n_weights = 0;      // elements of all tensors
  std::uint64_t n_tensors = 0;
  std::uint64_t embedding_bytes = 0;   // token_embd: stays in RAM, rows are looked up there
  std::uint64_t output_bytes = 0;      // the last matrix (a copy of token_embd when tied) and its norm
  PlainMatrix output;                  // that matrix
  std::uint64_t output_amx_bytes = 0;  // by how much the output grows with AMX; all of it where embeddings are tied
  bool tied_embeddings = false;
  std::uint64_t skipped_bytes = 0;  // prediction blocks, which llama.cpp does not load
  std::uint32_t n_skipped_layers = 0;
  std::vector<LayerSizes> layers;  // those that run, all of them, ascending

  std::uint64_t ExpertBytes() const;
  std::uint64_t BackboneBytes() const;  // all else that is loaded, tied embeddings once
  std::uint32_t n_moe_layers() const;
};

// kRefused: a dense model (nothing to plan), or a layer without any tensor; the text says which.
Result<ModelSizes> MeasureModel(const ModelFile& model);

}  // namespace linkcpp
