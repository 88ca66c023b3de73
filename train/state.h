/* state.h - the global tensors of a training job: weights, master weights, optimizer state and
 * gradients, independent of how ranks shard them.
 *
 * A tensor is a parameter of the model, "layers.3.qkv.weight", rows x columns, row-major, whatever
 * the strategy. Ranks hold weights whole or in tensor-parallel parts (core/program/cut.h), and
 * optimizer state of these whole or in slices of flat buffers (core/program/segment.h). A tied
 * embedding is one tensor even if two pipeline stages hold a copy. A read takes each element from
 * one rank that owns it; a write sends it to every rank that holds it. Use only between steps.
 *
 * In a job of several processes, a read returns zeros for elements that ranks of other processes
 * own, and a write skips ranks of other processes; weft_processes_merge_floats() merges the
 * blocks. */
#pragma once
#include "core/exec/exec.h"

#define WEFT_STATE_KIND_LIST(X)                                                                    \
  X (WEFT_STATE_WEIGHT, "weight", "as the kernels read it")                                        \
  X (WEFT_STATE_MASTER, "master", "fp32, what the optimizer updates; the weight where it is fp32") \
  X (WEFT_STATE_EXP_AVG, "exp_avg", "first moment")                                                \
  X (WEFT_STATE_EXP_AVG_SQ, "exp_avg_sq", "second moment")                                         \
  X (WEFT_STATE_GRAD, "grad", "reduced gradient of the newest step, before clipping")
enum weft_state_kind { WEFT_STATE_KIND_LIST (WEFT_WORD_ID) WEFT_N_STATE_KIND };
extern const char *const weft_state_kind_words[];

struct weft_state_tensor {
  char *name;        /* "layers.3.qkv.weight", "embedding.weight" */
  const char *param; /* "qkv.weight": the name in the program */
  uint32_t layer;    /* WEFT_NO_LAYER outside the layers */
  uint64_t rows, columns;
  gboolean decay;
  enum weft_dtype dtype; /* type of the weight that kernels read */
  gboolean fp8_recipe; /* state of the fp8 recipe (largest magnitudes), not a parameter: 0 after
                     * loading a checkpoint without it, ignored when this job has none */
};

typedef struct weft_state weft_state;

/* The executor `x` must be open, compute real numbers (WEFT_EXEC_NUMBERS), and outlive the
 * state. */
weft_state *weft_state_new (weft_exec *x);
void weft_state_free (weft_state *state);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_state, weft_state_free)

/* The connection to the other processes of the job, or NULL; whether a row of the executor (a rank)
 * belongs to this process. */
struct weft_rendezvous *weft_state_peers (const weft_state *state);
gboolean weft_state_has (const weft_state *state, uint32_t row);

/* Model order: embeddings, layers, final norm, head. */
uint32_t weft_state_count (const weft_state *state);
const struct weft_state_tensor *weft_state_at (const weft_state *state, uint32_t tensor);

/* The training precision: the type of all weights that are not fp8. */
enum weft_dtype weft_state_dtype (const weft_state *state);

/* Reads elements [first, first + n) of a tensor as floats (bf16 weights convert exactly). */
void weft_state_read (weft_state *state, uint32_t tensor, enum weft_state_kind kind,
                      uint64_t first, uint64_t n, float *out);
/* Address of a tensor in the form kernels read, valid while the executor is open. NULL if the row
 * holds no whole copy of it, or holds fp8 codes. */
void *weft_state_address (const weft_state *state, uint32_t tensor, uint32_t row);

/* Weights are rounded to their type. Writing the master of a tensor without master weights writes
 * its weight. fp8 weights are computed from their masters: write the masters, then call
 * weft_state_quantise() before the next step. */
void weft_state_write (weft_state *state, uint32_t tensor, enum weft_state_kind kind,
                       uint64_t first, uint64_t n, const float *in);

/* Quantises the fp8 weights whose masters were written. All processes must call it, because each
 * holds only some of the masters. */
gboolean weft_state_quantise (weft_state *state, GError **error);

/* For an fp8 tensor: all-gathers the masters over the processes, so that reads return the whole
 * tensor until another tensor is gathered or weft_state_drop_gathered() is called. All processes
 * must call it. Does nothing for other tensors. */
gboolean weft_state_gather (weft_state *state, uint32_t tensor, GError **error);
void weft_state_drop_gathered (weft_state *state);

/* Ownership of elements, the same for all kinds: the runs of all rows together are the whole
 * tensor, without overlap. A run is `lines` times n elements; each line begins one tensor row after
 * the line before it. */
struct weft_state_run {
  uint32_t row;
  uint64_t first, n, lines;
};
const struct weft_state_run *weft_state_runs (const weft_state *state, uint32_t tensor,
                                              uint32_t *n_runs);

/* Initial weights, the same for every strategy: each element depends only on (seed, tensor,
 * element). Normal with standard deviation 0.02, divided by sqrt (2 layers) for projections that
 * add to the residual stream; ones for norms, zeros for biases (GPT-2; Megatron-Core
 * init_method_normal and scaled_init_method_normal). In a job of several processes, call
 * weft_state_quantise() afterwards. */
void weft_state_init (weft_state *state, uint64_t seed);
