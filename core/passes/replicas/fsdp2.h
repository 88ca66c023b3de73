/* fsdp2.h - private to replicas/: PyTorch's FSDP2. fsdp2.c gathers weights, fsdp2_grads.c reduces
 * gradients, fsdp2_host.c copies both to and from host memory (offload_policy).
 *
 * An FSDP unit (parameters that are gathered together) is a bucket of the layout. There is one unit
 * for each layer, and one for the parameters of a stage outside layers: the root. Experts that are
 * distributed over expert parallel ranks are separate units. The ranks that hold the same experts
 * shard such a unit (NeMo Automodel components/moe/parallelizer.py, apply_fsdp). The number of a
 * unit of experts is the number of its layer's unit minus 1. Backward runs units in descending
 * order. Forward runs units in ascending order, except that the unit of a layer precedes the unit
 * of the layer's experts. weft_layout_pieces_init() describes how tensors are sharded. */
#pragma once
#include "core/passes/replicas/buckets.h"

struct weft_fsdp2_unit {
  /* layer number; WEFT_NO_LAYER for the root unit (parameters outside layers) */
  uint32_t layer;
  gboolean expert; /* TRUE: the unit contains the experts of a layer */
  gboolean stays;  /* TRUE: the unit stays gathered after forward */
  gboolean passed; /* TRUE: backward does not read the unit's weights any more */
  /* whole: number of elements of the unit's tensors; slice: number of elements of this rank's
   * shards */
  uint64_t whole, slice;
  /* wire: communication buffer of gathered shards, before copy-out; slot: index of this buffer in
   * the ring */
  uint32_t wire, slot;
  uint32_t left;      /* op that was the newest kernel when the unit was last resharded */
  uint32_t kept;      /* buffer of whole gradients (defer_fsdp_grad_sync), or WEFT_NO_BUF */
  uint32_t n_reduced; /* number of reductions of the unit so far in this step */
};

/* A communication buffer for gathered shards. The slots of a ring are used in turn. */
struct weft_fsdp2_slot {
  /* wire: buffer for the shards of all ranks; mine: view of this rank's part of it */
  uint32_t wire, mine;
  uint32_t free;  /* copy-out op that read the slot last, or WEFT_NO_OP */
  gboolean taken; /* TRUE: the gathered shards in the slot have not been copied out yet */
};

/* FSDP units of one model chunk, which is wrapped separately. Units [first, end) are its layers and
 * experts. If the chunk has a root unit (parameters outside layers), its number is first - 1. */
struct weft_fsdp2_chunk {
  uint32_t first, end;
  gboolean root;
  /* TRUE: `streams`, the kernel for which all-gathers wait, has been set in the current forward */
  gboolean forward_begun;
  uint32_t streams; /* newest kernel for which the all-gathers of this chunk wait */
  /* newest copy-out of forward. The next all-gather does not wait for this copy-out, but the
   * all-gather after the next one does */
  uint32_t held;
  /* newest reduce-scatter, for which the next reduce-scatter waits; or WEFT_NO_OP */
  uint32_t reducing;
};

struct weft_fsdp2 {
  /* the arrays of this struct and the struct itself are one allocation */
  struct weft_fsdp2_slot *ring;
  struct weft_fsdp2_chunk *chunk;
  /* started, by parameter: TRUE if the buffer of whole gradients (kept) contains the gradient of at
   * least one microbatch */
  gboolean *started;
  /* n_slot: number of slots in the ring; turn modulo n_slot: the next slot */
  uint32_t n_slot, turn;
  uint32_t n_unit;
  /* TRUE with several pipeline stages: units stay gathered until the next backward that reduces
   * gradients */
  gboolean pipelined;
  gboolean explicit; /* TRUE: enable_fsdp2_prefetch without pipeline parallelism */
  /* TRUE: the pipeline schedule splits backward passes, and computes weight gradients in separate
   * passes */
  gboolean splits;
  /* TRUE with defer_fsdp_grad_sync: gradients are reduced once in each step */
  gboolean keeps;
  enum weft_dtype reduce_dtype;

  /* offload_policy */
  uint32_t *on_host; /* by parameter: buffer of this rank's shard in host memory */
  /* newest copy of weight shards from the host (copied_in); newest copy of gradients to the host
   * (sent) */
  uint32_t copied_in, sent;
  /* device buffers for shards: copied from the host (fetched), to be copied to the host (leaving);
   * or WEFT_NO_BUF */
  uint32_t fetched, leaving;
  /* reduced: device buffers for reduced shards, used in turn; n_sent: number of uses so far */
  uint32_t reduced[2], n_sent;
  struct weft_fsdp2_unit unit[];
};

static inline struct weft_fsdp2 *
weft_fsdp2 (const struct weft_step *s)
{
  return s->replicas->own;
}

/* Whether the current pass is a backward pass, in which units are gathered in descending order. */
static inline gboolean
weft_fsdp2_goes_back (const struct weft_step *s)
{
  return s->at.phase != WEFT_PHASE_FORWARD && s->at.phase != WEFT_PHASE_RECOMPUTE;
}

/* Returns the FSDP2 state of the model chunk whose ops are being appended. */
static inline struct weft_fsdp2_chunk *
weft_fsdp2_chunk (const struct weft_step *s)
{
  return &weft_fsdp2 (s)->chunk[s->at.chunk];
}

/* Sets view[] of all tensors of unit k to views of the buffer `whole`, or to WEFT_NO_BUF if `whole`
 * is WEFT_NO_BUF. */
void weft_fsdp2_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint32_t *view);

/* fsdp2_grads.c: creates the sums of gradients. Must be called before the first op is appended. */
void weft_fsdp2_start_grads (struct weft_step *s);

/* Like PyTorch's post_backward: reshards unit k and reduces its gradients, if the gradients are
 * complete and backward does not read the unit's weights any more. */
void weft_fsdp2_post_backward (struct weft_step *s, uint32_t k);

/* fsdp2_host.c: creates views of this rank's shards in host memory (offload_policy). */
void weft_fsdp2_start_host (struct weft_step *s);

/* Copies the shards of unit k from host memory. Returns the device buffer. The copies wait for the
 * ops in `before`. */
uint32_t weft_fsdp2_fetch (struct weft_step *s, uint32_t k, const uint32_t *before,
                           uint32_t n_before);
/* Returns the device buffer for the reduced gradients of unit k, which are then copied to the
 * host. */
uint32_t weft_fsdp2_send_buffer (struct weft_step *s, uint32_t k);
/* Copies the reduced gradients `slice` to the buffer `to` in host memory. With `adds` the host then
 * adds them to the gradients of earlier microbatches; weft_fsdp2_added() makes the next kernel wait
 * for this addition. */
void weft_fsdp2_send (struct weft_step *s, uint32_t k, uint32_t slice, uint32_t to, gboolean adds);
void weft_fsdp2_added (struct weft_step *s);
/* Makes the op appended last wait for the newest copy of gradients to the host. */
void weft_fsdp2_follow_sent (struct weft_step *s);

/* Returns the number of the additional bucket for a tied output layer, used if its gradient has a
 * separate sum. */
static inline uint32_t
weft_fsdp2_head (const struct weft_step *s)
{
  return s->params->layout.n_bucket;
}

/* Returns the lane of the ops on reduced shards of unit k. If the shards have replicas (HSDP), this
 * is the lane of collectives between replicas. Shards of experts have no replicas. */
static inline enum weft_lane
weft_fsdp2_slice_lane (const struct weft_step *s, uint32_t k)
{
  return s->mesh->instances > 1 && !weft_bucket_of_experts (s, k)
             ? weft_group_lane (weft_mesh_across (s->mesh))
             : WEFT_LANE_DP;
}

/* Reshards an FSDP unit: frees its gathered weights. */
void weft_fsdp2_reshard (struct weft_step *s, uint32_t k);

/* Functions of FSDP2 that the table of strategies (wrapper.c) contains. */
void weft_fsdp2_start (struct weft_step *s);
void weft_fsdp2_begin_cell (struct weft_step *s);
void weft_fsdp2_before_layer (struct weft_step *s, uint32_t layer);
void weft_fsdp2_before_read (struct weft_step *s, uint32_t param);
void weft_fsdp2_after_layer (struct weft_step *s, uint32_t layer);
struct weft_use weft_fsdp2_grad_begin (struct weft_step *s, uint32_t param);
void weft_fsdp2_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
struct weft_use weft_fsdp2_head_begin (struct weft_step *s);
void weft_fsdp2_head_end (struct weft_step *s, struct weft_use grad);
void weft_fsdp2_end_cell (struct weft_step *s);
void weft_fsdp2_finish (struct weft_step *s);
uint32_t weft_fsdp2_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_fsdp2_reduced_head (struct weft_step *s);
