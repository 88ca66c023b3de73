/* Appends ops and buffers to the program, and stores the dependencies that the next ops will
 * have. */
#include "core/passes/emit/stream.h"
#include <string.h>

uint32_t
weft_step_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                  uint64_t elements, const char *name)
{
  struct weft_buf row = { .bytes = elements * weft_dtype_bytes (dtype),
                          .base = WEFT_NO_BUF,
                          .name = weft_build_name (s->b, name),
                          .layer = s->at.layer,
                          .micro = s->at.micro,
                          .kind = kind,
                          .pool = WEFT_POOL_DEVICE,
                          .dtype = dtype };
  return weft_build_buf (s->b, &row);
}

uint32_t
weft_step_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                     uint64_t elements, const char *name)
{
  uint32_t buf = weft_step_buffer (s, kind, dtype, elements, name);

  weft_build_buf_at (s->b, buf)->permanent = 1;
  weft_build_buf_at (s->b, buf)->layer = WEFT_NO_LAYER;
  weft_build_buf_at (s->b, buf)->micro = WEFT_NO_MICRO;
  return buf;
}

uint64_t
weft_step_elements (const struct weft_step *s, uint32_t buf)
{
  const struct weft_buf *row = weft_build_buf_at (s->b, buf);

  return row->bytes / weft_dtype_bytes (row->dtype);
}

static uint32_t
append (struct weft_step *s, const struct weft_op *row, struct weft_shape shape,
        const struct weft_use *uses, uint32_t n_uses)
{
  gboolean held = weft_timer_holds (s, row->lane);
  uint32_t op = weft_build_op (s->b, row, &shape);

  if (held)
    weft_build_dep (s->b, s->stream->timed);
  for (uint32_t u = 0; u < n_uses; u++)
    weft_build_use (s->b, uses[u].buf, uses[u].read, uses[u].write);
  return op;
}

/* Adds dependencies to the first kernel after a pipeline exchange. The kernel waits for the
 * exchange; with batch_p2p_sync, it waits for all lanes. */
static void
end_exchange (struct weft_step *s)
{
  gboolean any = FALSE, all = s->strategy->batch_p2p_comm && s->strategy->batch_p2p_sync;

  for (uint32_t i = 0; i < WEFT_N_EXCHANGE; i++) {
    any |= s->stream->exchange[i] != WEFT_NO_OP;
    weft_build_dep (s->b, s->stream->exchange[i]);
    s->stream->exchange[i] = WEFT_NO_OP;
  }
  for (int lane = 0; lane < WEFT_N_LANE && any && all; lane++)
    if (lane != WEFT_LANE_GPU && weft_build_last (s->b, lane) != WEFT_NO_OP)
      weft_build_dep (s->b, weft_build_last (s->b, lane));
}

static void
add_noted (struct weft_step *s)
{
  for (uint32_t i = 0; i < s->stream->wait_for->len; i++)
    weft_build_dep (s->b, g_array_index (s->stream->wait_for, uint32_t, i));
}

uint32_t
weft_emit (struct weft_step *s, enum weft_op_kind kind, const char *name, struct weft_shape shape,
           const struct weft_use *uses, uint32_t n_uses)
{
  struct weft_op row = s->at;

  row.kind = kind;
  row.lane = WEFT_LANE_GPU;
  row.name = weft_build_name (s->b, name);
  uint32_t op = append (s, &row, shape, uses, n_uses);
  end_exchange (s);
  add_noted (s);
  g_array_set_size (s->stream->wait_for, 0);
  return op;
}

uint32_t
weft_emit_on (struct weft_step *s, enum weft_lane lane, struct weft_op row, struct weft_shape shape,
              const struct weft_use *uses, uint32_t n_uses)
{
  row.lane = lane;
  row.layer = s->at.layer;
  row.micro = s->at.micro;
  row.chunk = s->at.chunk;
  row.phase = s->at.phase;
  return append (s, &row, shape, uses, n_uses);
}

void
weft_next_kernel_waits_for (struct weft_step *s, uint32_t op)
{
  if (op != WEFT_NO_OP)
    g_array_append_val (s->stream->wait_for, op);
}

void
weft_host_waits_for (struct weft_step *s, uint32_t op)
{
  s->stream->synced = op;
  weft_next_kernel_waits_for (s, op);
}

void
weft_wait_for_host (struct weft_step *s)
{
  weft_build_dep (s->b, s->stream->synced);
}

void
weft_wait_for_exchange (struct weft_step *s)
{
  for (uint32_t i = 0; i < WEFT_N_EXCHANGE; i++)
    weft_build_dep (s->b, s->stream->exchange[i]);
}

void
weft_step_wait_for_stream (struct weft_step *s, uint32_t kernel)
{
  weft_build_dep (s->b, kernel);
  weft_wait_for_exchange (s);
  weft_wait_for_host (s);
}

void
weft_wait_like_next_kernel (struct weft_step *s)
{
  weft_step_wait_for_stream (s, weft_build_last (s->b, WEFT_LANE_GPU));
  add_noted (s);
}

void
weft_set_exchange (struct weft_step *s, uint32_t stream, uint32_t op)
{
  s->stream->exchange[stream] = op;
}

void
weft_run_beside_exchange (struct weft_step *s, weft_kernels *kernels)
{
  uint32_t exchange[WEFT_N_EXCHANGE];

  memcpy (exchange, s->stream->exchange, sizeof exchange);
  for (uint32_t i = 0; i < WEFT_N_EXCHANGE; i++)
    s->stream->exchange[i] = WEFT_NO_OP;
  kernels (s);
  memcpy (s->stream->exchange, exchange, sizeof exchange);
}

static void
host_reads (struct weft_step *s, const char *name, const struct weft_use *uses, uint32_t n_uses)
{
  struct weft_op row = { .kind = WEFT_OP_COPY_OUT, .name = weft_build_name (s->b, name) };

  weft_host_waits_for (
      s, weft_emit_on (s, WEFT_LANE_D2H, row, WEFT_SHAPE (WEFT_FP32, 1), uses, n_uses));
}

void
weft_step_host_reads (struct weft_step *s, const char *name, uint32_t buf)
{
  host_reads (s, name, WEFT_USES (WEFT_R (buf)));
}

void
weft_step_host_reads_both (struct weft_step *s, const char *name, uint32_t a, uint32_t b)
{
  host_reads (s, name, WEFT_USES (WEFT_R (a), WEFT_R (b)));
}

struct weft_op
weft_step_again (struct weft_step *s)
{
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_RECOMPUTE;
  s->at.flags = WEFT_OP_RECOMPUTE;
  return at;
}

uint32_t
weft_reduce_all (struct weft_step *s, enum weft_group_kind group, enum weft_reduce reduce,
                 uint32_t buf, const char *name)
{
  if (weft_mesh_group_size (s->mesh, group) == 1)
    return WEFT_NO_OP;
  struct weft_op row = { .kind = WEFT_OP_ALL_REDUCE,
                         .group = group,
                         .reduce = reduce,
                         .name = weft_build_name (s->b, name) };
  const struct weft_buf *b = weft_build_buf_at (s->b, buf);
  return weft_emit_on (
      s, weft_group_lane (group), row,
      WEFT_SHAPE (b->dtype, weft_step_elements (s, buf) / weft_mesh_group_size (s->mesh, b->shard)),
      WEFT_USES (WEFT_RW (buf)));
}

uint32_t
weft_activation (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->dtype, s->rows * columns, name);
}

uint32_t
weft_product (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->tokens * columns, name);
}

uint64_t
weft_layer_window (const struct weft_step *s)
{
  int64_t window = weft_model_layer_window (s->model, s->at.layer);

  return window < s->model->seq_length ? (uint64_t) window : 0;
}

/* With chunked attention a token attends only to tokens of its chunk of the sequence. The shape
 * therefore states each chunk as a separate sequence. */
struct weft_shape
weft_layer_attention_shape (const struct weft_step *s, uint64_t tokens, uint64_t heads,
                            uint64_t groups)
{
  uint64_t chunk = (uint64_t) weft_model_layer_chunk (s->model, s->at.layer);
  uint64_t sequence = (uint64_t) s->model->seq_length;

  if (chunk > 0 && chunk < sequence)
    sequence = chunk;
  return WEFT_SHAPE (s->product_dtype, tokens / sequence, sequence, heads, groups,
                     s->model->kv_channels, weft_layer_window (s),
                     s->model->kv_lora_rank ? s->model->v_head_dim : 0);
}

struct weft_shape
weft_attention_shape (const struct weft_step *s)
{
  return weft_layer_attention_shape (s, s->tokens, s->width.heads, s->width.groups);
}

gboolean
weft_step_has_embedding (const struct weft_step *s)
{
  for (uint32_t q = 0; q < s->n_chunks; q++)
    if (s->chunk[q].embedding)
      return TRUE;
  return FALSE;
}

const struct weft_chunk *
weft_step_head (const struct weft_step *s)
{
  for (uint32_t q = 0; q < s->n_chunks; q++)
    if (s->chunk[q].head)
      return &s->chunk[q];
  return NULL;
}

gboolean
weft_step_has_head (const struct weft_step *s)
{
  return weft_step_head (s) != NULL;
}

uint32_t
weft_step_slot (const struct weft_step *s, uint32_t layer)
{
  const struct weft_chunk *chunk = s->chunk;

  while (layer < chunk->first_layer || layer >= chunk->first_layer + chunk->n_layers + chunk->n_mtp)
    chunk++;
  return chunk->slot + layer - chunk->first_layer;
}

void
weft_emit_begin (struct weft_step *s)
{
  struct weft_stream *stream = s->stream = g_new (struct weft_stream, 1);

  *stream = (struct weft_stream){ .wait_for = g_array_new (FALSE, FALSE, sizeof (uint32_t)),
                                  .synced = WEFT_NO_OP,
                                  .timed = WEFT_NO_OP,
                                  .barrier = WEFT_NO_BUF };
  for (uint32_t i = 0; i < WEFT_N_EXCHANGE; i++)
    stream->exchange[i] = WEFT_NO_OP;
}

void
weft_emit_end (struct weft_step *s)
{
  g_array_unref (s->stream->wait_for);
  g_free (s->stream);
}
