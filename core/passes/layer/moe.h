/* moe.h - private to layer/: layers of experts.
 *
 *   n2 -> router -> logits -> scores, choice, prob               moe.c
 *   n2, prob -> rows in the order of experts -> xp, pp           dispatch.c
 *   xp -> fc1 -> eu -> activation, times pp -> ea -> fc2         experts.c
 *   rows -> for each token the sum of its rows + shared experts  dispatch.c, moe.c
 *
 * A row is a token for one of its experts (kernels/moe.h).
 *
 * Stored for backward: scores (4 bytes for each token and expert), choice, row and counts; with
 * expert parallelism also the numbers of rows sent and received; for each row xp, pp, eu and ea.
 * Router weights multiply the activations. With moe_apply_probs_on_input they multiply the input of
 * fc1, and xw is stored too. With a gate of shared experts, the logits of the gate and the output
 * of the shared experts are stored. */
#pragma once
#include "core/passes/layer/block.h"

/* Sizes of a layer of experts on this rank. */
struct weft_moe {
  uint64_t experts, topk;
  uint64_t tokens;         /* tokens that this rank sends to experts */
  uint64_t local;          /* experts on this rank, whole or in part */
  uint64_t sources;        /* ranks whose tokens these experts receive */
  uint64_t inner;          /* expert tensor parallel ranks, which have parts of the same experts */
  uint64_t h;              /* columns of a token */
  uint64_t f, up;          /* columns of this rank's part of an expert: f: input of fc2; up: output
                            * of fc1 */
  uint64_t leaves;         /* canonical: leaves of sums over this rank's tokens (kernels/sums.h) */
  uint64_t parts;          /* canonical: ranks that share one leaf */
  uint64_t capacity;       /* limit of rows of an expert from one source; 0: no limit */
  uint64_t sent;           /* rows that this rank sends */
  uint64_t got, rows;      /* numbers of rows that costs assume: rows received by this rank; rows of
                            * this rank's experts */
  uint64_t got_room, room; /* rows of the buffers for `got` and for `rows` */
};
struct weft_moe weft_moe_sizes (const struct weft_step *s);

/* Returns a new buffer with `columns` elements for each row of this rank's experts. */
uint32_t weft_moe_rows (struct weft_step *s, enum weft_dtype dtype, uint64_t columns,
                        const char *name);

/* Returns a new buffer with `columns` elements for each token that this rank sends. */
uint32_t weft_moe_tokens (struct weft_step *s, uint64_t columns, const char *name);

/* Returns the type of partial sums that expert tensor parallel ranks reduce. */
static inline enum weft_dtype
weft_moe_partial (const struct weft_step *s)
{
  return s->mesh->etp > 1 && s->canonical ? WEFT_FP32 : s->product_dtype;
}

/* Fixed capacity: returns the number of rows from the start of one (expert, source) to the start of
 * the next. Returns 0 if the capacity is not fixed, because rows then follow each other without
 * gaps. */
static inline uint64_t
weft_moe_stride (const struct weft_step *s, const struct weft_moe *z)
{
  return s->strategy->moe_pad_expert_input_to_capacity ? z->capacity : 0;
}

/* moe.c: returns the sum of two activations of this rank's tokens in a new buffer. */
uint32_t weft_moe_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* dispatch.c: computes row and counts of `saved`, and with expert parallelism also sent and back,
 * the counts of rows to send and to receive. Reads `choice` of `saved` and the router weights
 * `prob`. */
void weft_moe_sort (struct weft_step *s, struct weft_saved *saved, uint32_t prob);

/* A tensor whose entries are sent to experts as rows. The tensor has `things` entries; every entry
 * is sent as `each` rows of `columns` elements. weft_rows_tokens() describes tokens,
 * weft_rows_weights() router weights. */
struct weft_move {
  const char *name;
  uint64_t things, columns, each;
};
struct weft_move weft_rows_tokens (const struct weft_step *s, const char *name);
struct weft_move weft_rows_weights (const struct weft_step *s, const char *name);

/* Each function returns a new buffer, or x if x needs no change. pack: copies entries to rows in
 * the order of experts. go: sends rows to the ranks of their experts. arrive: groups the received
 * rows by expert. leave: reverses arrive, and groups rows by source. return: sends rows back.
 * unpack: adds the rows of each entry. */
uint32_t weft_rows_pack (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                         uint32_t x);
uint32_t weft_rows_go (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                       uint32_t x);
uint32_t weft_rows_arrive (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                           uint32_t x);
uint32_t weft_rows_leave (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                          uint32_t x);
uint32_t weft_rows_return (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                           uint32_t x);
uint32_t weft_rows_unpack (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                           uint32_t x);

/* Canonical order: peers are the ranks that hold the same experts and have other rows of the same
 * sequences. n: number of peers; came: buffer with the row counts of the peers, in the order of
 * peers; counts: the same counts in the order of experts. weft_rows_of_peers() all-gathers the
 * rows of all peers, grouped by expert. */
struct weft_peers {
  uint32_t n, came, counts;
};
struct weft_peers weft_rows_peers (struct weft_step *s, uint32_t counts);
uint32_t weft_rows_of_peers (struct weft_step *s, const struct weft_peers *p, struct weft_move m,
                             uint32_t x);

/* experts.c: runs the experts on the rows xp and their router weights pp. Returns the output of
 * fc2. */
uint32_t weft_experts_forward (struct weft_step *s, struct weft_saved *saved);

/* Returns the gradient of xp, and sets *dpp to the gradient of pp. dy is the gradient of the output
 * of fc2. */
uint32_t weft_experts_backward (struct weft_step *s, struct weft_saved *saved, uint32_t dy,
                                uint32_t *dpp);

/* Appends the weight gradient of one map of the experts. */
void weft_experts_gradient (struct weft_step *s, const struct weft_delayed *d);

/* gates.c: returns the input of fc1: xp, or with moe_apply_probs_on_input xp times router weights.
 * Backward returns the gradient of xp. With moe_apply_probs_on_input backward also sets *dpp to the
 * gradient of pp, unless weft_moe_weighs_at_home(). */
uint32_t weft_moe_weigh (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_moe_weigh_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                                  uint32_t *dpp);
/* Canonical order with expert tensor parallel: whether the gradient of router weights is computed
 * on the rank of the tokens, after the rows have returned. The computation needs the whole gradient
 * of the weighted input, but expert ranks have only partial sums of this gradient. */
gboolean weft_moe_weighs_at_home (const struct weft_step *s);

/* Returns the gradient of the tokens in this rank's rows, from the returned rows dxw, and sets *dpp
 * to the gradient of the router weights in these rows. */
uint32_t weft_moe_weigh_at_home (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                                 uint32_t *dpp);
/* Returns the output y of shared experts times their gate, or y if they have no gate. Backward
 * returns the gradient of y, and sets *dn2 to the gradient of n2 through the gate, or to
 * WEFT_NO_BUF. */
uint32_t weft_moe_gate (struct weft_step *s, struct weft_saved *saved, uint32_t y);
uint32_t weft_moe_gate_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dy,
                                 uint32_t *dn2);

/* balance.c: returns the buffer of the bias that the current layer's router adds to scores, or
 * WEFT_NO_BUF. */
uint32_t weft_balance_bias (const struct weft_step *s);

/* Counts the chosen experts of the current layer. */
void weft_balance_count (struct weft_step *s, uint32_t choice);
void weft_balance_free (struct weft_balance *balance);
