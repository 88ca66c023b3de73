/* Tokens on their way to experts and back.
 *
 *   sort      which row each (token, expert) is, experts in order, and how many each expert has
 *   permute   rows of tokens
 *
 * With experts on several ranks (Megatron-Core token_dispatcher.py, MoEAlltoAllTokenDispatcher):
 *
 *   counts    of all ranks are gathered; turned, this rank's experts have theirs: by expert, source
 *   wait      the host takes the counts before it enqueues what they say the size of, unless every
 *             expert has as many rows as its capacity
 *   exchange  rows go to the ranks of their experts, and arrive by source
 *   group     they are put by expert, and within an expert by source
 *
 * overlap_moe_expert_parallel_comm: rows go on a stream of their own, and wait for what they are made of
 * alone, not for all kernels that were enqueued before (combined.c).
 *
 * What experts made goes back the same way, and gradients both ways again.  Order within an expert is
 * that of the sources and their tokens: on one rank it would be the same. */
#include "core/passes/moe.h"

static gboolean
travels (const struct weft_step *s)
{
  return s->mesh->ep > 1;
}

static uint32_t
table (struct weft_step *s, uint64_t n, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_INT64, n, name);
}

/* Counts of this rank's tokens, and the row of each. */
static uint32_t
sort (struct weft_step *s, struct weft_saved *saved, uint32_t prob)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t counts = table (s, z.experts * z.leaves, "counts");

  saved->row = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_INT32, s->tokens * z.topk, "row");
  weft_emit (
      s, WEFT_OP_MOE_SORT, "sort",
      WEFT_SHAPE (s->product_dtype, s->tokens, z.topk, z.experts, z.capacity,
                  weft_moe_stride (s, &z) > 0),
      WEFT_USES (WEFT_R (saved->choice), WEFT_R (prob), WEFT_W (counts), WEFT_W (saved->row)));
  return counts;
}

/* ------------------------------------------------------------------- between ranks */

static uint32_t
meet (struct weft_step *s, enum weft_op_kind kind, const char *name, struct weft_shape shape,
      const struct weft_use *uses, uint32_t n_uses)
{
  struct weft_op row = {
    .kind = kind, .group = WEFT_GROUP_EP, .flags = s->at.flags, .name = weft_build_name (s->b, name)
  };
  gboolean aside = s->strategy->overlap_moe_expert_parallel_comm && weft_op_swaps (kind);
  uint32_t enqueued = aside ? WEFT_NO_OP : weft_build_last (s->b, WEFT_LANE_GPU);
  uint32_t op = weft_emit_on (s, WEFT_LANE_EP, row, shape, uses, n_uses);

  weft_build_dep (s->b, enqueued);
  weft_build_dep (s->b, s->synced);
  return op;
}

static uint32_t
turn (struct weft_step *s, uint32_t x, uint64_t a, uint64_t b, const char *name)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t y = table (s, a * b * z.leaves, name);

  weft_emit (s, WEFT_OP_MOE_TURN, name, WEFT_SHAPE (WEFT_INT64, a, b, z.leaves),
             WEFT_USES (WEFT_R (x), WEFT_W (y)));
  return y;
}

/* The part of a buffer that belongs to this rank's experts. */
static uint32_t
shard_of (struct weft_step *s, uint32_t buf)
{
  uint32_t shard = weft_build_view (s->b, buf, 0, weft_build_buf_at (s->b, buf)->bytes, "my_part");

  weft_build_buf_at (s->b, shard)->shard = WEFT_GROUP_EP;
  return shard;
}

/* This rank's counts become those of its experts, by expert and source, and again by source: what goes
 * back to each. */
static void
exchange_counts (struct weft_step *s, struct weft_saved *saved, uint32_t counts)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint64_t n = z.sources * z.experts * z.leaves;
  uint32_t all = table (s, n, "all_counts");

  meet (s, WEFT_OP_ALL_GATHER, "counts", WEFT_SHAPE (WEFT_INT64, n),
        WEFT_USES (WEFT_R (counts), WEFT_W (all)));
  uint32_t by_expert = turn (s, all, z.sources, z.experts, "by_expert");
  saved->counts = table (s, n / z.sources, "expert_counts");
  weft_emit (s, WEFT_OP_MOE_TURN, "expert_counts",
             WEFT_SHAPE (WEFT_INT64, 1, z.local * z.sources, z.leaves),
             WEFT_USES (WEFT_R (shard_of (s, by_expert)), WEFT_W (saved->counts)));
  saved->sent = counts;
  saved->back = turn (s, saved->counts, z.local, z.sources, "by_source");
  if (!weft_moe_stride (s, &z))
    weft_step_host_reads (s, "splits", saved->counts);
}

/* Rows of `columns` to the ranks where `send` says they belong. */
static uint32_t
exchange (struct weft_step *s, const char *name, uint32_t x, uint32_t send, uint64_t rows,
          uint64_t columns)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t y = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, rows * columns, name);

  if (weft_moe_stride (s, &z))
    meet (s, WEFT_OP_ALL_TO_ALL, name, WEFT_SHAPE (s->product_dtype, z.rows * columns),
          WEFT_USES (WEFT_R (x), WEFT_W (y)));
  else
    meet (s, WEFT_OP_ALL_TO_ALL_V, name, WEFT_SHAPE (s->product_dtype, z.rows * columns, columns),
          WEFT_USES (WEFT_R (x), WEFT_R (send), WEFT_W (y)));
  return y;
}

/* One expert's rows, or one source's, lie together anyhow. */
static uint32_t
regroup (struct weft_step *s, enum weft_op_kind kind, const struct weft_saved *saved, uint32_t x,
         uint64_t columns)
{
  struct weft_moe z = weft_moe_sizes (s);

  if (z.local == 1)
    return x;
  uint32_t y = weft_moe_rows (s, columns, "grouped");
  weft_emit (
      s, kind, weft_op_info[kind].word,
      WEFT_SHAPE (s->product_dtype, z.rows, columns, z.local, z.sources, weft_moe_stride (s, &z)),
      WEFT_USES (WEFT_R (saved->counts), WEFT_R (x), WEFT_W (y)));
  return y;
}

/* ------------------------------------------------------------------ there and back */

struct weft_move
weft_rows_tokens (const struct weft_step *s, const char *name)
{
  return (struct weft_move){ name, s->tokens, s->width.h, (uint64_t) s->model->moe_router_topk };
}

struct weft_move
weft_rows_weights (const struct weft_step *s, const char *name)
{
  return (struct weft_move){ name, s->tokens * (uint64_t) s->model->moe_router_topk, 1, 1 };
}

uint32_t
weft_rows_pack (struct weft_step *s, const struct weft_saved *saved, struct weft_move m, uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t y =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, z.sent * m.columns, m.name);

  weft_emit (s, WEFT_OP_MOE_PERMUTE, m.name,
             WEFT_SHAPE (s->product_dtype, m.things, m.columns, m.each, z.sent),
             WEFT_USES (WEFT_R (x), WEFT_R (saved->row), WEFT_W (y)));
  return y;
}

uint32_t
weft_rows_go (struct weft_step *s, const struct weft_saved *saved, struct weft_move m, uint32_t x)
{
  if (!travels (s))
    return x;
  return exchange (s, m.name, x, saved->sent, weft_moe_sizes (s).room, m.columns);
}

uint32_t
weft_rows_arrive (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                  uint32_t x)
{
  return travels (s) ? regroup (s, WEFT_OP_MOE_GROUP, saved, x, m.columns) : x;
}

uint32_t
weft_rows_leave (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                 uint32_t x)
{
  return travels (s) ? regroup (s, WEFT_OP_MOE_UNGROUP, saved, x, m.columns) : x;
}

uint32_t
weft_rows_return (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                  uint32_t x)
{
  if (!travels (s))
    return x;
  return exchange (s, m.name, x, saved->back, weft_moe_sizes (s).sent, m.columns);
}

uint32_t
weft_rows_unpack (struct weft_step *s, const struct weft_saved *saved, struct weft_move m,
                  uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t choice = m.each > 1 ? saved->choice : WEFT_NO_BUF;
  uint32_t y =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, m.things * m.columns, m.name);

  weft_emit (s, WEFT_OP_MOE_UNPERMUTE, m.name,
             WEFT_SHAPE (s->product_dtype, m.things, m.columns, m.each, z.sent, z.experts),
             WEFT_USES (WEFT_R (x), WEFT_R (saved->row), WEFT_R (choice), WEFT_W (y)));
  return y;
}

void
weft_moe_sort (struct weft_step *s, struct weft_saved *saved, uint32_t prob)
{
  uint32_t counts = sort (s, saved, prob);

  if (travels (s))
    exchange_counts (s, saved, counts);
  else
    saved->counts = counts;
}
