/* With enable_autocast, matrix products have another dtype than the weights and the residual stream
 * (torch.autocast).
 *
 *   activations  The input of a matrix product is converted after a norm. Activations between two
 *                matrix products (queries to attention to proj, fc1 to activation to fc2) stay in
 *                the dtype of matrix products. Outputs that are added to the residual stream are
 *                converted back. Backward converts the gradients of all these tensors in reverse.
 *   weights      Forward converts each weight at the first use in a microbatch, into one buffer
 *                that lives until the forward pass of the microbatch ends, like the cache of
 *                torch.autocast. Backward and recompute convert a weight at every read.
 *   other        Norms, embedding and optimizer use the dtype of weights. Biases are added in the
 *                dtype of biases, and weight gradients are summed in the dtype of gradients.
 *
 * precision = fp8 converts the operands of linear layers inside transformer layers: inputs, output
 * gradients and weights are rounded to fp8 before each matrix product. The output is bf16.
 * fp8_products.c appends these conversions, and stores weights in the buffers of this file. If
 * weights are kept for the step (weft_cast_is_kept), the first microbatch converts a weight into a
 * buffer of its own, and all later passes read it; its transposed copy likewise.
 *
 * In all other jobs the dtypes are equal, and the functions of this file append no ops. */
#include "core/passes/layer/fp8_products.h"
#include "core/job/loss.h"

uint32_t
weft_cast (struct weft_step *s, uint32_t buf, enum weft_dtype dtype, const char *name)
{
  const struct weft_buf *from = weft_build_buf_at (s->b, buf);
  struct weft_shape shape = WEFT_SHAPE (from->dtype, from->bytes / weft_dtype_bytes (from->dtype));

  if (from->dtype == dtype)
    return buf;
  uint32_t to = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, shape.dim[0], name);
  shape.out_dtype = dtype;
  weft_emit (s, WEFT_OP_CAST, name, shape, WEFT_USES (WEFT_R (buf), WEFT_W (to)));
  return to;
}

/* Returns the dtype in which matrix products read a weight. */
static enum weft_dtype
read_dtype (const struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);

  return row->layer == WEFT_NO_LAYER || !weft_fp8_takes (s, param) ? s->product_dtype
                                                                   : s->linear_dtype;
}

/* Whether a weight must be converted before matrix products read it. Weights that are stored in fp8
 * are read without conversion. */
static gboolean
is_converted (const struct weft_step *s, uint32_t param)
{
  return read_dtype (s, param) != s->dtype && weft_params_scale (s, param) == WEFT_NO_BUF;
}

static uint64_t
matrix_bytes (const struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);
  uint64_t n = row->rows * row->columns;
  enum weft_dtype dtype = read_dtype (s, param);
  uint64_t bytes = n * weft_dtype_bytes (dtype);

  return (bytes + WEFT_CAST_ALIGN - 1) / WEFT_CAST_ALIGN * WEFT_CAST_ALIGN;
}

gboolean
weft_cast_is_kept (const struct weft_step *s, uint32_t param)
{
  return s->job->stack.own_kernels && weft_job_fp8_lifetime (s->job) >= WEFT_FP8_FOR_STEP &&
         weft_fp8_takes (s, param) && is_converted (s, param);
}

/* Whether a converted weight is stored in the cache. TRUE for matrices of layers, and for the
 * output layer. */
static gboolean
is_cached (const struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);
  uint32_t own = weft_params_of_end (s, WEFT_HEAD_WEIGHT);
  uint32_t head = own != WEFT_NO_PARAM ? own : weft_params_of_end (s, WEFT_EMBED_WEIGHT);

  if (!is_converted (s, param) || weft_cast_is_kept (s, param))
    return FALSE;
  if (row->layer == WEFT_NO_LAYER)
    return weft_step_chunk (s)->head && param == head && !weft_job_fuses_head (s->job);
  return row->chunk == s->at.chunk && row->columns > 1;
}

/* Returns a view of the cache (buffer of converted weights) for one weight. The first call in a
 * pass creates the cache. */
static uint32_t
cached (struct weft_step *s, uint32_t param)
{
  uint64_t at = 0, all = 0;

  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    at = i == param ? all : at;
    all += is_cached (s, i) ? matrix_bytes (s, i) : 0;
  }
  if (s->layer->cast_cache == WEFT_NO_BUF) {
    uint32_t layer = s->at.layer;
    s->at.layer = WEFT_NO_LAYER;
    s->layer->cast_cache =
        weft_step_buffer (s, WEFT_BUF_WEIGHTS, s->linear_dtype,
                          all / weft_dtype_bytes (s->linear_dtype), WEFT_CAST_WEIGHTS);
    s->at.layer = layer;
  }
  return weft_params_view (s, param, s->layer->cast_cache, at);
}

uint32_t
weft_cast_known (const struct weft_step *s, uint32_t param)
{
  return s->at.phase == WEFT_PHASE_FORWARD || weft_cast_is_kept (s, param)
             ? s->layer->cast_view[param]
             : WEFT_NO_BUF;
}

/* Returns a buffer for a converted weight that is not stored in the cache. */
static uint32_t
room_here (struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);

  return weft_step_buffer (s, WEFT_BUF_WEIGHTS, read_dtype (s, param), row->rows * row->columns,
                           "cast_weight");
}

uint32_t
weft_cast_buffer (struct weft_step *s, uint32_t param)
{
  if (weft_cast_is_kept (s, param))
    return s->layer->cast_view[param] = room_here (s, param);
  if (s->at.phase == WEFT_PHASE_FORWARD)
    return s->layer->cast_view[param] = cached (s, param);
  return room_here (s, param);
}

static uint32_t
convert (struct weft_step *s, uint32_t param, uint32_t from, uint32_t to)
{
  const struct weft_param *row = weft_param_at (s, param);
  struct weft_shape shape = WEFT_SHAPE (s->dtype, row->rows * row->columns);

  shape.out_dtype = read_dtype (s, param);
  weft_emit (s, WEFT_OP_CAST, "cast_weight", shape, WEFT_USES (WEFT_R (from), WEFT_W (to)));
  return to;
}

uint32_t
weft_cast_weight_here (struct weft_step *s, uint32_t param)
{
  uint32_t from = weft_weight_read (s, param);

  return is_converted (s, param) ? convert (s, param, from, room_here (s, param)) : from;
}

uint32_t
weft_cast_weight (struct weft_step *s, uint32_t param)
{
  if (!is_converted (s, param))
    return weft_weight_read (s, param);
  if (weft_cast_known (s, param) != WEFT_NO_BUF)
    return weft_cast_known (s, param);
  uint32_t from = weft_weight_read (s, param);
  return convert (s, param, from, weft_cast_buffer (s, param));
}

void
weft_cast_end_pass (struct weft_step *s)
{
  uint32_t view = WEFT_NO_BUF;

  if (s->layer->cast_cache == WEFT_NO_BUF)
    return;
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    if (weft_cast_is_kept (s, i))
      continue;
    view = s->layer->cast_view[i] != WEFT_NO_BUF ? s->layer->cast_view[i] : view;
    s->layer->cast_view[i] = WEFT_NO_BUF;
  }
  weft_emit (s, WEFT_OP_RELEASE, "release_cast", WEFT_SHAPE (s->linear_dtype, 0),
             WEFT_USES (WEFT_R (view)));
  s->layer->cast_cache = WEFT_NO_BUF;
}
