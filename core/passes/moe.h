/* moe.h - layers of experts.
 *
 *   n2 -> router -> logits -> scores, choice, prob      moe.c
 *   n2, prob -> rows by expert -> xp, pp                dispatch.c
 *   xp -> fc1 -> eu -> activation, times pp -> ea -> fc2   experts.c
 *   rows -> sum of each token's -> + shared experts     dispatch.c, moe.c
 *
 * Kept for backward: scores (4 bytes for each token and expert), choice, row and counts (with experts on
 * several ranks: of its experts, and how many rows went to each rank and go back), and for each
 * row xp, pp, eu and ea; what fc2 makes is only added, for weights of tokens go with the activations.
 *
 * A row is a token for one of its experts (kernels/moe.h). */
#pragma once
#include "core/passes/step.h"

/* Sizes of a layer of experts on this rank. */
struct weft_moe {
  uint64_t experts, topk;
  uint64_t local;     /* experts of this rank */
  uint64_t sources;   /* ranks whose tokens they get */
  uint64_t h, f, up;  /* columns: of a token, inside an expert, of what fc1 makes */
  uint64_t leaves;    /* of the tokens of a microbatch: kernels/sums.h */
  uint64_t capacity;  /* rows that an expert takes of a source; 0: all */
  uint64_t sent;      /* rows of this rank's tokens */
  uint64_t rows;      /* of this rank's experts, as costs count them */
  uint64_t room;      /* and as buffers have room for */
};
struct weft_moe weft_moe_sizes (const struct weft_step *s);

/* A buffer of `columns` for each row that this rank's experts have room for. */
uint32_t weft_moe_rows (struct weft_step *s, uint64_t columns, const char *name);

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

/* experts.c: fills eu and ea from xp and pp, and returns what fc2 makes; from the gradient of that to
 * those of xp, which is returned, and of pp. */
uint32_t weft_experts_forward (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_experts_backward (struct weft_step *s, struct weft_saved *saved, uint32_t dy,
                                uint32_t *dpp);
void weft_experts_gradient (struct weft_step *s, const struct weft_delayed *d);
