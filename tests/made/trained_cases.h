/* trained_cases.h - what holds of training on whatever device makes the calls of the CUDA executor:
 * the one that computes on the CPU, or a GPU. */
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

/* A job of several ranks, and the same of one. */
struct trained_case {
  const char *model, *words;
};
extern const struct trained_case trained_cases[];
extern const uint32_t trained_n_cases;

/* Words of a case; caller frees. */
char *trained_words (const struct trained_case *c);

/* All ranks on one device. */
struct weft_exec_options trained_shared (const char *words);

/* A model in one precision, on one rank; NULL: there are no more.  Caller frees. */
char *trained_alone_words (uint32_t number);

/* Its losses, norms and gradients are those of the CPU, within what the order of sums allows.
 * FALSE: there is no kernel. */
gboolean trained_as_on_the_cpu (const struct weft_cuda_calls *calls, uint32_t number);

/* Ranks that share a device do what one rank does.  FALSE: there is no kernel. */
gboolean trained_as_one_rank (const struct weft_cuda_calls *calls, uint32_t number);

/* Jobs whose kernels are those of warpgroups where a device has them, or, at the border of what
 * they take, are not. */
enum trained_by { TRAINED_ATTENTION = 1, TRAINED_PRODUCTS = 2, TRAINED_CODES = 4 };
struct trained_wide {
  const char *words;
  unsigned by; /* of enum trained_by */
};
extern const struct trained_wide trained_wide[];
extern const uint32_t trained_n_wide;

/* As trained_as_on_the_cpu(). */
gboolean trained_wide_as_on_the_cpu (const struct weft_cuda_calls *calls, uint32_t number,
                                     gboolean graph);

/* Bit for bit: a run like the one before; graphs like single calls. */
void trained_twice (const struct weft_cuda_calls *calls);
void trained_in_graphs (const struct weft_cuda_calls *calls);

/* With attention_backend = fused as on the CPU; with deterministic_mode the bits of one run in
 * another, and in a graph.  And why a device has no library for it; NULL: it has one, or computes
 * it itself. */
void trained_fused (const struct weft_cuda_calls *calls);
const char *trained_no_library (const struct weft_cuda_calls *calls);

/* Bytes of the device that are gone when an executor is open: planned, and the rest. */
void trained_memory (const struct weft_cuda_calls *calls, uint64_t *planned, uint64_t *gone);
