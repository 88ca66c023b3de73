/* fsdp2.h - what the files of FSDP2 share: fsdp2.c gathers weights, fsdp2_grads.c reduces gradients,
 * fsdp2_host.c copies both where they lie on the host.
 *
 * A unit is a bucket of the layout: each layer is one, and what a stage has outside layers is the
 * root.  Experts that ranks share out are units inside layers, cut among those who hold the same ones
 * (NeMo Automodel components/moe/parallelizer.py, apply_fsdp).  They come before the rest of their layer:
 * backward goes down through the units, forward up, but from a layer into its experts.
 * layout_pieces.c says how tensors are cut. */
#pragma once
#include "core/passes/replicas/buckets.h"

struct weft_fsdp2_unit {
  uint32_t layer;        /* WEFT_NO_LAYER: the root */
  gboolean expert;       /* the experts of a layer */
  gboolean stays;        /* forward does not let it go */
  gboolean passed;       /* backward is through with its weights */
  uint64_t whole, slice; /* elements: of its tensors, of this rank's pieces of them */
  uint32_t wire, slot;   /* what was gathered and is not copied out yet; its place in the ring */
  uint32_t left;         /* the last kernel before the unit was let go */
  uint32_t kept;         /* gradients of the microbatches so far, whole; WEFT_NO_BUF: none are kept */
  uint32_t n_reduced;    /* reductions so far in this step */
};

/* A place for gathered pieces, taken in turn. */
struct weft_fsdp2_slot {
  uint32_t wire, mine; /* all pieces, and the view of it that is this rank's */
  uint32_t free;       /* the copy-out that was its last reader, or WEFT_NO_OP */
  gboolean taken;      /* by pieces that were not copied out yet */
};

/* A chunk is wrapped by itself: its units but for the root, which is before them; and what waits for
 * what among them. */
struct weft_fsdp2_chunk {
  uint32_t first, end;
  gboolean root;
  gboolean forward_begun; /* gathers of this forward have waited for the optimizer */
  uint32_t streams;       /* the kernel that gathers wait for */
  uint32_t held;          /* forward: the newest copy-out, for which they will */
  uint32_t reducing;      /* the reduce-scatter that the next one waits for, or WEFT_NO_OP */
};

struct weft_fsdp2 {
  struct weft_fsdp2_slot *ring; /* one allocation with this struct */
  struct weft_fsdp2_chunk *chunk; /* likewise */
  gboolean *started;            /* of each parameter: a microbatch is in what is kept; likewise */
  uint32_t n_slot, turn;
  uint32_t n_unit;
  gboolean pipelined;           /* weights stay from their first use to their last */
  gboolean explicit;            /* enable_fsdp2_prefetch */
  gboolean splits;              /* weight gradients have cells of their own */
  gboolean keeps;               /* gradients of several microbatches are added before they travel */
  uint32_t *on_host;            /* of each parameter: the piece of its weights there; likewise */
  uint32_t copied_in, sent;     /* offload_policy: the newest copy-in, the newest gradient to leave */
  uint32_t fetched, leaving;    /* and the places of layers' pieces on their way, or WEFT_NO_BUF: of
                                   weights, of gradients, and those just reduced, taken in turn */
  uint32_t reduced[2], n_sent;
  enum weft_dtype reduce_dtype;
  struct weft_fsdp2_unit unit[];
};

static inline struct weft_fsdp2 *
weft_fsdp2 (const struct weft_step *s)
{
  return s->replicas->own;
}

/* Whether units are passed from the last to the first. */
static inline gboolean
weft_fsdp2_goes_back (const struct weft_step *s)
{
  return s->at.phase != WEFT_PHASE_FORWARD && s->at.phase != WEFT_PHASE_RECOMPUTE;
}

/* The one whose ops are being added. */
static inline struct weft_fsdp2_chunk *
weft_fsdp2_chunk (const struct weft_step *s)
{
  return &weft_fsdp2 (s)->chunk[s->at.chunk];
}

/* Views of all tensors of a unit in a buffer where they follow each other; WEFT_NO_BUF: none. */
void weft_fsdp2_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint32_t *view);

/* fsdp2_grads.c: before the first op; and the end of backward for one unit, whole gradients being
 * there (PyTorch's post_backward), if they are and its weights have done their work. */
void weft_fsdp2_start_grads (struct weft_step *s);
void weft_fsdp2_post_backward (struct weft_step *s, uint32_t k);

/* fsdp2_host.c: offload_policy.  The pieces of weights of a unit, in a buffer of the device; `before`
 * are ops that the copies wait for. */
void weft_fsdp2_start_host (struct weft_step *s);
uint32_t weft_fsdp2_fetch (struct weft_step *s, uint32_t k, const uint32_t *before,
                           uint32_t n_before);
/* Where a reduction leaves gradients that go to the host. */
uint32_t weft_fsdp2_send_buffer (struct weft_step *s, uint32_t k);
/* What a reduction left in `slice` goes to `to`; the host adds it to others if `adds`, which it waits
 * for as soon as weft_fsdp2_added() is called. */
void weft_fsdp2_send (struct weft_step *s, uint32_t k, uint32_t slice, uint32_t to, gboolean adds);
void weft_fsdp2_added (struct weft_step *s);
/* An op of the stream that gradients leave on follows them. */
void weft_fsdp2_follow_sent (struct weft_step *s);

/* The bucket of the head of a tied embedding that has a sum of its own. */
static inline uint32_t
weft_fsdp2_head (const struct weft_step *s)
{
  return s->params->layout.n_bucket;
}

/* Where what a reduction of unit k leaves is worked on.  Experts have no replicas of shards. */
static inline enum weft_lane
weft_fsdp2_slice_lane (const struct weft_step *s, uint32_t k)
{
  return s->mesh->instances > 1 && !weft_bucket_of_experts (s, k)
             ? weft_group_lane (weft_mesh_across (s->mesh))
             : WEFT_LANE_DP;
}

/* The weights of a unit are of no use for now. */
void weft_fsdp2_reshard (struct weft_step *s, uint32_t k);

/* What wrapper.c calls: struct weft_wrapper. */
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
