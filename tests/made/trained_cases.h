/* trained_cases.h - checks of training on a device that has the calls of the CUDA executor: the
 * computing double (computing_cuda.h) or a GPU. */
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

/* A job on several ranks, whose results are compared with those of one rank that trains the same
 * model. */
struct trained_case {
  const char *model, *words;
};
extern const struct trained_case trained_cases[];
extern const uint32_t trained_n_cases;

/* Returns the text of a job in trained_cases[]. The caller frees it. */
char *trained_words (const struct trained_case *c);

/* Returns options of executor cuda with which all ranks of the job share one device. */
struct weft_exec_options trained_shared (const char *words);

/* Returns the text of job `number` of a list of jobs on one rank, each with one model in one
 * precision. Returns NULL after the last job. The caller frees the text. */
char *trained_alone_words (uint32_t number);

/* Runs job `number` of trained_alone_words() on the device and on the CPU. Losses, norms and
 * gradients may differ only by the error of another order of additions. Returns FALSE if the device
 * does not support the job. */
gboolean trained_as_on_the_cpu (const struct weft_gpu_calls *calls, uint32_t number);

/* Runs case `number` with all ranks on one device, and asserts that the results are near those of
 * one rank. Returns FALSE if the device does not support the job. */
gboolean trained_as_one_rank (const struct weft_gpu_calls *calls, uint32_t number);

/* What a wgmma kernel computes: attention; grouped GEMM in 16 bits; grouped GEMM in fp8. */
enum trained_by {
  TRAINED_ATTENTION = 1,
  TRAINED_PRODUCTS = 2,
  TRAINED_CODES = 4,
  TRAINED_GATE = 8
};

/* A job that must use wgmma kernels on devices that have wgmma (`by`: which kernels), or a job that
 * misses one condition of these kernels (`by` 0). */
struct trained_wide {
  const char *words;
  unsigned by; /* which wgmma kernels the job must use: bits of enum trained_by */
};
extern const struct trained_wide trained_wide[];
extern const uint32_t trained_n_wide;

/* Like trained_as_on_the_cpu(), for job `number` of trained_wide. `graph`: the device runs the step
 * as a graph. */
gboolean trained_wide_as_on_the_cpu (const struct weft_gpu_calls *calls, uint32_t number,
                                     gboolean graph);

/* Runs jobs on the device twice, and checks that both runs have the same bits. */
void trained_twice (const struct weft_gpu_calls *calls);

/* Checks that a step that is replayed as a graph gives bit for bit the results of a step whose
 * calls are issued one by one. */
void trained_in_graphs (const struct weft_gpu_calls *calls);

/* Checks that attention_backend = fused has results near those of the CPU. With deterministic_mode,
 * two runs and a graph must have the same bits. */
void trained_fused (const struct weft_gpu_calls *calls);

/* Returns the reason why the device has no library for fused attention. Returns NULL if it has one,
 * or if it is a double that computes fused attention itself. */
const char *trained_no_library (const struct weft_gpu_calls *calls);

/* Opens an executor and sets two amounts of device memory in bytes. `planned`: by the memory plan;
 * `gone`: the decrease of free memory, which includes `planned`. */
void trained_memory (const struct weft_gpu_calls *calls, uint64_t *planned, uint64_t *gone);
