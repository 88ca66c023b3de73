/* Hybrid sharding of Megatron-FSDP: there are several copies of the shards (instances), and each
 * instance divides the weights among its own ranks.
 *
 * no_shard: after the last microbatch, the ranks with equal slices all-reduce the gradients of the
 * slice, and all of them compute equal updates (HSDP).
 *
 * optim: the ranks with equal slices reduce-scatter the gradients of the slice, and each rank
 * updates a part of the slice. The slice is all-gathered before its first use in the next step
 * (HFSDP).
 *
 * These collectives run on a separate lane, after the reductions inside an instance. */
#include "core/passes/replicas/fsdp.h"

/* Whether the instances (copies of the shards) also divide the optimizer state of a slice among
 * themselves (HFSDP). */
static gboolean
is_cut_again (const struct weft_step *s)
{
  return s->mesh->outer_slices > 1;
}

uint32_t
weft_outer_owned (struct weft_step *s, uint32_t slice)
{
  const struct weft_buf *row = weft_build_buf_at (s->b, slice);

  if (!is_cut_again (s))
    return slice;
  uint32_t base = row->base == WEFT_NO_BUF ? slice : row->base;
  uint64_t offset = row->base == WEFT_NO_BUF ? 0 : row->offset;
  uint32_t owned = weft_build_view (s->b, base, offset, row->bytes, "shard");
  weft_build_buf_at (s->b, owned)->shard = WEFT_GROUP_OUTER;
  return owned;
}

static struct weft_op
row_of (struct weft_step *s, enum weft_op_kind kind, const char *name, uint32_t k, uint8_t flags)
{
  struct weft_op row = weft_ddp_row (s, kind, name, k);

  row.flags = flags;
  weft_ddp_go_across (s, &row);
  return row;
}

void
weft_outer_gather (struct weft_step *s, uint32_t k, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];

  if (!is_cut_again (s) || state->outer_gathered)
    return;
  state->outer_gathered = TRUE;
  weft_ddp_collective (s, row_of (s, WEFT_OP_ALL_GATHER, "outer gather", k, flags),
                       WEFT_SHAPE (weft_step_flat (s, k)->dtype, weft_fsdp_slice_size (s, k)),
                       WEFT_USES (WEFT_R (state->weight_shard), WEFT_W (state->weight_slice)));
}

void
weft_outer_reduce (struct weft_step *s, uint32_t k, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];
  uint64_t n = weft_fsdp_slice_size (s, k);

  if (s->mesh->instances == 1)
    return;
  if (!is_cut_again (s)) {
    weft_ddp_across (s, k, n, flags);
    return;
  }
  state->reduced = weft_ddp_collective (
      s, row_of (s, WEFT_OP_REDUCE_SCATTER, "outer", k, flags), WEFT_SHAPE (s->grad_dtype, n),
      WEFT_USES (WEFT_RW (state->grad_slice), WEFT_W (state->grad_shard)));
}
