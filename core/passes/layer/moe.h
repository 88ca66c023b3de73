/* moe.h - layers of experts.
 *
 *   n2 -> router -> logits -> scores, choice, prob      moe.c
 *   n2, prob -> rows by expert -> xp, pp                dispatch.c
 *   xp -> fc1 -> eu -> activation, times pp -> ea -> fc2   experts.c
 *   rows -> sum of each token's -> + shared experts     dispatch.c, moe.c
 *
 * Kept for backward: scores (4 bytes for each token and expert), choice, row and counts (with experts on
 * several ranks: of its experts, and how many rows went to each rank and go back), and for each
 * row xp, pp, eu and ea; what fc2 makes is only added, for weights of tokens go with the activations, or with
 * moe_apply_probs_on_input with what fc1 takes, xw.  A gate of shared experts keeps what these made, and its
 * logits.
 *
 * A row is a token for one of its experts (kernels/moe.h). */
#pragma once
#include "core/passes/layer/block.h"

/* Sizes of a layer of experts on this rank. */
struct weft_moe {
  uint64_t experts, topk;
  uint64_t tokens;    /* that this rank sends to their experts */
  uint64_t local;     /* experts of this rank, or that it has a part of */
  uint64_t sources;   /* ranks whose tokens they get */
  uint64_t inner;     /* of these, neighbours that have parts of the same experts */
  uint64_t h, f, up;  /* columns: of a token; of this rank's part of an expert inside, of what its fc1
                         makes */
  uint64_t leaves;    /* of a rank's tokens of a microbatch: kernels/sums.h */
  uint64_t parts;     /* ranks that have one leaf together */
  uint64_t capacity;  /* rows that an expert takes of a source; 0: all */
  uint64_t sent;      /* rows of this rank's tokens */
  uint64_t got;       /* that come to this rank, as costs count them, before neighbours share them */
  uint64_t rows;      /* of this rank's experts */
  uint64_t got_room, room; /* and as buffers have room for */
};
struct weft_moe weft_moe_sizes (const struct weft_step *s);

/* A buffer of `columns` for each row that this rank's experts have room for. */
uint32_t weft_moe_rows (struct weft_step *s, enum weft_dtype dtype, uint64_t columns,
                        const char *name);

/* The same for each token that this rank sends. */
uint32_t weft_moe_tokens (struct weft_step *s, uint64_t columns, const char *name);

/* The type of sums that ranks have parts of which share experts out. */
static inline enum weft_dtype
weft_moe_partial (const struct weft_step *s)
{
  return s->mesh->etp > 1 && s->canonical ? WEFT_FP32 : s->product_dtype;
}

/* The rows of a source and an expert begin so many apart, or follow each other: 0. */
static inline uint64_t
weft_moe_stride (const struct weft_step *s, const struct weft_moe *z)
{
  return s->strategy->moe_pad_expert_input_to_capacity ? z->capacity : 0;
}

/* moe.c: a sum of two products. */
uint32_t weft_moe_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b);

/* dispatch.c: fills row, counts and what rows need to travel, from choice and prob. */
void weft_moe_sort (struct weft_step *s, struct weft_saved *saved, uint32_t prob);

/* Rows that travel: `each` of a thing, of a token or of one of its weights. */
struct weft_move {
  const char *name;
  uint64_t things, columns, each;
};
struct weft_move weft_rows_tokens (const struct weft_step *s, const char *name);
struct weft_move weft_rows_weights (const struct weft_step *s, const char *name);

/* Things become rows in the order of experts, go to the ranks of these and are put by expert; there they
 * are put by source, return, and become things again: the sum of their rows. */
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

/* Ranks that hold the same experts and have other rows of the same sequences: how many, their counts one
 * after the other, and by expert.  From a rank's rows, by expert, to those of all of them. */
struct weft_peers {
  uint32_t n, came, counts;
};
struct weft_peers weft_rows_peers (struct weft_step *s, uint32_t counts);
uint32_t weft_rows_of_peers (struct weft_step *s, const struct weft_peers *p, struct weft_move m,
                             uint32_t x);

/* experts.c: fills eu and ea from xp and pp, and returns what fc2 makes; from the gradient of that to
 * those of xp, which is returned, and of pp. */
uint32_t weft_experts_forward (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_experts_backward (struct weft_step *s, struct weft_saved *saved, uint32_t dy,
                                uint32_t *dpp);
void weft_experts_gradient (struct weft_step *s, const struct weft_delayed *d);

/* gates.c: what experts take of xp, which is that itself without moe_apply_probs_on_input; from its
 * gradient to that of xp, and then of pp. */
uint32_t weft_moe_weigh (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_moe_weigh_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                                  uint32_t *dpp);
/* In canonical order the gradient of a weight is taken of the whole gradient of what was weighed, of which
 * ranks that share experts out have parts: where the tokens are at home, when it has come back.  From that to
 * the gradient of rows of tokens. */
gboolean weft_moe_weighs_at_home (const struct weft_step *s);
uint32_t weft_moe_weigh_at_home (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                                 uint32_t *dpp);
/* What shared experts made, behind their gate if they have one; from its gradient to that before it, and
 * to the gate's part of that of n2, or WEFT_NO_BUF. */
uint32_t weft_moe_gate (struct weft_step *s, struct weft_saved *saved, uint32_t y);
uint32_t weft_moe_gate_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dy,
                                 uint32_t *dn2);

/* balance.c: a step begins; the bias that the router of the current layer chooses by, or WEFT_NO_BUF; what it
 * chose is counted; and when gradients are complete, biases follow. */
uint32_t weft_balance_bias (const struct weft_step *s);
void weft_balance_count (struct weft_step *s, uint32_t choice);
void weft_balance_free (struct weft_balance *balance);
