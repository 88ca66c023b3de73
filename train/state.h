/* state.h - the global tensors of a training job and where ranks keep them.
 *
 * A tensor is a parameter of the model: "layers.3.qkv.weight", rows x columns, row-major, whatever
 * the strategy.  Ranks hold weights whole or a part of them (core/program/cut.h), and optimizer state of what
 * they hold whole or in slices (core/program/segment.h); a tied embedding is one tensor though two stages hold
 * it.  Reading takes each element from one rank that
 * owns it, writing gives it to all that hold it.  Between steps only.
 *
 * Of an executor whose other ranks are in other processes reading gives zeros for what those own, and
 * writing leaves out what they hold (weft_together_floats() puts blocks together). */
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
  const char *param; /* "qkv.weight"; of the program */
  uint32_t layer;    /* WEFT_NO_LAYER outside layers */
  uint64_t rows, columns;
  gboolean decay;
  enum weft_dtype dtype; /* of the weight as kernels read it */
  gboolean passing; /* of how products are taken, not of the model: 0 where another job has left none, and
                       nothing to one that has none */
};

typedef struct weft_state weft_state;

/* Of an open executor with numbers, which must outlive it. */
weft_state *weft_state_new (weft_exec *x);
void weft_state_free (weft_state *state);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_state, weft_state_free)

/* The other processes of its executor, or NULL; and whether a row is of this one. */
struct weft_rendezvous *weft_state_peers (const weft_state *state);
gboolean weft_state_has (const weft_state *state, uint32_t row);

/* Model order: embeddings, layers, final norm, head. */
uint32_t weft_state_count (const weft_state *state);
const struct weft_state_tensor *weft_state_at (const weft_state *state, uint32_t tensor);

/* The precision of training: the type of all weights that are not fp8. */
enum weft_dtype weft_state_dtype (const weft_state *state);

/* Elements [first, first + n) of a tensor as floats (weights in bf16 are exact as floats). */
void weft_state_read (weft_state *state, uint32_t tensor, enum weft_state_kind kind,
                      uint64_t first, uint64_t n, float *out);
/* Where a row keeps a tensor as kernels read it, as long as the executor is open; NULL where it has
 * none, a part or slices only, or codes. */
void *weft_state_live (const weft_state *state, uint32_t tensor, uint32_t row);

/* Weights are rounded to their type; a master that no rank keeps is its weight.  Weights in fp8 follow
 * from their masters: those are written, and settled, before the next step. */
void weft_state_write (weft_state *state, uint32_t tensor, enum weft_state_kind kind,
                       uint64_t first, uint64_t n, const float *in);

/* Rounds weights in fp8 whose masters were written: with the other processes, which have some of them. */
gboolean weft_state_settle (weft_state *state, GError **error);

/* Of a tensor in fp8 of which other processes have masters: it is read as if all were here, until
 * another one is gathered or all are forgotten.  Every process does so; nothing of other tensors. */
gboolean weft_state_gather (weft_state *state, uint32_t tensor, GError **error);
void weft_state_forget (weft_state *state);

/* Who answers for what: runs of elements of a tensor that one row owns, which together are all of it;
 * the same for all kinds.  A run is `lines` times n elements, the first of each a row of the tensor
 * after that of the one before. */
struct weft_state_run {
  uint32_t row;
  uint64_t first, n, lines;
};
const struct weft_state_run *weft_state_runs (const weft_state *state, uint32_t tensor,
                                              uint32_t *n_runs);

/* First weights of a new model, the same for every strategy: each element is drawn from (seed,
 * tensor, element) alone.  Normal with deviation 0.02, divided by sqrt (2 layers) for what adds to
 * the residual stream, ones for norms, zeros for biases (GPT-2; Megatron-Core init_method_normal
 * and scaled_init_method_normal).  In one of several processes it has yet to be settled. */
void weft_state_init (weft_state *state, uint64_t seed);
