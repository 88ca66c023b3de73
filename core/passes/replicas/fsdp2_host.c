/* offload_policy of FSDP2. Shards of weights, gradients and moments are in host memory, and Adam
 * runs on the CPU (optimizer/finish.c). The device has only gathered units (layers, for example)
 * and shards that are being copied.
 *
 *   weights    Weights are copied shard by shard on lane h2d, in fp32, and converted on the device.
 *              The copies of a unit's shards wait for the previous copy-in (packing for the
 *              all-gather) and for all ops for which the unit's own copy-in waits.
 *   gradients  Gradients are copied shard by shard, after conversion to the dtype of stored
 *              gradients. The next reduction waits for these copies. From the second microbatch on,
 *              the host thread that enqueues ops waits for the copy and adds the copied shard to
 *              the stored gradient. Meanwhile this thread enqueues nothing.
 *   memory     A copy to memory that is not page-locked (offload_policy_pin_memory = false) blocks
 *              the host thread. Later kernels then wait until the copy has ended.
 *
 * The end of backward waits for all copies to the host.
 *
 * Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param.py (all_gather_inputs),
 * _fsdp_collectives.py (foreach_reduce), _fsdp_param_group.py (finalize_backward). */
#include "core/passes/replicas/fsdp2.h"

/* Returns a view of elements [first, first + n) of a slice, which are the shard of one
 * parameter. */
static uint32_t
piece_of (struct weft_step *s, uint32_t slice, uint64_t first, uint64_t n)
{
  const struct weft_buf row = *weft_build_buf_at (s->b, slice);
  uint64_t size = weft_dtype_bytes (row.dtype);
  gboolean owns = row.base == WEFT_NO_BUF;

  return weft_build_view (s->b, owns ? slice : row.base, (owns ? 0 : row.offset) + first * size,
                          n * size, "piece");
}

/* Returns the index of a parameter's first element in this rank's slice of the parameter's unit. */
static uint64_t
first_of (const struct weft_step *s, uint32_t param)
{
  const struct weft_layout_place *place = &s->params->layout.place[param];

  return place->start - s->params->layout.bucket[place->bucket].start;
}

void
weft_fsdp2_start_host (struct weft_step *s)
{
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_layout_place *place = &s->params->layout.place[i];
    weft_fsdp2 (s)->on_host[i] = piece_of (s, s->replicas->bucket[place->bucket].weight_shard,
                                           first_of (s, i), place->piece);
  }
}

/* Whether copies between host and device block the host thread, because host memory is not
 * page-locked. */
static gboolean
blocks (const struct weft_step *s)
{
  return !s->strategy->offload_policy_pin_memory;
}

/* Returns a device buffer for the shards of unit k. Units of layers share the buffer *standing if
 * their sizes are equal. The root unit and a tied output layer have new buffers. */
static uint32_t
room_of (struct weft_step *s, uint32_t k, uint32_t *standing, enum weft_dtype dtype,
         const char *name)
{
  const struct weft_fsdp2 *f = weft_fsdp2 (s);
  gboolean layer = k < f->n_unit && f->unit[k].layer != WEFT_NO_LAYER;
  uint32_t buf = layer ? *standing : WEFT_NO_BUF;

  if (buf != WEFT_NO_BUF && weft_step_elements (s, buf) == s->replicas->bucket[k].sum.n)
    return buf;
  buf = weft_step_buffer (s, WEFT_BUF_COMMUNICATION, dtype, s->replicas->bucket[k].sum.n, name);
  if (!layer)
    return buf;
  weft_build_buf_at (s->b, buf)->layer = WEFT_NO_LAYER;
  weft_build_buf_at (s->b, buf)->micro = WEFT_NO_MICRO;
  return *standing = buf;
}

/* Returns one of two send buffers in turn if shards have replicas (HSDP), otherwise always the same
 * one. With two buffers, the next reduce-scatter does not wait for the all-reduce between
 * replicas. */
uint32_t
weft_fsdp2_send_buffer (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  uint32_t turn = s->mesh->instances > 1 ? f->n_sent++ % 2 : 0;

  return room_of (s, k, &f->reduced[turn], f->reduce_dtype, "reduced");
}

uint32_t
weft_fsdp2_fetch (struct weft_step *s, uint32_t k, const uint32_t *before, uint32_t n_before)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  uint32_t device = room_of (s, k, &f->fetched, s->weight_dtype, "fetched_pieces");

  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    struct weft_host_copy copy = { "weights", device, f->on_host[i], first_of (s, i),
                                   s->params->layout.place[i].piece };
    if (s->params->layout.place[i].bucket != k)
      continue;
    weft_from_host (s, &copy);
    while (n_before > 0)
      weft_build_dep (s->b, before[--n_before]);
    weft_build_dep (s->b, f->copied_in);
    f->copied_in = WEFT_NO_OP;
  }
  if (blocks (s))
    weft_host_waits_for (s, weft_build_last (s->b, WEFT_LANE_H2D));
  return device;
}

/* Converts a slice of gradients to the dtype in which the host stores gradients. Returns `slice` if
 * it has this dtype. */
static uint32_t
convert (struct weft_step *s, uint32_t k, uint32_t slice)
{
  uint64_t n = s->replicas->bucket[k].sum.n;
  struct weft_shape shape = WEFT_SHAPE (weft_build_buf_at (s->b, slice)->dtype, n);
  struct weft_op row = { .kind = WEFT_OP_CAST, .name = weft_build_name (s->b, "grad_cast") };

  if (shape.dtype == s->main_dtype)
    return slice;
  shape.out_dtype = s->main_dtype;
  uint32_t wide = room_of (s, k, &weft_fsdp2 (s)->leaving, s->main_dtype, "leaving");
  weft_emit_on (s, weft_fsdp2_slice_lane (s, k), row, shape,
                WEFT_USES (WEFT_R (slice), WEFT_W (wide)));
  return wide;
}

static void
send_piece (struct weft_step *s, uint32_t from, uint32_t to, uint64_t first, uint64_t n)
{
  struct weft_host_copy copy = { "gradients", from, piece_of (s, to, first, n), first, n };

  weft_fsdp2 (s)->sent = weft_to_host (s, &copy);
}

void
weft_fsdp2_send (struct weft_step *s, uint32_t k, uint32_t slice, uint32_t to, gboolean adds)
{
  uint32_t from = convert (s, k, slice);

  if (k == weft_fsdp2_head (s))
    send_piece (s, from, to, 0, s->replicas->bucket[k].sum.n);
  for (uint32_t i = 0; i < weft_params_count (s); i++)
    if (s->params->layout.place[i].bucket == k)
      send_piece (s, from, to, first_of (s, i), s->params->layout.place[i].piece);
  if (adds || blocks (s))
    weft_host_waits_for (s, weft_fsdp2 (s)->sent);
}

void
weft_fsdp2_added (struct weft_step *s)
{
  uint32_t newest = weft_build_last (s->b, WEFT_LANE_HOST);

  if (newest != WEFT_NO_OP)
    weft_next_kernel_waits_for (s, newest);
}

void
weft_fsdp2_follow_sent (struct weft_step *s)
{
  weft_build_dep (s->b, weft_fsdp2 (s)->sent);
}
