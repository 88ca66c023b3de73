/* fsdp2.h - private to replicas/: PyTorch's FSDP2. fsdp2.c gathers weights, fsdp2_grads.c reduces
 * gradients, fsdp2_host.c copies both to and from host memory (offload_policy).
 *
 * A unit is a bucket of the layout: one for each layer, and the root for the parameters of a stage
 * outside layers. Experts that are distributed over expert parallel ranks are units inside layers,
 * sharded among the ranks that hold the same experts (NeMo Automodel
 * components/moe/parallelizer.py, apply_fsdp). The number of an expert unit is the number of its
 * layer's unit minus 1. Backward enters units in descending order. Forward enters units in
 * ascending order, except that a layer precedes its experts. weft_layout_pieces_init() describes
 * how tensors are sharded. */
#pragma once
#include "core/passes/replicas/buckets.h"

struct weft_fsdp2_unit {
  uint32_t layer;        /* WEFT_NO_LAYER: the root */
  gboolean expert;       /* the experts of a layer */
  gboolean stays;        /* TRUE: forward does not reshard the unit */
  gboolean passed;       /* backward does not read the unit's weights any more */
  uint64_t whole, slice; /* numbers of elements: of the unit's tensors; of this rank's shards */
  uint32_t wire, slot;   /* buffer of gathered shards before copy-out; index of the ring slot of
                          * this buffer */
  uint32_t left;         /* the newest kernel when the unit was last resharded */
  uint32_t kept;         /* whole gradients (defer_fsdp_grad_sync), or WEFT_NO_BUF */
  uint32_t n_reduced;    /* number of reductions so far in this step */
};

/* A buffer for gathered shards. Slots are used in turn. */
struct weft_fsdp2_slot {
  uint32_t wire, mine; /* buffer for the shards of all ranks; view of this rank's part */
  uint32_t free;       /* the copy-out that read the slot last, or WEFT_NO_OP */
  gboolean taken;      /* the shards in the slot are not copied out yet */
};

/* Each chunk is wrapped separately. Its layers and experts are units [first, end); if the chunk has
 * a root, the root is unit first - 1. */
struct weft_fsdp2_chunk {
  uint32_t first, end;
  gboolean root;
  gboolean forward_begun; /* `streams` was set for this forward */
  uint32_t streams;       /* the kernel for which gathers wait */
  uint32_t held;          /* forward: newest copy-out; the gather after the next one waits for it */
  uint32_t reducing;      /* the newest reduce-scatter, for which the next one waits; or
                           * WEFT_NO_OP */
};

struct weft_fsdp2 {
  struct weft_fsdp2_slot *ring;   /* all arrays are in one allocation with this struct */
  struct weft_fsdp2_chunk *chunk;
  gboolean *started;              /* by parameter: whether the kept gradient contains at least one
                                   * microbatch */
  uint32_t n_slot, turn;          /* slots of the ring; turn modulo n_slot is the next slot */
  uint32_t n_unit;
  gboolean pipelined;             /* several stages: units stay gathered until the last backward */
  gboolean explicit;              /* enable_fsdp2_prefetch without pipeline parallelism */
  gboolean splits;                /* the grid has separate cells for weight gradients */
  gboolean keeps;                 /* defer_fsdp_grad_sync: gradients are reduced once in each step
                                   * */
  enum weft_dtype reduce_dtype;

  /* offload_policy */
  uint32_t *on_host;              /* by parameter: this rank's shard in host memory */
  uint32_t copied_in, sent;       /* newest copy-in; newest copy of gradients to the host */
  uint32_t fetched, leaving;      /* buffers for shards from and to the host, or WEFT_NO_BUF */
  uint32_t reduced[2], n_sent;    /* buffers for reduced shards, used in turn */
  struct weft_fsdp2_unit unit[];
};

static inline struct weft_fsdp2 *
weft_fsdp2 (const struct weft_step *s)
{
  return s->replicas->own;
}

/* Whether the current pass is a backward, which enters units in descending order. */
static inline gboolean
weft_fsdp2_goes_back (const struct weft_step *s)
{
  return s->at.phase != WEFT_PHASE_FORWARD && s->at.phase != WEFT_PHASE_RECOMPUTE;
}

/* Returns the chunk whose ops are being appended. */
static inline struct weft_fsdp2_chunk *
weft_fsdp2_chunk (const struct weft_step *s)
{
  return &weft_fsdp2 (s)->chunk[s->at.chunk];
}

/* Sets view[] of all tensors of unit k to views of `whole`. `whole` = WEFT_NO_BUF: sets them to
 * WEFT_NO_BUF. */
void weft_fsdp2_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint32_t *view);

/* fsdp2_grads.c: creates the sums of gradients, before the first op. */
void weft_fsdp2_start_grads (struct weft_step *s);

/* PyTorch's post_backward: reshards and reduces unit k, if the gradients of the unit are complete
 * and backward does not read its weights any more. */
void weft_fsdp2_post_backward (struct weft_step *s, uint32_t k);

/* fsdp2_host.c: creates the views of shards in host memory (offload_policy). */
void weft_fsdp2_start_host (struct weft_step *s);

/* Copies the shards of unit k from host memory. Returns the device buffer. The copies wait for the
 * ops in `before`. */
uint32_t weft_fsdp2_fetch (struct weft_step *s, uint32_t k, const uint32_t *before,
                           uint32_t n_before);
/* Returns the device buffer for reduced gradients of unit k that are copied to the host. */
uint32_t weft_fsdp2_send_buffer (struct weft_step *s, uint32_t k);
/* Copies the reduced gradients in `slice` to `to` in host memory. adds = TRUE: the host then adds
 * them to the gradients of earlier microbatches, and weft_fsdp2_added() makes the next kernel wait
 * for this addition. */
void weft_fsdp2_send (struct weft_step *s, uint32_t k, uint32_t slice, uint32_t to, gboolean adds);
void weft_fsdp2_added (struct weft_step *s);
/* Makes the op appended last wait for the newest copy of gradients to the host. */
void weft_fsdp2_follow_sent (struct weft_step *s);

/* Returns the bucket of a tied head with a separate sum. */
static inline uint32_t
weft_fsdp2_head (const struct weft_step *s)
{
  return s->params->layout.n_bucket;
}

/* Returns the lane on which reduced shards of unit k are processed: the lane between instances, if
 * the shards have replicas. Shards of experts have no replicas. */
static inline enum weft_lane
weft_fsdp2_slice_lane (const struct weft_step *s, uint32_t k)
{
  return s->mesh->instances > 1 && !weft_bucket_of_experts (s, k)
             ? weft_group_lane (weft_mesh_across (s->mesh))
             : WEFT_LANE_DP;
}

/* Reshards a unit: frees its gathered weights. */
void weft_fsdp2_reshard (struct weft_step *s, uint32_t k);

/* Functions of the table in wrapper.c. */
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
