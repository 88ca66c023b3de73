/* Tokens on their way to experts and back. */
#include "core/moe.h"

/* Counts of this rank's tokens, and the row of each. */
static void
sort (struct weft_step *s, struct weft_saved *saved, uint32_t prob)
{
  struct weft_moe z = weft_moe_sizes (s);

  saved->counts =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_INT64, z.experts * z.leaves, "counts");
  saved->row = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_INT32, z.sent, "row");
  weft_emit (s, WEFT_OP_MOE_SORT, "sort",
             WEFT_SHAPE (s->product_dtype, s->tokens, z.topk, z.experts, z.capacity),
             WEFT_USES (WEFT_R (saved->choice), WEFT_R (prob), WEFT_W (saved->counts),
                        WEFT_W (saved->row)));
}

/* A row for each of `each` experts of a thing: of a token, or of one of its weights. */
struct move {
  const char *name;
  uint64_t things, columns, each;
};

static uint32_t
permute (struct weft_step *s, const struct weft_saved *saved, const struct move *m, uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t y =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, z.sent * m->columns, m->name);

  weft_emit (s, WEFT_OP_MOE_PERMUTE, m->name,
             WEFT_SHAPE (s->product_dtype, m->things, m->columns, m->each, z.sent),
             WEFT_USES (WEFT_R (x), WEFT_R (saved->row), WEFT_W (y)));
  return y;
}

static uint32_t
unpermute (struct weft_step *s, const struct weft_saved *saved, const struct move *m, uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t choice = m->each > 1 ? saved->choice : WEFT_NO_BUF;
  uint32_t y =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, m->things * m->columns, m->name);

  weft_emit (s, WEFT_OP_MOE_UNPERMUTE, m->name,
             WEFT_SHAPE (s->product_dtype, m->things, m->columns, m->each, z.sent, z.experts),
             WEFT_USES (WEFT_R (x), WEFT_R (saved->row), WEFT_R (choice), WEFT_W (y)));
  return y;
}

static struct move
tokens (const struct weft_step *s, const char *name)
{
  return (struct move){ name, s->tokens, s->width.h, (uint64_t) s->model->moe_router_topk };
}

static struct move
weights (const struct weft_step *s, const char *name)
{
  return (struct move){ name, s->tokens * (uint64_t) s->model->moe_router_topk, 1, 1 };
}

void
weft_moe_dispatch (struct weft_step *s, struct weft_saved *saved, uint32_t prob)
{
  struct move token = tokens (s, "permute"), weight = weights (s, "permute_prob");

  sort (s, saved, prob);
  saved->xp = permute (s, saved, &token, saved->n2);
  saved->pp = permute (s, saved, &weight, prob);
}

uint32_t
weft_moe_combine (struct weft_step *s, const struct weft_saved *saved, uint32_t rows)
{
  struct move token = tokens (s, "unpermute");

  return unpermute (s, saved, &token, rows);
}

uint32_t
weft_moe_combine_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dy)
{
  struct move token = tokens (s, "unpermute");

  return permute (s, saved, &token, dy);
}

uint32_t
weft_moe_dispatch_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dxp)
{
  struct move token = tokens (s, "permute");

  return unpermute (s, saved, &token, dxp);
}

uint32_t
weft_moe_weights_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dpp)
{
  struct move weight = weights (s, "permute_prob");

  return unpermute (s, saved, &weight, dpp);
}
