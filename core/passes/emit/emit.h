/* emit.h - the state of a step that all passes read, and the functions that append ops.
 *
 * struct weft_step describes the role whose program is built, and the place where ops are being
 * appended. Each wing of core/passes has a private struct for its state. The wing's private header
 * defines the struct, _begin() of the wing creates it, and _end() frees it. Other wings have only a
 * pointer to it.
 *
 * core/README.md orders the wings in floors: a file calls and includes only its own wing and the
 * wings below it. */
#pragma once
#include "core/job/job.h"
#include "core/job/stages.h"
#include "core/program/mesh.h"
#include "core/job/pipeline.h"
#include "core/program/program.h"

/* Widths of activations and weights on this rank, in columns. */
struct weft_widths {
  uint64_t h;             /* hidden size */
  uint64_t heads, groups; /* query heads; groups of keys and values */
  uint64_t together;      /* canonical order: ranks that share one key-value group, or 1 */
  uint64_t q, qkv;        /* output and input of attention */
  uint64_t made;          /* columns that the qkv map computes; fewer than qkv if ranks share a
                           * key-value group */
  uint64_t own;           /* columns of the attention output that this rank's proj map reads */
  uint64_t f, up;         /* inside the MLP; output of fc1, twice as wide with a gate */
  uint64_t shared, vocab; /* inside shared experts; logits */
};

/* Canonical order: the number of leaves that this rank has in the tree of a sum over a sharded
 * dimension (kernels/leaves.h), by kind of map. 0: one plain sum. */
struct weft_leaves {
  uint32_t attention, mlp, shared, expert, vocab;
};

/* A model chunk: the layers of one pipeline stage, as this role holds them. */
struct weft_chunk {
  uint32_t stage, copy; /* DualPipe holds two copies of the model */
  uint32_t first_layer, n_layers;
  uint32_t n_mtp; /* layers of multi-token prediction, numbered after the model's last layer */
  uint32_t slot;  /* index of its first layer among all layers of the role */
  gboolean embedding, head;
  uint32_t first_micro, n_micro; /* microbatches that pass through the chunk */
  uint32_t n_backward;           /* backward passes begun so far */
};

/* Buffers of the scalars of a step: one float each, or in canonical order an exact sum
 * (core/base/exact.h). WEFT_NO_BUF: the job does not use the scalar. */
struct weft_scalars {
  uint32_t loss, mtp_loss;  /* running sums; mtp_loss has one for each depth */
  uint32_t count;           /* tokens of the batch: calculate_per_token_loss */
  uint32_t squares, factor; /* squared gradient norm, clip factor */
  uint32_t found;           /* loss scaling: whether a gradient is not finite */
};

struct weft_step {
  /* The job. */
  const struct weft_job *job;
  const union weft_model *model;
  const union weft_strategy *strategy;
  const struct weft_mesh *mesh;

  /* The program that is built, and the fields that the next op copies: layer, microbatch, chunk,
   * phase, flags. */
  weft_builder *b;
  struct weft_op at;

  /* The role: its cells in the grid, its model chunks. */
  uint32_t role, n_micro;
  weft_grid *grid;
  struct weft_chunk *chunk;
  uint32_t n_chunks, n_layers;

  /* Sizes of one microbatch on this rank. */
  uint64_t tokens; /* tokens of this context parallel rank */
  uint64_t rows;   /* of the residual stream: tokens, or tokens / tp (sequence_parallel) */
  struct weft_widths width;
  struct weft_leaves leaves;

  /* Types. */
  enum weft_dtype dtype;                    /* the residual stream; weights as kernels read them */
  enum weft_dtype product_dtype;            /* matrix products and activations between them */
  enum weft_dtype linear_dtype;             /* inputs of linear maps: product_dtype or fp8 */
  enum weft_dtype output_dtype;             /* activations between layers */
  enum weft_dtype grad_dtype;               /* gradients to which microbatches are added */
  enum weft_dtype weight_dtype, main_dtype; /* flat buffers of weights and of gradients */

  /* How data-parallel replicas lay tensors out and shard them. */
  const struct weft_shard_rule *sharding; /* params.h */
  gboolean shard_optimizer;             /* replicas keep slices of optimizer state */
  gboolean on_host; /* offload_policy: weights, gradients and optimizer state are in host memory */

  gboolean canonical;      /* sums over sequences are taken in the order of core/base/fold.h */
  gboolean scales_loss;    /* gradients carry the loss scale until the optimizer divides by it */
  gboolean last_micro;     /* the current backward is the last one of the chunk in this step */
  enum weft_phase cell;    /* phase of the grid cell whose ops are being appended */
  uint32_t backward_layer; /* layer whose backward runs, or is prepared by recompute */
  struct weft_scalars scalars;

  /* The private state of each wing. Only the files of a wing include the definition of its
   * struct. */
  struct weft_stream *stream;       /* emit/ */
  struct weft_params *params;       /* params/ */
  struct weft_shard *shard;         /* shard/ */
  struct weft_pipeline *pipeline;   /* pipeline/ */
  struct weft_replicas *replicas;   /* replicas/ */
  struct weft_layer *layer;         /* layer/ */
  struct weft_optimizer_part *optimizer; /* optimizer/ */
};

/* A callback that appends kernels, for example the delayed weight gradients beside an exchange. */
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

/* Appends a kernel on lane gpu at the current place and returns its number. */
uint32_t weft_emit (struct weft_step *s, enum weft_op_kind kind, const char *name,
                    struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* Appends a collective, transfer or copy on another lane and returns its number. The op waits for
 * earlier ops with conflicting uses of its buffers (hazards), and for the dependencies that the
 * caller adds. */
uint32_t weft_emit_on (struct weft_step *s, enum weft_lane lane, struct weft_op row,
                       struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* Appends an in-place all-reduce of `buf` that waits only for hazards of `buf`. Returns the op, or
 * WEFT_NO_OP if the group has one rank: nothing is appended then. */
uint32_t weft_reduce_all (struct weft_step *s, enum weft_group_kind group, enum weft_reduce reduce,
                          uint32_t buf, const char *name);

/* Marks the ops appended from now on as recompute. Returns the previous value of s->at, which the
 * caller restores afterwards. */
struct weft_op weft_step_again (struct weft_step *s);

/* --------------------------------------------------------------- dependencies */

/* Makes the next kernel wait for `op`. WEFT_NO_OP: no effect. */
void weft_next_kernel_waits_for (struct weft_step *s, uint32_t op);

/* Makes the host wait for `op` before it enqueues further work. */
void weft_host_waits_for (struct weft_step *s, uint32_t op);

/* Each function adds dependencies to the op appended last.
 *
 *   wait_for_host          the newest op that the host has waited for
 *   wait_for_exchange      the newest pipeline transfers (weft_set_exchange)
 *   wait_for_stream        `kernel`, the newest pipeline transfers, and the newest op that the host
 *                          has waited for
 *   wait_like_next_kernel  all ops that the next kernel waits for */
void weft_wait_for_host (struct weft_step *s);
void weft_wait_for_exchange (struct weft_step *s);
void weft_step_wait_for_stream (struct weft_step *s, uint32_t kernel);
void weft_wait_like_next_kernel (struct weft_step *s);

/* Sets the newest pipeline transfer on one of two streams. The next kernel waits for it. */
enum { WEFT_N_EXCHANGE = 2 };
void weft_set_exchange (struct weft_step *s, uint32_t stream, uint32_t op);

/* Appends kernels that do not wait for the transfers of weft_set_exchange(). The next kernel after
 * them still waits. */
void weft_run_beside_exchange (struct weft_step *s, weft_kernels *kernels);

/* The host reads one or two numbers from device buffers, and enqueues nothing until both copies
 * have ended. */
void weft_step_host_reads (struct weft_step *s, const char *name, uint32_t buf);
void weft_step_host_reads_both (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* -------------------------------------------------------------------- buffers */

/* Creates a buffer of `elements` that lives from its first to its last use. Returns its number. */
uint32_t weft_step_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                           uint64_t elements, const char *name);

/* Creates a buffer that keeps its content between steps. */
uint32_t weft_step_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                              uint64_t elements, const char *name);

/* Number of elements of a buffer, in its own type. */
uint64_t weft_step_elements (const struct weft_step *s, uint32_t buf);

/* Creates a buffer of `columns` for each row of the residual stream, in the type of the stream. */
uint32_t weft_activation (struct weft_step *s, uint64_t columns, const char *name);

/* Creates a buffer of `columns` for each token, in the type of matrix products. */
uint32_t weft_product (struct weft_step *s, uint64_t columns, const char *name);

/* ----------------------------------------------------------- host memory: host.c */

/* weft_step_buffer() and weft_step_permanent() in host memory. */
uint32_t weft_host_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                           uint64_t elements, const char *name);
uint32_t weft_host_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                              uint64_t elements, const char *name);

/* A copy of elements [first, first + n) of a device buffer to or from the beginning of a host
 * buffer. */
struct weft_host_copy {
  const char *name;
  uint32_t device, host; /* buffers of the same type */
  uint64_t first, n;
};

/* Appends a copy from the device to the host on lane d2h, or back on lane h2d. Returns the op. */
uint32_t weft_to_host (struct weft_step *s, const struct weft_host_copy *copy);
uint32_t weft_from_host (struct weft_step *s, const struct weft_host_copy *copy);

/* Appends a kernel that runs on the CPU, on lane host. Returns the op. */
uint32_t weft_emit_on_host (struct weft_step *s, enum weft_op_kind kind, const char *name,
                            struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses);

/* Makes the op appended last wait for all copies appended so far. Hazards do not cover these
 * copies: a copy of a view is not a use of the whole buffer. */
void weft_host_wait_for_copies (struct weft_step *s);

/* ----------------------------------------------------------------- timers: timers.c */

/* Begin and end of a timed phase. `level`: the lowest timing_log_level that measures the phase. */
void weft_timer_start (struct weft_step *s, int64_t level, const char *name);
void weft_timer_stop (struct weft_step *s, int64_t level, const char *name);

/* ------------------------------------------------------------------- questions */

/* The chunk whose ops are being appended. */
static inline struct weft_chunk *
weft_step_chunk (const struct weft_step *s)
{
  return &s->chunk[s->at.chunk];
}

/* Whether the role holds the embedding; whether it holds the output head. */
gboolean weft_step_has_embedding (const struct weft_step *s);
gboolean weft_step_has_head (const struct weft_step *s);

/* The chunk with the output head, or NULL. */
const struct weft_chunk *weft_step_head (const struct weft_step *s);

/* Index of a layer among all layers of the role. */
uint32_t weft_step_slot (const struct weft_step *s, uint32_t layer);

/* Whether the cell is one half of a split backward: an input gradient or a weight gradient. */
static inline gboolean
weft_step_is_split (const struct weft_step *s)
{
  return s->cell == WEFT_PHASE_INPUT_GRAD || s->cell == WEFT_PHASE_WEIGHT_GRAD;
}

/* Whether weight gradients are delayed, instead of following their input gradients at once. */
static inline gboolean
weft_step_delays (const struct weft_step *s)
{
  return s->strategy->delay_wgrad_compute || weft_step_is_split (s);
}

/* Whether the embedding is on two stages: a tied head, or multi-token prediction. */
static inline gboolean
weft_step_shares_embedding (const struct weft_step *s)
{
  return s->model->share_embeddings_and_output_weights || s->model->mtp_num_layers > 0;
}

/* Canonical order: whether tensor parallel ranks that hold the same experts all-gather each other's
 * rows for weight gradients. The rows of one rank are not a node of the tree of a sum, so every
 * rank sums all rows and keeps one piece of the result. */
static inline gboolean
weft_gathers_expert_rows (const struct weft_step *s)
{
  return s->canonical && s->mesh->ep * s->mesh->etp < s->mesh->tp;
}

/* The attention window of the current layer: keys before a query that attention reads; 0: all. */
uint64_t weft_layer_window (const struct weft_step *s);

/* The shape of attention of the current layer over whole sequences. */
struct weft_shape weft_layer_attention_shape (const struct weft_step *s, uint64_t tokens,
                                              uint64_t heads, uint64_t groups);

/* weft_layer_attention_shape() with all tokens and heads of this rank. */
struct weft_shape weft_attention_shape (const struct weft_step *s);
