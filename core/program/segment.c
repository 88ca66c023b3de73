#include "core/program/segment.h"

gboolean
weft_param_segment (const struct weft_param *param, uint64_t first, uint64_t n,
                    struct weft_segment *out)
{
  uint64_t numel = param->rows * param->columns, piece = param->piece ? param->piece : numel;
  uint64_t skipped = 0, start = param->start;

  if (param->piece && first > start + piece - 1) {
    uint64_t r = (first - start - piece) / param->stride + 1;
    skipped = r * piece;
    start += r * param->stride;
  }
  if (skipped >= numel)
    return FALSE;
  uint64_t begin = MAX (first, start);
  uint64_t end = MIN (first + n, start + MIN (piece, numel - skipped));
  *out = (struct weft_segment){ .start = skipped + begin - start,
                                .offset = begin - first,
                                .n = end - begin };
  return begin < end;
}

/* In the layout of Megatron-Core parameters lie in reverse registration order. This loop therefore
 * visits the parameters by rising address. */
uint32_t
weft_segments (const weft_program *p, uint64_t first, uint64_t n, struct weft_segment *out)
{
  uint32_t n_out = 0;

  for (uint32_t i = p->n_param; i-- > 0;) {
    if (!weft_param_segment (&p->param[i], first, n, &out[n_out]))
      continue;
    out[n_out++].param = i;
  }
  return n_out;
}

/* Index of the first element of a bucket in the flat buffers. A bucket begins with its first
 * tensor, except if the distributed optimizer deals out whole tensors (Muon): then the first slice
 * may be empty, and the place follows from that of the bucket's weights, which the rank has
 * whole. */
static uint64_t
bucket_start (const weft_program *p, uint32_t bucket, const struct weft_slice *slice)
{
  const struct weft_buf *weights = &p->buf[slice->weight];
  uint64_t start = UINT64_MAX;

  for (uint32_t i = 0; i < p->n_param && slice->rule == WEFT_MUON; i++)
    if (p->param[i].bucket == bucket)
      return p->param[i].start - (p->buf[p->param[i].weight].offset - weights->offset) /
                                     weft_dtype_bytes (weights->dtype);
  for (uint32_t i = 0; i < p->n_param; i++)
    if (p->param[i].bucket == bucket)
      start = MIN (start, p->param[i].start);
  return start;
}

static const struct weft_use *
uses_of (const weft_program *p, uint32_t op)
{
  return &p->uses[p->op[op].uses];
}

/* Returns the buffer that another op than adam computes from the master weights: fp8 weights, or
 * the bf16 values from which fp8 weights are quantised. Returns WEFT_NO_BUF if adam itself writes
 * the weights. */
static uint32_t
made_of (const weft_program *p, uint32_t master)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if ((p->op[op].kind == WEFT_OP_QUANTISE || p->op[op].kind == WEFT_OP_CAST) &&
        uses_of (p, op)[0].buf == master)
      return uses_of (p, op)[p->op[op + 1].uses - p->op[op].uses - 1].buf;
  return WEFT_NO_BUF;
}

/* The op after `op` that copies host buffer `host` to the device, or WEFT_NO_OP. */
static uint32_t
copy_back (const weft_program *p, uint32_t op, uint32_t host)
{
  for (uint32_t i = op + 1; i < p->n_op; i++)
    if (p->op[i].kind == WEFT_OP_FROM_HOST && uses_of (p, i)[0].buf == host)
      return i;
  return WEFT_NO_OP;
}

/* Returns the device buffer from which an op before `op` copied host buffer `host`, possibly after
 * a cast. Returns `host` if no op did. */
static uint32_t
origin_of (const weft_program *p, uint32_t op, uint32_t host)
{
  uint32_t buf = host;

  while (op-- > 0) {
    enum weft_op_kind kind = p->op[op].kind;
    if ((kind != WEFT_OP_CAST && kind != WEFT_OP_TO_HOST) || uses_of (p, op)[1].buf != buf)
      continue;
    buf = uses_of (p, op)[0].buf;
    if (kind == WEFT_OP_TO_HOST)
      return buf;
  }
  return host;
}

/* Whether the content of a buffer is kept from one training step to the next. */
static gboolean
is_kept (const weft_program *p, uint32_t buf)
{
  return p->buf[weft_buf_owner (p, buf)].permanent;
}

/* The buffers of an Adam op. If the host updates the weights, `weight` is the device buffer to
 * which the updated weights are copied. */
static struct weft_slice
buffers_of (const weft_program *p, uint32_t op)
{
  const struct weft_use *use = uses_of (p, op);
  struct weft_slice slice = { .grad = use[0].buf,
                              .weight =
                                  use[2].buf == WEFT_NO_BUF ? made_of (p, use[3].buf) : use[2].buf,
                              .master = use[3].buf,
                              .m = use[4].buf,
                              .v = use[5].buf,
                              .m_scale = WEFT_NO_BUF,
                              .v_scale = WEFT_NO_BUF,
                              .reduced = use[0].buf,
                              .copy = WEFT_NO_BUF };

  if (p->op[op].kind == WEFT_OP_ADAM_8BIT) {
    slice.rule = WEFT_ADAMW_8BIT;
    slice.m_scale = use[6].buf;
    slice.v_scale = use[7].buf;
  }
  slice.n = p->buf[slice.m].bytes / weft_dtype_bytes (p->buf[slice.m].dtype);
  uint32_t back = p->op[op].lane == WEFT_LANE_HOST ? copy_back (p, op, slice.weight) : WEFT_NO_OP;
  if (back == WEFT_NO_OP)
    return slice;
  slice.reduced = origin_of (p, op, slice.grad);
  slice.copy = is_kept (p, slice.weight) ? slice.weight : WEFT_NO_BUF;
  slice.weight = uses_of (p, back)[1].buf;
  slice.part = weft_op_shape (p, back)->dim[1];
  return slice;
}

/* The buffers of a bucket that Muon updates. `op` adds gradients to its momentum; the next
 * muon_update writes weights of the bucket. */
static struct weft_slice
buffers_of_muon (const weft_program *p, uint32_t op)
{
  const struct weft_use *use = uses_of (p, op), *update = use;

  for (uint32_t i = op + 1; update == use; i++)
    if (p->op[i].kind == WEFT_OP_MUON_UPDATE)
      update = uses_of (p, i);
  return (struct weft_slice){ .grad = use[0].buf,
                              .reduced = use[0].buf,
                              .weight = update[2].buf,
                              .master = update[3].buf,
                              .m = use[2].buf,
                              .v = WEFT_NO_BUF,
                              .m_scale = WEFT_NO_BUF,
                              .v_scale = WEFT_NO_BUF,
                              .rule = WEFT_MUON,
                              .copy = WEFT_NO_BUF,
                              .n = p->buf[use[2].buf].bytes / weft_dtype_bytes (WEFT_FP32) };
}

/* Number of the optimizer slice that a rank owns. Slices of expert weights are divided among the
 * ranks that hold the same experts, other slices among all data parallel ranks. */
static uint32_t
slot_of (const struct weft_mesh *mesh, const struct weft_buf *weight, uint32_t rank)
{
  enum weft_group_kind sharing = weft_mesh_expert_sharing (mesh);

  if (weight->shard == sharing || weight->slice == sharing)
    return weft_mesh_expert_slot (mesh, weft_mesh_place (mesh, rank, WEFT_GROUP_EDP).at);
  return weft_mesh_slot (mesh, weft_mesh_place (mesh, rank, WEFT_GROUP_DP).at);
}

static void
set_place (const weft_program *p, const struct weft_mesh *mesh, uint32_t bucket, uint32_t rank,
           struct weft_slice *slice)
{
  const struct weft_buf *weight = &p->buf[slice->weight];
  uint32_t shards = weft_mesh_group_size (mesh, weight->shard), slot = slot_of (mesh, weight, rank);
  uint64_t n = weight->bytes / weft_dtype_bytes (weight->dtype) / shards;
  uint64_t before = weight->shard || weight->slice ? slot * n : 0;
  uint64_t first = bucket_start (p, bucket, slice) + before;

  slice->flat = first - slot % shards * n;
  slice->first = first + slice->part;
}

static gint
compare_slices (gconstpointer a, gconstpointer b)
{
  const struct weft_slice *x = a, *y = b;
  return (x->first > y->first) - (x->first < y->first);
}

/* Adam ops are in the order of buckets. The first Adam op of a bucket updates the beginning of the
 * rank's slice, so slice.part is 0. */
struct weft_slice *
weft_slices (const weft_program *p, const struct weft_mesh *mesh, uint32_t rank, uint32_t *n)
{
  GArray *slices = g_array_new (FALSE, FALSE, sizeof (struct weft_slice));

  for (uint32_t op = 0, bucket = (uint32_t) -1; op < p->n_op; op++) {
    gboolean muon = p->op[op].kind == WEFT_OP_MUON_MOMENTUM;
    if (!muon && p->op[op].kind != WEFT_OP_ADAM && p->op[op].kind != WEFT_OP_ADAM_8BIT)
      continue;
    struct weft_slice slice = (muon ? buffers_of_muon : buffers_of) (p, op);
    bucket += slice.part == 0;
    set_place (p, mesh, bucket, rank, &slice);
    g_array_append_val (slices, slice);
  }
  g_array_sort (slices, compare_slices);
  *n = slices->len;
  return (struct weft_slice *) (void *) g_array_free (slices, FALSE);
}
