/* Buffers in host memory, copies between host and device, kernels on the CPU. */
#include "core/passes/emit/stream.h"

uint32_t
weft_host_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                  uint64_t elements, const char *name)
{
  uint32_t buf = weft_step_buffer (s, kind, dtype, elements, name);

  weft_build_buf_at (s->b, buf)->pool = WEFT_POOL_HOST;
  return buf;
}

uint32_t
weft_host_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                     uint64_t elements, const char *name)
{
  uint32_t buf = weft_step_permanent (s, kind, dtype, elements, name);

  weft_build_buf_at (s->b, buf)->pool = WEFT_POOL_HOST;
  return buf;
}

static struct weft_shape
extent (struct weft_step *s, const struct weft_host_copy *copy)
{
  return WEFT_SHAPE (weft_build_buf_at (s->b, copy->host)->dtype, copy->n, copy->first);
}

uint32_t
weft_to_host (struct weft_step *s, const struct weft_host_copy *copy)
{
  struct weft_op row = { .kind = WEFT_OP_TO_HOST, .name = weft_build_name (s->b, copy->name) };

  return weft_emit_on (s, WEFT_LANE_D2H, row, extent (s, copy),
                       WEFT_USES (WEFT_R (copy->device), WEFT_W (copy->host)));
}

uint32_t
weft_from_host (struct weft_step *s, const struct weft_host_copy *copy)
{
  struct weft_op row = { .kind = WEFT_OP_FROM_HOST, .name = weft_build_name (s->b, copy->name) };

  return weft_emit_on (s, WEFT_LANE_H2D, row, extent (s, copy),
                       WEFT_USES (WEFT_R (copy->host), WEFT_W (copy->device)));
}

uint32_t
weft_emit_on_host (struct weft_step *s, enum weft_op_kind kind, const char *name,
                   struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses)
{
  struct weft_op row = { .kind = kind, .name = weft_build_name (s->b, name) };

  return weft_emit_on (s, WEFT_LANE_HOST, row, shape, uses, n_uses);
}

void
weft_host_wait_for_copies (struct weft_step *s)
{
  const uint32_t newest[] = { weft_build_last (s->b, WEFT_LANE_D2H),
                              weft_build_last (s->b, WEFT_LANE_H2D) };

  for (size_t i = 0; i < G_N_ELEMENTS (newest); i++)
    weft_build_dep (s->b, newest[i]);
}
