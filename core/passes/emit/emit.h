/* emit.h - the state of a step that all passes (subfolders of core/passes) read, and the functions
 * that append ops.
 *
 * struct weft_step describes the pipeline stage whose program is built, and the layer, microbatch
 * and phase of the next op. Each subfolder of core/passes (wing) has a private struct for its
 * state. A private header of the subfolder defines the struct, a function ending in _begin()
 * creates the state, and a function ending in _end() frees it. Other subfolders have only a pointer
 * to the state.
 *
 * core/README.md lists the subfolders from low to high: a file calls and includes only its own
 * subfolder and lower ones. */
#pragma once
#include "core/job/job.h"
#include "core/job/stages.h"
#include "core/program/mesh.h"
#include "core/job/pipeline.h"
#include "core/program/program.h"

/* Widths of activations and weights on this tensor parallel rank, in columns. */
struct weft_widths {
  uint64_t h; /* hidden size */
  /* heads: query heads; groups: groups of query heads that share keys and values */
  uint64_t heads, groups;
  /* in canonical order: number of ranks that share one key-value group; otherwise 1 */
  uint64_t together;
  /* q: columns of the attention output; qkv: columns of the attention input */
  uint64_t q, qkv;
  /* columns that the qkv linear layer computes on this rank; less than qkv if several ranks share a
   * key-value group */
  uint64_t made;
  /* columns of the attention output that this rank's output projection (proj) reads */
  uint64_t own;
  /* f: width inside the MLP; up: columns of fc1's output, 2 f with a gate */
  uint64_t f, up;
  /* shared: width inside the shared experts; vocab: columns of the logits */
  uint64_t shared, vocab;
};

/* For canonical order, in which a sum over a sharded dimension is added as a binary tree
 * (kernels/leaves.h). For each kind of linear layer: how many leaves of the tree (partial sums)
 * this rank computes. 0: the rank computes one plain sum. */
struct weft_leaf_counts {
  uint32_t attention, mlp, shared, expert, vocab;
};

/* A model chunk (the layers of one virtual pipeline stage) on this rank. */
struct weft_chunk {
  /* stage: pipeline stage; copy: which of DualPipe's two copies of the model */
  uint32_t stage, copy;
  uint32_t first_layer, n_layers;
  /* number of multi-token prediction layers in the chunk; they are numbered after the model's last
   * layer */
  uint32_t n_mtp;
  /* index of the chunk's first layer among all layers that this pipeline stage holds */
  uint32_t slot;
  gboolean embedding, head;
  /* first_micro, n_micro: the microbatches whose passes run through this model chunk */
  uint32_t first_micro, n_micro;
  /* number of backward passes of the model chunk begun so far in this step */
  uint32_t n_backward;
};

/* Buffers of the scalars of a step. Each scalar is one float, or in canonical order an exact
 * fixed-point sum (core/base/exact.h). WEFT_NO_BUF: the job does not use the scalar. */
struct weft_scalars {
  /* running sums; mtp_loss has one sum for each layer of multi-token prediction */
  uint32_t loss, mtp_loss;
  uint32_t count; /* number of tokens in the batch, for calculate_per_token_loss */
  /* sum of squared gradients for the norm; factor by which gradients are multiplied when clipped */
  uint32_t squares, factor;
  uint32_t found; /* for a loss scale: flag that is set if any gradient is not finite */
};

struct weft_step {
  /* The job. */
  const struct weft_job *job;
  const union weft_model *model;
  const union weft_strategy *strategy;
  const struct weft_mesh *mesh;

  /* The program being built, and the fields that each appended op copies from `at`: layer,
   * microbatch, chunk, phase, flags. */
  weft_builder *b;
  struct weft_op at;

  /* This pipeline stage (role): its passes in the pipeline schedule, and its model chunks. */
  uint32_t role, n_micro;
  weft_grid *grid;
  struct weft_chunk *chunk;
  uint32_t n_chunks, n_layers;

  /* Sizes of one microbatch on this rank. */
  uint64_t tokens; /* tokens of a microbatch on this context parallel rank */
  /* rows of the residual stream on this rank: tokens, or tokens / tp with sequence_parallel */
  uint64_t rows;
  struct weft_widths width;
  struct weft_leaf_counts leaves;

  /* Types. */
  /* dtype of the residual stream, and of the weights that kernels read */
  enum weft_dtype dtype;
  /* dtype of matrix product operands, and of activations between two matrix products */
  enum weft_dtype product_dtype;
  /* dtype of the inputs of linear layers: product_dtype, or fp8 */
  enum weft_dtype linear_dtype;
  enum weft_dtype output_dtype; /* dtype of the activations between layers */
  enum weft_dtype grad_dtype;   /* dtype of the gradient sums over microbatches */
  /* dtypes of the flat buffers of weights (weight_dtype) and of gradients (main_dtype) */
  enum weft_dtype weight_dtype, main_dtype;

  /* How the data parallel strategy lays tensors out in flat buffers, and which tensors are
   * sharded. */
  const struct weft_shard_rule *sharding; /* params.h */
  /* TRUE: each data parallel replica stores only a slice of the optimizer state */
  gboolean shard_optimizer;
  /* TRUE with offload_policy (FSDP2): weights, gradients and optimizer state are in host memory */
  gboolean on_host;

  /* TRUE: canonical order: sums over sequences are added along the binary tree of core/base/fold.h,
   * so that all strategies give equal bits */
  gboolean canonical;
  /* TRUE: gradients are multiplied by the loss scale until the optimizer divides by it */
  gboolean scales_loss;
  /* TRUE: the backward being appended is the last backward of its model chunk in this step */
  gboolean last_micro;
  /* pass (forward, backward, input gradient or weight gradient) whose ops are being appended */
  enum weft_phase cell;
  /* layer whose backward is being appended, or whose activations are being recomputed for
   * backward */
  uint32_t backward_layer;
  struct weft_scalars scalars;

  /* The private state of each subfolder (wing) of core/passes. Only the files of a subfolder
   * include the definition of its struct. */
  struct weft_stream *stream;            /* emit/ */
  struct weft_params *params;            /* params/ */
  struct weft_shard *shard;              /* shard/ */
  struct weft_pipeline *pipeline;        /* pipeline/ */
  struct weft_replicas *replicas;        /* replicas/ */
  struct weft_layer *layer;              /* layer/ */
  struct weft_optimizer_part *optimizer; /* optimizer/ */
};

/* A callback that appends kernels, for example the delayed weight gradients that run during
 * pipeline sends and receives. */
typedef void weft_kernels (struct weft_step *s);

void weft_emit_begin (struct weft_step *s);
void weft_emit_end (struct weft_step *s);

/* ------------------------------------------------------------------------ ops */

#define WEFT_R(b) { .buf = (b), .read = 1 }
#define WEFT_W(b) { .buf = (b), .write = 1 }
#define WEFT_RW(b) { .buf = (b), .read = 1, .write = 1 }
#define WEFT_USES(...)                                                                             \
  (const struct weft_use[]) { __VA_ARGS__ },                                                       \
      sizeof ((const struct weft_use[]) { __VA_ARGS__ }) / sizeof (struct weft_use)
#define WEFT_SHAPE(type, ...)                                                                      \
  ((struct weft_shape) { .dim = { __VA_ARGS__ }, .dtype = (type), .out_dtype = (type) })

/* Appends a kernel on lane gpu with the layer, microbatch and phase of s->at. Returns the op's
 * number. */
uint32_t weft_emit (struct weft_step *s, enum weft_op_kind kind, const char *name,
                    struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* Appends a collective, transfer or copy on lane `lane`. Returns the op's number. The op waits for
 * earlier ops with conflicting uses of its buffers, and for the dependencies that the caller
 * adds. */
uint32_t weft_emit_on (struct weft_step *s, enum weft_lane lane, struct weft_op row,
                       struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* Appends an in-place all-reduce of `buf`. The all-reduce waits only for ops with conflicting uses
 * of `buf`. Returns the op. If the group has one rank, appends nothing and returns WEFT_NO_OP. */
uint32_t weft_reduce_all (struct weft_step *s, enum weft_group_kind group, enum weft_reduce reduce,
                          uint32_t buf, const char *name);

/* Marks all ops that are appended from now on as recompute. Returns the previous s->at, which the
 * caller writes back to s->at afterwards. */
struct weft_op weft_step_again (struct weft_step *s);

/* --------------------------------------------------------------- dependencies */

/* Makes the next kernel that is appended wait for `op`. Does nothing if `op` is WEFT_NO_OP. */
void weft_next_kernel_waits_for (struct weft_step *s, uint32_t op);

/* Makes the host wait for `op` before the host enqueues further ops. */
void weft_host_waits_for (struct weft_step *s, uint32_t op);

/* Make the op appended last wait for other ops.
 *
 *   wait_for_host          for the newest op for which the host has waited
 *   wait_for_exchange      for the newest pipeline transfers (weft_set_exchange())
 *   wait_for_stream        for op `kernel`, for the newest pipeline transfers, and for the newest
 *                          op for which the host has waited
 *   wait_like_next_kernel  for all ops for which the next kernel will wait */
void weft_wait_for_host (struct weft_step *s);
void weft_wait_for_exchange (struct weft_step *s);
void weft_step_wait_for_stream (struct weft_step *s, uint32_t kernel);
void weft_wait_like_next_kernel (struct weft_step *s);

/* Sets the newest pipeline transfer on one of two communication streams. The next kernel waits for
 * this transfer. */
enum { WEFT_N_EXCHANGE = 2 };
void weft_set_exchange (struct weft_step *s, uint32_t stream, uint32_t op);

/* Appends kernels that do not wait for the transfers of weft_set_exchange(). The kernel that is
 * appended after them waits for the transfers. */
void weft_run_beside_exchange (struct weft_step *s, weft_kernels *kernels);

/* Copies one or two scalars from device buffers to the host. The host enqueues no further op until
 * the copies have ended. */
void weft_step_host_reads (struct weft_step *s, const char *name, uint32_t buf);
void weft_step_host_reads_both (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* -------------------------------------------------------------------- buffers */

/* Creates a buffer of `elements` elements, which occupies memory from its first to its last use.
 * Returns the buffer's number. */
uint32_t weft_step_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                           uint64_t elements, const char *name);

/* Creates a buffer that keeps its content from step to step. Returns the buffer's number. */
uint32_t weft_step_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                              uint64_t elements, const char *name);

/* Number of elements of a buffer, counted in the buffer's dtype. */
uint64_t weft_step_elements (const struct weft_step *s, uint32_t buf);

/* Creates a buffer with `columns` columns and one row for each row of the residual stream on this
 * rank, in the dtype of the residual stream. Returns the buffer's number. */
uint32_t weft_activation (struct weft_step *s, uint64_t columns, const char *name);

/* Creates a buffer of tokens x `columns`, in the dtype of matrix products. Returns the buffer's
 * number. */
uint32_t weft_product (struct weft_step *s, uint64_t columns, const char *name);

/* ----------------------------------------------------------- host memory: host.c */

/* Like weft_step_buffer() and weft_step_permanent(), but create the buffer in host memory. Return
 * the buffer's number. */
uint32_t weft_host_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                           uint64_t elements, const char *name);
uint32_t weft_host_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                              uint64_t elements, const char *name);

/* A copy between elements [first, first + n) of a device buffer and elements [0, n) of a host
 * buffer. */
struct weft_host_copy {
  const char *name;
  uint32_t device, host; /* numbers of the two buffers, whose dtypes are equal */
  uint64_t first, n;
};

/* Appends a copy from device to host on lane d2h, or from host to device on lane h2d. Returns the
 * op's number. */
uint32_t weft_to_host (struct weft_step *s, const struct weft_host_copy *copy);
uint32_t weft_from_host (struct weft_step *s, const struct weft_host_copy *copy);

/* Appends a kernel that runs on the CPU, on lane host. Returns the op's number. */
uint32_t weft_emit_on_host (struct weft_step *s, enum weft_op_kind kind, const char *name,
                            struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* Makes the op appended last wait for all copies between device and host that were appended so far.
 * The automatic dependencies between conflicting buffer uses do not cover these copies, because a
 * copy may access a view instead of the whole buffer. */
void weft_host_wait_for_copies (struct weft_step *s);

/* ----------------------------------------------------------------- timers: timers.c */

/* Append the begin, or the end, of a timed phase. `level`: the lowest timing_log_level at which the
 * phase is measured. */
void weft_timer_start (struct weft_step *s, int64_t level, const char *name);
void weft_timer_stop (struct weft_step *s, int64_t level, const char *name);

/* ------------------------------------------------------------------- questions */

/* The model chunk whose ops are being appended. */
static inline struct weft_chunk *
weft_step_chunk (const struct weft_step *s)
{
  return &s->chunk[s->at.chunk];
}

/* Return whether this pipeline stage holds the embedding, or the output layer. */
gboolean weft_step_has_embedding (const struct weft_step *s);
gboolean weft_step_has_head (const struct weft_step *s);

/* The model chunk with the output layer, or NULL. */
const struct weft_chunk *weft_step_head (const struct weft_step *s);

/* Index of a layer among all layers that this pipeline stage holds, in all its model chunks. */
uint32_t weft_step_slot (const struct weft_step *s, uint32_t layer);

/* Whether the current pass is one half of a split backward: only input gradients, or only weight
 * gradients. */
static inline gboolean
weft_step_is_split (const struct weft_step *s)
{
  return s->cell == WEFT_PHASE_INPUT_GRAD || s->cell == WEFT_PHASE_WEIGHT_GRAD;
}

/* Whether weight gradients are computed later than their input gradients, and not directly after
 * them. */
static inline gboolean
weft_step_delays (const struct weft_step *s)
{
  return s->strategy->delay_wgrad_compute || weft_step_is_split (s);
}

/* Whether two pipeline stages hold the embedding: because the output layer shares its weight, or
 * for multi-token prediction. */
static inline gboolean
weft_step_shares_embedding (const struct weft_step *s)
{
  return s->model->share_embeddings_and_output_weights || s->model->mtp_num_layers > 0;
}

/* Whether tensor parallel ranks that hold the same experts all-gather their rows to compute weight
 * gradients (canonical order only). In canonical order, gradients are added along a fixed binary
 * tree. The sum over one rank's rows is not a node of this tree. Every rank therefore sums the rows
 * of all these ranks, and stores one piece of the result. */
static inline gboolean
weft_gathers_expert_rows (const struct weft_step *s)
{
  return s->canonical && s->mesh->ep * s->mesh->etp < s->mesh->tp;
}

/* Attention window of the current layer: the number of keys that a query can read, counted back
 * from the query's own position. 0: all earlier keys. */
uint64_t weft_layer_window (const struct weft_step *s);

/* Shape of the current layer's attention kernel over whole sequences. */
struct weft_shape weft_layer_attention_shape (const struct weft_step *s, uint64_t tokens,
                                              uint64_t heads, uint64_t groups);

/* Shape of weft_layer_attention_shape() with all tokens and heads of this rank. */
struct weft_shape weft_attention_shape (const struct weft_step *s);
