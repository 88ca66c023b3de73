/* trained_cases.h - properties of training on any device with the calls of the CUDA executor: the
 * computing double, or a GPU. */
#pragma once
#include "tests/made/trained.h"

#define TRAINED_GPT2 "model=gpt2-nano num_query_groups=4 " TRAINED_SIZES
#define TRAINED_LLAMA "model=llama-nano num_query_groups=2 " TRAINED_SIZES
#define TRAINED_EXPERTS                                                                            \
  "model=mixtral-nano num_query_groups=2 moe_ffn_hidden_size=32 " TRAINED_SIZES
#define TRAINED_SIZES                                                                              \
  "topology=cpu reduction_order=fast num_layers=2 hidden_size=32 num_attention_heads=4 "           \
  "kv_channels=8 ffn_hidden_size=64 vocab_size=96 seq_length=8 max_position_embeddings=8 "         \
  "micro_batch_size=1 global_batch_size=4 "

/* A job on several ranks, and the same job on one. */
struct trained_case {
  const char *model, *words;
};
extern const struct trained_case trained_cases[];
extern const uint32_t trained_n_cases;

/* Text of a case; the caller frees it. */
char *trained_words (const struct trained_case *c);

/* Options of executor cuda: all ranks share one device. */
struct weft_exec_options trained_shared (const char *words);

/* Text of a model in one precision on one rank; NULL at the end of the list. The caller frees
 * it. */
char *trained_alone_words (uint32_t number);

/* Losses, norms and gradients must be those of the CPU within the error of summation order. FALSE:
 * no kernel. */
gboolean trained_as_on_the_cpu (const struct weft_gpu_calls *calls, uint32_t number);

/* Ranks that share a device must give the results of one rank. FALSE: no kernel. */
gboolean trained_as_one_rank (const struct weft_gpu_calls *calls, uint32_t number);

/* Jobs whose kernels use wgmma on devices that support it, or just fail to meet its conditions. */
enum trained_by { TRAINED_ATTENTION = 1, TRAINED_PRODUCTS = 2, TRAINED_CODES = 4 };
struct trained_wide {
  const char *words;
  unsigned by; /* bits of enum trained_by */
};
extern const struct trained_wide trained_wide[];
extern const uint32_t trained_n_wide;

/* As trained_as_on_the_cpu(). */
gboolean trained_wide_as_on_the_cpu (const struct weft_gpu_calls *calls, uint32_t number,
                                     gboolean graph);

/* Bit for bit: a repeated run, and graph replay against single calls. */
void trained_twice (const struct weft_gpu_calls *calls);
void trained_in_graphs (const struct weft_gpu_calls *calls);

/* attention_backend = fused must match the CPU; with deterministic_mode two runs, and a graph, must
 * give the same bits. The second function: why the device has no library; NULL: it has one, or the
 * double computes it. */
void trained_fused (const struct weft_gpu_calls *calls);
const char *trained_no_library (const struct weft_gpu_calls *calls);

/* Device memory used by an open executor: planned bytes, and the rest. */
void trained_memory (const struct weft_gpu_calls *calls, uint64_t *planned, uint64_t *gone);
