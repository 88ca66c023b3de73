/* moe.h - private to layer/: layers of experts.
 *
 *   n2 -> router -> logits -> scores, choice, prob               moe.c
 *   n2, prob -> rows in the order of experts -> xp, pp           dispatch.c
 *   xp -> fc1 -> eu -> activation, times pp -> ea -> fc2         experts.c
 *   rows -> for each token the sum of its rows + shared experts  dispatch.c, moe.c
 *
 * A row is a token for one of its experts (kernels/moe.h).
 *
 * Kept for backward: scores (4 bytes for each token and expert), choice, row and counts; with
 * expert parallelism also how many rows went to each rank and return. For each row xp, pp, eu and
 * ea. Router weights multiply the activations; with moe_apply_probs_on_input they multiply the
 * input of fc1, and xw is kept too. A gate of shared experts keeps its logits and the output of the
 * shared experts. */
#pragma once
#include "core/passes/layer/block.h"

/* Sizes of a layer of experts on this rank. */
struct weft_moe {
  uint64_t experts, topk;
  uint64_t tokens;         /* that this rank sends to experts */
  uint64_t local;          /* experts on this rank, whole or in part */
  uint64_t sources;        /* ranks whose tokens they get */
  uint64_t inner;          /* ranks that have parts of the same experts: expert tensor parallel */
  uint64_t h;              /* columns of a token */
  uint64_t f, up;          /* columns of this rank's part of an expert: inside; output of fc1 */
  uint64_t leaves;         /* canonical: of this rank's tokens in a microbatch (kernels/sums.h) */
  uint64_t parts;          /* canonical: ranks that have one leaf together */
  uint64_t capacity;       /* rows that an expert takes of one source; 0: all */
  uint64_t sent;           /* rows of this rank's tokens */
  uint64_t got, rows;      /* rows that costs count: that arrive here; of this rank's experts */
  uint64_t got_room, room; /* rows that buffers have room for, likewise */
};
struct weft_moe weft_moe_sizes (const struct weft_step *s);

/* A buffer of `columns` for each row of this rank's experts. */
uint32_t weft_moe_rows (struct weft_step *s, enum weft_dtype dtype, uint64_t columns,
                        const char *name);

/* A buffer of `columns` for each token that this rank sends. */
uint32_t weft_moe_tokens (struct weft_step *s, uint64_t columns, const char *name);

/* The type of partial sums that expert tensor parallel ranks reduce. */
static inline enum weft_dtype
weft_moe_partial (const struct weft_step *s)
{
  return s->mesh->etp > 1 && s->canonical ? WEFT_FP32 : s->product_dtype;
}

/* Fixed capacity: rows from the start of one (expert, source) to the next. 0: rows follow each
 * other. */
static inline uint64_t
weft_moe_stride (const struct weft_step *s, const struct weft_moe *z)
{
  return s->strategy->moe_pad_expert_input_to_capacity ? z->capacity : 0;
}

/* moe.c: the sum of two activations. */
uint32_t weft_moe_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* dispatch.c: from choice and prob to row, counts, and the counts of rows to send and to
 * receive. */
void weft_moe_sort (struct weft_step *s, struct weft_saved *saved, uint32_t prob);

/* Rows of a tensor that has `things` entries and `each` rows for every entry: tokens, router
 * weights. */
struct weft_move {
  const char *name;
  uint64_t things, columns, each;
};
struct weft_move weft_rows_tokens (const struct weft_step *s, const char *name);
struct weft_move weft_rows_weights (const struct weft_step *s, const char *name);

/* pack: entries become rows in the order of experts. go: rows travel to the ranks of their experts.
 * arrive: they are grouped by expert. leave: they are grouped by source. return: they travel back.
 * unpack: each entry is the sum of its rows. */
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

/* Canonical order: ranks that hold the same experts and have other rows of the same sequences. How
 * many they are, their counts one after the other, the same counts by expert. weft_rows_of_peers()
 * all-gathers rows, grouped by expert. */
struct weft_peers {
  uint32_t n, came, counts;
};
struct weft_peers weft_rows_peers (struct weft_step *s, uint32_t counts);
uint32_t weft_rows_of_peers (struct weft_step *s, const struct weft_peers *p, struct weft_move m,
                             uint32_t x);

/* experts.c: from xp and pp to the output of fc2; from its gradient to that of xp, and of pp; the
 * weight gradient of one map. */
uint32_t weft_experts_forward (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_experts_backward (struct weft_step *s, struct weft_saved *saved, uint32_t dy,
                                uint32_t *dpp);
void weft_experts_gradient (struct weft_step *s, const struct weft_delayed *d);

/* gates.c: the input of fc1: xp, or with moe_apply_probs_on_input xp times router weights. From its
 * gradient to that of xp, and of pp. */
uint32_t weft_moe_weigh (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_moe_weigh_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                                  uint32_t *dpp);
/* Canonical order with expert tensor parallel: the gradient of a router weight needs the whole
 * gradient of the weighted input, of which ranks have parts. It is taken on the rank of the tokens,
 * when rows have returned. */
gboolean weft_moe_weighs_at_home (const struct weft_step *s);
uint32_t weft_moe_weigh_at_home (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                                 uint32_t *dpp);
/* The output of shared experts times their gate, if they have one. From its gradient to that of the
 * output; dn2 is the gate's part of the gradient of n2, or WEFT_NO_BUF. */
uint32_t weft_moe_gate (struct weft_step *s, struct weft_saved *saved, uint32_t y);
uint32_t weft_moe_gate_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dy,
                                 uint32_t *dn2);

/* balance.c: the bias that the current layer's router adds to scores, or WEFT_NO_BUF; counts chosen
 * experts. */
uint32_t weft_balance_bias (const struct weft_step *s);
void weft_balance_count (struct weft_step *s, uint32_t choice);
void weft_balance_free (struct weft_balance *balance);
