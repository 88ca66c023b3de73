/* fsdp2.h - private to replicas/: PyTorch's FSDP2. fsdp2.c gathers weights, fsdp2_grads.c reduces
 * gradients, fsdp2_host.c copies both where they are in host memory.
 *
 * A unit is a bucket of the layout: one for each layer, and the root for what a stage has outside
 * layers. Experts that expert parallel ranks share are units inside layers, sharded among the ranks
 * that hold the same experts (NeMo Automodel components/moe/parallelizer.py, apply_fsdp). Such a
 * unit comes before the rest of its layer: backward walks down the units; forward walks up, and
 * enters a layer before its experts. How tensors are sharded: weft_layout_pieces_init(). */
#pragma once
#include "core/passes/replicas/buckets.h"

struct weft_fsdp2_unit {
  uint32_t layer;        /* WEFT_NO_LAYER: the root */
  gboolean expert;       /* the experts of a layer */
  gboolean stays;        /* forward does not reshard it */
  gboolean passed;       /* backward needs its weights no more */
  uint64_t whole, slice; /* elements: of its tensors; of this rank's shards of them */
  uint32_t wire, slot;   /* gathered shards that are not copied out yet; their slot in the ring */
  uint32_t left;         /* the last kernel before the unit was resharded */
  uint32_t kept;         /* defer_fsdp_grad_sync: whole gradients, or WEFT_NO_BUF */
  uint32_t n_reduced;    /* reductions so far in this step */
};

/* A buffer for gathered shards. Slots are used in turn. */
struct weft_fsdp2_slot {
  uint32_t wire, mine; /* shards of all ranks; the view that is this rank's */
  uint32_t free;       /* the copy-out that read it last, or WEFT_NO_OP */
  gboolean taken;      /* its shards are not copied out yet */
};

/* A chunk is wrapped by itself. The root, if it has one, precedes its other units. */
struct weft_fsdp2_chunk {
  uint32_t first, end;
  gboolean root;
  gboolean forward_begun; /* gathers of this forward have waited for the optimizer */
  uint32_t streams;       /* the kernel that gathers wait for */
  uint32_t held;          /* forward: the newest copy-out, which gathers wait for next */
  uint32_t reducing;      /* the reduce-scatter that the next one waits for, or WEFT_NO_OP */
};

struct weft_fsdp2 {
  struct weft_fsdp2_slot *ring;   /* one allocation with this struct, as the next two arrays */
  struct weft_fsdp2_chunk *chunk;
  gboolean *started;              /* by parameter: kept gradients hold a microbatch */
  uint32_t n_slot, turn;
  uint32_t n_unit;
  gboolean pipelined;             /* several stages: weights stay from first to last use */
  gboolean explicit;              /* enable_fsdp2_prefetch */
  gboolean splits;                /* weight gradients have cells of their own */
  gboolean keeps;                 /* defer_fsdp_grad_sync: one reduction a step */
  enum weft_dtype reduce_dtype;

  /* offload_policy */
  uint32_t *on_host;              /* by parameter: this rank's shard in host memory */
  uint32_t copied_in, sent;       /* the newest copy-in; the newest copy of gradients to the host */
  uint32_t fetched, leaving;      /* buffers for shards on their way, or WEFT_NO_BUF */
  uint32_t reduced[2], n_sent;    /* buffers for reduced shards, used in turn */
  struct weft_fsdp2_unit unit[];
};

static inline struct weft_fsdp2 *
weft_fsdp2 (const struct weft_step *s)
{
  return s->replicas->own;
}

/* Whether the pass is a backward: it walks down the units. */
static inline gboolean
weft_fsdp2_goes_back (const struct weft_step *s)
{
  return s->at.phase != WEFT_PHASE_FORWARD && s->at.phase != WEFT_PHASE_RECOMPUTE;
}

/* The chunk whose ops are being appended. */
static inline struct weft_fsdp2_chunk *
weft_fsdp2_chunk (const struct weft_step *s)
{
  return &weft_fsdp2 (s)->chunk[s->at.chunk];
}

/* Sets views of all tensors of a unit in `whole`; WEFT_NO_BUF: they have none. */
void weft_fsdp2_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint32_t *view);

/* fsdp2_grads.c: before the first op; PyTorch's post_backward: reduces a unit whose gradients are
 * complete and whose weights backward needs no more. */
void weft_fsdp2_start_grads (struct weft_step *s);
void weft_fsdp2_post_backward (struct weft_step *s, uint32_t k);

/* fsdp2_host.c: offload_policy. weft_fsdp2_fetch() copies a unit's shards of weights into a device
 * buffer; the copies wait for `before`. */
void weft_fsdp2_start_host (struct weft_step *s);
uint32_t weft_fsdp2_fetch (struct weft_step *s, uint32_t k, const uint32_t *before,
                           uint32_t n_before);
/* The buffer of reduced gradients that go to the host. */
uint32_t weft_fsdp2_send_buffer (struct weft_step *s, uint32_t k);
/* Copies the reduced gradients in `slice` to `to` in host memory. With `adds` the host adds them to
 * those of earlier microbatches, and weft_fsdp2_added() lets kernels wait for the sum. */
void weft_fsdp2_send (struct weft_step *s, uint32_t k, uint32_t slice, uint32_t to, gboolean adds);
void weft_fsdp2_added (struct weft_step *s);
/* The op appended last waits for the newest copy of gradients to the host. */
void weft_fsdp2_follow_sent (struct weft_step *s);

/* The bucket of a tied head with its own sum. */
static inline uint32_t
weft_fsdp2_head (const struct weft_step *s)
{
  return s->params->layout.n_bucket;
}

/* The lane on which reduced shards of unit k are processed. Experts have no replicas of shards. */
static inline enum weft_lane
weft_fsdp2_slice_lane (const struct weft_step *s, uint32_t k)
{
  return s->mesh->instances > 1 && !weft_bucket_of_experts (s, k)
             ? weft_group_lane (weft_mesh_across (s->mesh))
             : WEFT_LANE_DP;
}

/* Reshards a unit: frees its gathered weights. */
void weft_fsdp2_reshard (struct weft_step *s, uint32_t k);

/* Its row of the table in wrapper.c. */
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
