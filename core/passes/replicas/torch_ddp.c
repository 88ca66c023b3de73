/* PyTorch's DistributedDataParallel (DDP), from its second step on.
 *
 * Gradients and buckets have separate memory (gradient_as_bucket_view is off). In the last
 * microbatch each complete gradient is copied into a bucket and divided by the number of replicas.
 * A full bucket is all-reduced. After the backward pass the sums are copied back to the gradients.
 * PyTorch fills buckets in the order in which gradients became complete in the first step. In this
 * model of DDP that is the order of the backward pass, so buckets become full in the order of their
 * numbers. The first bucket is full at 1 MiB, the others at 25 MiB. Each model chunk of a stage is
 * wrapped separately, and the sums of a chunk are copied back when the last backward of the chunk
 * ends.
 *
 * Sources: torch/csrc/distributed/c10d/reducer.cpp (mark_variable_ready_dense, rebuild_buckets,
 * compute_bucket_assignment_by_size, finalize_bucket_dense), DDP's documentation
 * (bucket_cap_mb). */
#include "core/passes/replicas/buckets.h"

#define FIRST_BUCKET ((uint64_t) 1 << 20)
#define OTHER_BUCKETS ((uint64_t) 25 << 20)

struct torch_ddp {
  uint32_t n_bucket; /* number of buckets launched so far */
  uint32_t bucket;   /* number of the bucket buffer that is being filled, or WEFT_NO_BUF */
  uint32_t n_left;   /* number of tensors of the model chunk whose gradients are not complete */
  gboolean first;    /* TRUE: no bucket of the model chunk has been launched yet */
  uint32_t n_seen;   /* number of gradients that were copied into buckets */
  uint32_t n_back;   /* number of gradients that were copied back from buckets */
  struct {
    /* view: view of a bucket for the gradient; reduced: all-reduce of the bucket */
    uint32_t param, view, reduced;
  } seen[];
};

void
weft_torch_ddp_start (struct weft_step *s)
{
  struct torch_ddp *d =
      g_malloc0 (sizeof *d + weft_params_count (s) * sizeof (((struct torch_ddp *) NULL)->seen[0]));

  weft_ddp_start (s);
  d->bucket = WEFT_NO_BUF;
  s->replicas->own = d;
}

/* Reserves room for a gradient at the end of the current bucket, and returns a view of the room.
 * Buckets are permanent buffers, which become larger with every gradient. */
static uint32_t
add_view (struct weft_step *s, uint32_t param)
{
  struct torch_ddp *d = s->replicas->own;
  uint64_t size = weft_dtype_bytes (s->grad_dtype), n = s->replicas->sum[param].n;

  if (d->bucket == WEFT_NO_BUF)
    d->bucket = weft_step_permanent (s, WEFT_BUF_COMMUNICATION, s->grad_dtype, 0, "ddp_bucket");
  struct weft_buf *bucket = weft_build_buf_at (s->b, d->bucket);
  uint64_t start = bucket->bytes;
  bucket->bytes += n * size;
  return weft_params_view (s, param, d->bucket, start);
}

static void
copy (struct weft_step *s, uint32_t from, uint32_t to, uint64_t divisor, const char *name)
{
  weft_emit (s, WEFT_OP_CAST, name,
             WEFT_SHAPE (s->grad_dtype, weft_step_elements (s, from), 1, divisor),
             WEFT_USES (WEFT_R (from), WEFT_W (to)));
}

static void
launch (struct weft_step *s)
{
  struct torch_ddp *d = s->replicas->own;
  uint64_t n = weft_step_elements (s, d->bucket);
  uint32_t reduced =
      weft_ddp_collective (s, weft_ddp_row (s, WEFT_OP_ALL_REDUCE, "bucket", d->n_bucket++),
                           WEFT_SHAPE (s->grad_dtype, n), WEFT_USES (WEFT_RW (d->bucket)));

  for (uint32_t i = d->n_seen; i-- > 0 && d->seen[i].reduced == WEFT_NO_OP;)
    d->seen[i].reduced = reduced;
  d->bucket = WEFT_NO_BUF;
  d->first = FALSE;
}

static gboolean
is_full (const struct weft_step *s)
{
  const struct torch_ddp *d = s->replicas->own;

  return d->n_left == 0 ||
         weft_build_buf_at (s->b, d->bucket)->bytes >= (d->first ? FIRST_BUCKET : OTHER_BUCKETS);
}

/* Counts the gradients of a model chunk. They become complete in the chunk's last backward. Passes
 * of other chunks may run in between. */
static void
start_chunk (struct weft_step *s, uint32_t chunk)
{
  struct torch_ddp *d = s->replicas->own;

  d->first = TRUE;
  for (uint32_t i = 0; i < weft_params_count (s); i++)
    d->n_left += weft_param_at (s, i)->chunk == chunk;
}

void
weft_torch_ddp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad)
{
  struct torch_ddp *d = s->replicas->own;
  struct weft_op at = s->at;

  weft_sum_end (s, &s->replicas->sum[param], grad);
  if (!s->last_micro)
    return;
  if (d->n_left == 0)
    start_chunk (s, weft_param_at (s, param)->chunk);
  d->n_left--;
  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = weft_param_at (s, param)->layer;
  d->seen[d->n_seen].param = param;
  d->seen[d->n_seen].reduced = WEFT_NO_OP;
  d->seen[d->n_seen].view = add_view (s, param);
  copy (s, s->params->grad_view[param], d->seen[d->n_seen++].view,
        s->canonical ? 1 : weft_mesh_group_size (s->mesh, WEFT_GROUP_DP), "to_bucket");
  s->at.layer = WEFT_NO_LAYER;
  if (is_full (s))
    launch (s);
  s->at = at;
}

static void
copy_back (struct weft_step *s)
{
  struct torch_ddp *d = s->replicas->own;

  for (; d->n_back < d->n_seen; d->n_back++) {
    weft_next_kernel_waits_for (s, d->seen[d->n_back].reduced);
    copy (s, d->seen[d->n_back].view, s->params->grad_view[d->seen[d->n_back].param], 1,
          "from_bucket");
  }
}

/* After the last backward of a chunk, copies the chunk's all-reduced sums back to the gradients,
 * while other chunks may still run. If weight gradients are delayed, the chunk's gradients are not
 * complete at that time, and weft_torch_ddp_finish() copies the sums later. */
void
weft_torch_ddp_end_cell (struct weft_step *s)
{
  const struct torch_ddp *d = s->replicas->own;
  struct weft_op at = s->at;

  if (s->n_chunks == 1 || !s->last_micro || d->n_left > 0)
    return;
  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = WEFT_NO_LAYER;
  copy_back (s);
  s->at = at;
}

void
weft_torch_ddp_finish (struct weft_step *s)
{
  copy_back (s);
}
