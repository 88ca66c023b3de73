/* state.h - the global tensors of a training job: weights, master weights, optimizer state and
 * gradients, independent of how ranks shard them.
 *
 * A tensor is a parameter of the model, "layers.3.qkv.weight", rows x columns, row-major. Its name
 * and shape are the same for every strategy. Ranks have weights whole or in tensor-parallel parts
 * (core/program/cut.h), and the optimizer state of these parts whole or in slices of flat buffers
 * (core/program/segment.h). A tied embedding is one tensor even if two pipeline stages have a copy.
 * A read copies each element from one rank that owns the element; a write copies it to every rank
 * that has a copy. The state must be used only between steps.
 *
 * In a job of several processes, a read returns zeros for elements that ranks of other processes
 * own; weft_processes_merge_floats() merges the blocks. A write skips ranks of other processes. */
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
  /* name of the tensor, for example "layers.3.qkv.weight" or "embedding.weight" */
  char *name;
  const char *param; /* name of the parameter inside its layer, for example "qkv.weight" */
  uint32_t layer;    /* number of the layer; WEFT_NO_LAYER for tensors outside the layers */
  uint64_t rows, columns;
  gboolean decay;
  gboolean frozen; /* no step changes the tensor; its moments and gradients are read as zeros */
  enum weft_dtype dtype; /* data type of the weight in memory, as kernels read it */
  gboolean fp8_recipe; /* the tensor is state of the fp8 recipe (largest magnitudes), not a
                     * parameter: 0 after loading a checkpoint without this tensor; ignored in a
                     * checkpoint if this job does not have it */
};

typedef struct weft_state weft_state;

/* The executor `x` must be open, compute real numbers (WEFT_EXEC_NUMBERS), and outlive the
 * state. */
weft_state *weft_state_new (weft_exec *x);
void weft_state_free (weft_state *state);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_state, weft_state_free)

/* Sets a function that weft_state_init(), loading and importing call from time to time. If `asked`
 * returns TRUE, they stop (loading and importing with an error), and the state is incomplete. */
typedef gboolean (*weft_state_asked) (void *user);
void weft_state_watch (weft_state *state, weft_state_asked asked, void *user);

/* Calls the function set by weft_state_watch(). FALSE with an error if that function asks to
 * stop. */
gboolean weft_state_go_on (const weft_state *state, GError **error);

/* The connection to the other processes of the job; NULL in a job of one process. */
struct weft_rendezvous *weft_state_peers (const weft_state *state);

/* Whether a rank belongs to this process. */
gboolean weft_state_has (const weft_state *state, uint32_t row);

/* The tensors in model order: embeddings, layers, final norm, head. */
uint32_t weft_state_count (const weft_state *state);
const struct weft_state_tensor *weft_state_at (const weft_state *state, uint32_t tensor);

/* Whether all moments are zero, because nothing was written to them and no step has run since their
 * memory was allocated. */
gboolean weft_state_is_clear (const weft_state *state);

/* The training precision: the data type of all weights that are not fp8. */
enum weft_dtype weft_state_dtype (const weft_state *state);

/* Reads elements [first, first + n) of a tensor as floats. 16-bit weights are converted exactly;
 * fp8 weights are read as the values of their codes. */
void weft_state_read (weft_state *state, uint32_t tensor, enum weft_state_kind kind,
                      uint64_t first, uint64_t n, float *out);
/* Address of a tensor in the memory of a rank, as kernels read it; valid while the executor is
 * open. NULL if the rank has no whole copy of the tensor, or has fp8 codes. */
void *weft_state_address (const weft_state *state, uint32_t tensor, uint32_t row);

/* Writes elements [first, first + n) of a tensor. Weights are rounded to their type. Writing the
 * master of a tensor without master weights writes the weight. fp8 weights are computed from their
 * masters: write the masters, then call weft_state_quantise() before the next step. */
void weft_state_write (weft_state *state, uint32_t tensor, enum weft_state_kind kind,
                       uint64_t first, uint64_t n, const float *in);

/* Quantises the fp8 weights whose masters were written. All processes must call this function,
 * because each process has only some of the masters. */
gboolean weft_state_quantise (weft_state *state, GError **error);

/* All-gathers the masters of an fp8 tensor over the processes, so that reads return the whole
 * tensor until another tensor is gathered or weft_state_drop_gathered() is called. All processes
 * must call this function. It does nothing for other tensors. */
gboolean weft_state_gather (weft_state *state, uint32_t tensor, GError **error);

/* Frees the masters that weft_state_gather() has gathered. */
void weft_state_drop_gathered (weft_state *state);

/* The elements that one rank owns, the same for all kinds of state. The runs of all ranks together
 * are the whole tensor, without overlap. A run has `lines` lines of n contiguous elements; each
 * line begins one row of the tensor after the previous line. */
struct weft_state_run {
  uint32_t row;
  uint64_t first, n, lines;
};
const struct weft_state_run *weft_state_runs (const weft_state *state, uint32_t tensor,
                                              uint32_t *n_runs);

/* Sets the initial weights and zero moments, the same for every strategy: each element depends only
 * on (seed, tensor, element). Matrices are normal with standard deviation 0.02, divided by
 * sqrt (2 layers) for projections that add to the residual stream; norms are ones, biases zeros
 * (GPT-2; Megatron-Core init_method_normal and scaled_init_method_normal). Of a LoRA adapter, A is
 * normal with standard deviation sqrt (2 / (inputs + rank)) (Glorot and Bengio 2010, the "xavier"
 * of Megatron-Bridge and NeMo Automodel), and B is zero. In a job of several
 * processes, call weft_state_quantise() afterwards. */
void weft_state_init (weft_state *state, uint64_t seed);
