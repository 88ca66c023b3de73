/* moe.h - private to layer/: layers of experts (MoE layers).
 *
 *   n2 -> router -> logits -> scores, choice, prob               moe.c
 *   n2, prob -> rows in the order of experts -> xp, pp           dispatch.c
 *   xp -> fc1 -> eu -> activation, times pp -> ea -> fc2         experts.c
 *   rows -> for each token the sum of its rows + shared experts  dispatch.c, moe.c
 *
 * A row is a copy of a token for one of the token's experts (kernels/moe.h).
 *
 * Stored for backward: scores (4 bytes for each token and expert), choice, row and counts; with
 * expert parallelism also the numbers of rows sent and received; for each row xp, pp, eu and ea.
 * Router weights multiply the activations. With moe_apply_probs_on_input the router weights
 * multiply the input of fc1, and xw (the weighted input) is stored too. With a gate of shared
 * experts, the logits of the gate and the output of the shared experts are stored. */
#pragma once
#include "core/passes/layer/block.h"

/* Sizes of a layer of experts (MoE layer) on this rank. */
struct weft_moe {
  uint64_t experts, topk;
  uint64_t tokens;  /* number of tokens that this rank sends to experts */
  uint64_t local;   /* number of experts on this rank, whole or in part */
  uint64_t sources; /* number of ranks from which this rank's experts receive tokens */
  /* number of expert tensor parallel ranks, which have parts of the same experts */
  uint64_t inner;
  uint64_t h; /* hidden size, that is, number of elements of one token */
  /* widths of this rank's part of an expert. f: columns of fc2's input; up: columns of fc1's
   * output */
  uint64_t f, up;
  /* canonical order: number of leaves (partial sums of the tree, kernels/sums.h) of sums over this
   * rank's tokens */
  uint64_t leaves;
  uint64_t parts; /* in canonical order: number of ranks that share one leaf */
  /* largest number of rows that an expert accepts from one source rank; 0: no limit */
  uint64_t capacity;
  uint64_t sent; /* number of rows that this rank sends */
  /* expected row counts, with which costs are computed. got: number of rows that this rank
   * receives; rows: number of rows of this rank's experts */
  uint64_t got, rows;
  /* number of rows in the buffers for received rows (got_room) and for the experts' rows (room) */
  uint64_t got_room, room;
};
struct weft_moe weft_moe_sizes (const struct weft_step *s);

/* Returns a new buffer with `columns` elements for each row of this rank's experts. */
uint32_t weft_moe_rows (struct weft_step *s, enum weft_dtype dtype, uint64_t columns,
                        const char *name);

/* Returns a new buffer with `columns` elements for each token that this rank sends to experts. */
uint32_t weft_moe_tokens (struct weft_step *s, uint64_t columns, const char *name);

/* Returns the dtype of partial sums that expert tensor parallel ranks reduce. */
static inline enum weft_dtype
weft_moe_partial (const struct weft_step *s)
{
  return s->mesh->etp > 1 && s->canonical ? WEFT_FP32 : s->product_dtype;
}

/* With a fixed capacity: returns the number of rows between the starts of two consecutive (expert,
 * source) blocks of rows. Returns 0 without a fixed capacity, because blocks then follow each other
 * without gaps. */
static inline uint64_t
weft_moe_stride (const struct weft_step *s, const struct weft_moe *z)
{
  return s->strategy->moe_pad_expert_input_to_capacity ? z->capacity : 0;
}

/* moe.c: returns the sum of two activations of this rank's tokens, in a new buffer. */
uint32_t weft_moe_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* dispatch.c: computes `row` and `counts` of *saved, and with expert parallelism also `sent` and
 * `back`, the counts of rows to send and to receive. Reads saved->choice and the router weights
 * `prob`. */
void weft_moe_sort (struct weft_step *s, struct weft_saved *saved, uint32_t prob);

/* A tensor that is sent to experts as rows: tokens, or router weights. The tensor consists of
 * `things` entries. Every entry is sent as `each` rows of `columns` elements. weft_rows_tokens()
 * returns this description for tokens, weft_rows_weights() for router weights. */
struct weft_routed {
  const char *name;
  uint64_t things, columns, each;
};
struct weft_routed weft_rows_tokens (const struct weft_step *s, const char *name);
struct weft_routed weft_rows_weights (const struct weft_step *s, const char *name);

/* Functions that send tokens (or router weights) to experts and back. Each function returns a new
 * buffer, or x if nothing needs to change. pack: copies each token to its rows, in the order of
 * experts. go: sends rows to the ranks of their experts. arrive: groups the received rows by
 * expert. leave: reverses arrive, and groups rows by source rank. return: sends rows back to their
 * source ranks. unpack: adds the rows of each token. */
uint32_t weft_rows_pack (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m,
                         uint32_t x);
uint32_t weft_rows_go (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m,
                       uint32_t x);
uint32_t weft_rows_arrive (struct weft_step *s, const struct weft_saved *saved,
                           struct weft_routed m, uint32_t x);
uint32_t weft_rows_leave (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m,
                          uint32_t x);
uint32_t weft_rows_return (struct weft_step *s, const struct weft_saved *saved,
                           struct weft_routed m, uint32_t x);
uint32_t weft_rows_unpack (struct weft_step *s, const struct weft_saved *saved,
                           struct weft_routed m, uint32_t x);

/* Used in canonical order. Peers are the ranks that hold the same experts and have other rows of
 * the same sequences. n: number of peers. came: buffer with the peers' row counts, in the order of
 * peers. counts: these counts in the order of experts. weft_rows_of_peers() all-gathers the rows of
 * all peers, grouped by expert. */
struct weft_peers {
  uint32_t n, came, counts;
};
struct weft_peers weft_rows_peers (struct weft_step *s, uint32_t counts);
uint32_t weft_rows_of_peers (struct weft_step *s, const struct weft_peers *p, struct weft_routed m,
                             uint32_t x);

/* experts.c: runs the experts on the rows xp, with the router weights pp of these rows. Returns the
 * output of fc2. */
uint32_t weft_experts_forward (struct weft_step *s, struct weft_saved *saved);

/* Returns the gradient of xp, the experts' input rows. Sets *dpp to the gradient of the rows'
 * router weights pp. dy is the gradient of the output of fc2. */
uint32_t weft_experts_backward (struct weft_step *s, struct weft_saved *saved, uint32_t dy,
                                uint32_t *dpp);

/* Appends the weight gradient of one linear layer (fc1 or fc2) of the experts. */
void weft_experts_gradient (struct weft_step *s, const struct weft_delayed *d);

/* gates.c: returns the input of fc1, which is xp, or with moe_apply_probs_on_input xp times the
 * router weights. Backward returns the gradient of xp. With moe_apply_probs_on_input, backward also
 * sets *dpp to the gradient of pp, unless weft_moe_weighs_at_home() is TRUE. */
uint32_t weft_moe_weigh (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_moe_weigh_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                                  uint32_t *dpp);
/* Whether the gradient of router weights is computed on the rank of the tokens, after the rows have
 * returned from the experts. TRUE in canonical order with expert tensor parallelism. The reason:
 * the computation needs the whole gradient of the weighted input, but the experts' ranks have only
 * partial sums of this gradient. */
gboolean weft_moe_weighs_at_home (const struct weft_step *s);

/* Returns the gradient of the tokens in this rank's rows. dxw is the gradient of the weighted rows,
 * which the experts' ranks have sent back. Sets *dpp to the gradient of the router weights in these
 * rows. */
uint32_t weft_moe_weigh_at_home (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                                 uint32_t *dpp);
/* weft_moe_gate() returns y, the output of the shared experts, times the gate of the shared
 * experts. weft_moe_gate_backward() returns the gradient of y, and sets *dn2 to the gradient of n2
 * through the gate; dy is the gradient of the gated output. Without a gate the functions return y
 * and dy, and *dn2 is set to WEFT_NO_BUF. */
uint32_t weft_moe_gate (struct weft_step *s, struct weft_saved *saved, uint32_t y);
uint32_t weft_moe_gate_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dy,
                                 uint32_t *dn2);

/* balance.c: returns the buffer of the bias that the current layer's router adds to the scores of
 * experts. Returns WEFT_NO_BUF without such a bias. */
uint32_t weft_balance_bias (const struct weft_step *s);

/* Adds the chosen experts of the current layer to the counts of tokens per expert. */
void weft_balance_count (struct weft_step *s, uint32_t choice);
void weft_balance_free (struct weft_balance *balance);
