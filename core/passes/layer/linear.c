/* The linear layers of a transformer layer: y = x w^T + b, input gradients, and weight gradients.
 * Frozen weights have no weight gradients. adapter.c adds LoRA adapters to linear layers. Weight
 * gradients may be delayed (delay_wgrad_compute, and schedules that split backward passes). */
#include "core/passes/layer/fp8_products.h"
#include "core/passes/layer/moe.h"

uint32_t
weft_cast_to_compute (struct weft_step *s, uint32_t buf, const char *name)
{
  return weft_cast (s, buf, s->product_dtype, name);
}

uint32_t
weft_cast_to_residual (struct weft_step *s, uint32_t buf, const char *name)
{
  return weft_cast (s, buf, s->dtype, name);
}

uint32_t
weft_layer_weight (struct weft_step *s, enum weft_layer_param which)
{
  return weft_weight_read (s, weft_params_layer (s, which));
}

static enum weft_cut
cut_of (const struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);
  return row->ways > 1 ? row->cut : WEFT_CUT_NONE;
}

/* The bias of a linear layer is the parameter after its weight in the list of parameters. Matrices
 * of adapters have none. */
static uint32_t
bias_of (const struct weft_step *s, enum weft_layer_param which)
{
  return weft_params_is_lora (which) ? WEFT_NO_PARAM : weft_params_layer (s, which + 1);
}

/* Returns the number of rows that a linear layer processes on this rank. If the weight is not
 * sharded, these are only the rank's own rows; otherwise the rows of all tokens. */
static uint64_t
rows_of (const struct weft_step *s, uint32_t param)
{
  return cut_of (s, param) == WEFT_CUT_NONE ? s->rows : s->tokens;
}

/* For canonical order: sets in *shape the number of leaves (partial sums of the tree,
 * kernels/leaves.h) in the sum of a matrix product. In forward this is the sum over the linear
 * layer's sharded inputs; in backward, the sum over its sharded outputs. struct weft_param
 * describes `tail`. */
static void
set_leaves (const struct weft_step *s, enum weft_layer_param which, struct weft_shape *shape,
            gboolean backward)
{
  const struct weft_widths *w = &s->width;
  uint64_t kv = (uint64_t) (s->model->num_query_groups * s->model->kv_channels) / s->mesh->tp;
  const struct {
    gboolean outputs;
    uint32_t leaves;
    uint64_t tail;
  } maps[WEFT_N_LAYER_PARAM] = {
    [WEFT_QKV_WEIGHT] = { TRUE, s->leaves.attention, kv },
    [WEFT_QKV_LORA_B] = { TRUE, s->leaves.attention, kv },
    [WEFT_PROJ_LORA_A] = { FALSE, s->leaves.attention, 0 },
    [WEFT_FC1_LORA_B] = { TRUE, s->leaves.mlp, w->up - w->f },
    [WEFT_FC2_LORA_A] = { FALSE, s->leaves.mlp, 0 },
    [WEFT_PROJ_WEIGHT] = { FALSE, s->leaves.attention, 0 },
    [WEFT_FC1_WEIGHT] = { TRUE, s->leaves.mlp, w->up - w->f },
    [WEFT_FC2_WEIGHT] = { FALSE, s->leaves.mlp, 0 },
    [WEFT_Q_UP_WEIGHT] = { TRUE, s->leaves.attention, 0 },
    [WEFT_KV_UP_WEIGHT] = { TRUE, s->leaves.attention, 0 },
    [WEFT_SHARED_FC1_WEIGHT] = { TRUE, s->leaves.shared,
                                 (weft_model_wide (s->model) - 1) * w->shared },
    [WEFT_SHARED_FC2_WEIGHT] = { FALSE, s->leaves.shared, 0 },
    [WEFT_MTP_PROJ_WEIGHT] = { TRUE, weft_job_leaves (s->job, w->h) / s->mesh->tp, 0 },
  };

  if (maps[which].leaves == 0 || maps[which].outputs != backward)
    return;
  shape->dim[3] = maps[which].leaves;
  shape->dim[4] = maps[which].tail;
}

/* Adds a bias after the partial sums of the tensor parallel ranks have been added. Converts the
 * result to the dtype of matrix products. */
static uint32_t
add_bias (struct weft_step *s, const char *name, uint32_t y, uint32_t bias, uint64_t n)
{
  uint32_t sum = y;

  if (bias == WEFT_NO_BUF)
    return weft_cast_to_compute (s, y, name);
  struct weft_shape shape = WEFT_SHAPE (weft_build_buf_at (s->b, y)->dtype, s->rows, n);
  shape.out_dtype = s->product_dtype;
  if (shape.dtype != shape.out_dtype)
    y = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->rows * n, name);
  weft_emit (s, WEFT_OP_BIAS, name, shape, WEFT_USES (WEFT_R (sum), WEFT_R (bias), WEFT_W (y)));
  return y;
}

/* Appends a matrix product. Returns its output, in a new buffer. */
static uint32_t
multiply (struct weft_step *s, const struct weft_piece *p, uint32_t x)
{
  uint32_t y = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, p->shape.out_dtype,
                                 p->shape.dim[0] * p->shape.dim[1], p->name);

  weft_piece_multiply (s, p, x, y);
  return y;
}

/* Returns the dtype in which the matrix product of a linear layer reads its input. */
static enum weft_dtype
read_dtype (const struct weft_step *s, uint32_t param)
{
  return weft_fp8_takes (s, param) ? WEFT_FP8 : s->product_dtype;
}

static struct weft_fp8_source
source_of (uint32_t buf, uint32_t param, enum weft_fp8_role role, uint64_t columns,
           const char *name)
{
  return (struct weft_fp8_source){ buf, param, role, columns, name };
}

/* Sets op kind, weight and scales of a forward matrix product. Returns x in the dtype in which the
 * matrix product reads it. */
static uint32_t
take_factors (struct weft_step *s, struct weft_piece *p, uint32_t param, uint32_t x)
{
  if (!weft_fp8_takes (s, param)) {
    x = weft_cast_to_compute (s, x, p->name);
    p->w = weft_cast_weight (s, param);
    p->w_scale = weft_params_scale (s, param);
    p->kind = p->w_scale == WEFT_NO_BUF ? WEFT_OP_MATMUL : WEFT_OP_MATMUL_FP8_WEIGHTS;
    return x;
  }
  if (weft_fp8_block (s) && cut_of (s, param) == WEFT_CUT_ROWS)
    x = weft_tensor_gather_rows (s, x, p->name);
  const struct weft_fp8_source source =
      source_of (x, param, WEFT_FP8_INPUT, p->shape.dim[2], p->name);
  struct weft_fp8 in = weft_fp8_rows (s, &source), w = weft_fp8_weight (s, param);
  p->kind = WEFT_OP_FP8_MATMUL;
  p->x_scale = in.scale;
  p->w = w.codes;
  p->w_scale = w.scale;
  p->shape.dim[5] = weft_fp8_block (s);
  return in.codes;
}

/* Whether an operand is all-gathered in the dtype that the matrix product reads. FALSE for fp8
 * recipes with block scales, whose operand is all-gathered before it is quantised. */
static gboolean
gathers_codes (const struct weft_step *s, uint32_t param)
{
  return !weft_fp8_takes (s, param) || !weft_fp8_block (s);
}

uint32_t
weft_linear_alone (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x,
                   uint64_t n, uint64_t k)
{
  uint32_t param = weft_params_layer (s, which), y;
  gboolean partial = cut_of (s, param) == WEFT_CUT_COLUMNS;
  struct weft_piece p = { .name = name,
                          .which = which,
                          .shape = WEFT_SHAPE (read_dtype (s, param), rows_of (s, param), n, k) };

  p.shape.out_dtype = partial ? weft_tensor_partial (s) : s->product_dtype;
  set_leaves (s, which, &p.shape, FALSE);
  x = take_factors (s, &p, param, x);
  uint32_t bias = weft_weight_read (s, bias_of (s, which));
  p.bias = partial ? WEFT_NO_BUF : bias;
  if (!weft_overlap_forward (s, &p, x, &y)) {
    if (cut_of (s, param) == WEFT_CUT_ROWS && gathers_codes (s, param))
      x = weft_tensor_gather_rows (s, x, name);
    y = multiply (s, &p, x);
    if (partial)
      y = weft_tensor_reduce_rows (s, y, name);
  }
  return partial ? add_bias (s, name, y, bias, n) : y;
}

/* All-gathers the rows of all ranks. With fp8, the fp8 values are all-gathered; all ranks have one
 * common scale. */
static uint32_t
whole_rows (struct weft_step *s, struct weft_fp8_source x)
{
  if (!weft_fp8_takes (s, x.param))
    return weft_tensor_all_gather (s, x.buf, x.name);
  uint32_t part = weft_fp8_rows (s, &x).codes;
  return weft_fp8_gathered (s, part, weft_tensor_all_gather (s, part, x.name));
}

static void
multiply_gradient (struct weft_step *s, const struct weft_delayed *d, struct weft_shape *shape,
                   const struct weft_fp8_source of[2], const struct weft_use grad[2])
{
  if (!weft_fp8_takes (s, d->weight)) {
    weft_emit (s, WEFT_OP_MATMUL_WGRAD, d->name, *shape,
               WEFT_USES (WEFT_R (of[0].buf), WEFT_R (of[1].buf), grad[0], grad[1]));
    return;
  }
  struct weft_fp8 dy = weft_fp8_columns (s, &of[0]), x = weft_fp8_columns (s, &of[1]);
  shape->dim[4] = weft_fp8_block (s);
  weft_emit (s, WEFT_OP_FP8_MATMUL_WGRAD, d->name, *shape,
             WEFT_USES (WEFT_R (dy.codes), WEFT_R (dy.scale), WEFT_R (x.codes), WEFT_R (x.scale),
                        grad[0], grad[1]));
}

/* Appends the weight gradient of a linear layer. With sequence_parallel, the rows may be sharded
 * over ranks although the weight is not. Each rank then computes the gradient of its own rows, and
 * an all-reduce adds these partial gradients later, as for norm weights in norm.c. */
static void
dense_gradient (struct weft_step *s, const struct weft_delayed *d)
{
  gboolean part = cut_of (s, d->weight) == WEFT_CUT_NONE && weft_tensor_scatters (s);
  struct weft_fp8_source of[] = { source_of (d->dy, d->weight, WEFT_FP8_GRADIENT, d->n, d->name),
                                  source_of (d->x, d->weight, WEFT_FP8_INPUT, d->k, d->name) };

  if (!weft_fp8_takes (s, d->weight))
    of[1].buf = weft_cast_to_compute (s, d->x, d->name);
  if (part && s->canonical) {
    of[1].buf = whole_rows (s, of[1]);
    of[0].buf = whole_rows (s, of[0]);
  }
  struct weft_use dw = weft_grad_begin (s, d->weight), db = weft_grad_begin (s, d->bias);
  struct weft_shape shape = WEFT_SHAPE (read_dtype (s, d->weight),
                                        part && !s->canonical ? s->rows : s->tokens, d->n, d->k);

  shape.out_dtype = s->grad_dtype;
  multiply_gradient (s, d, &shape, of, (const struct weft_use[]){ dw, db });
  if (part && !s->canonical) {
    weft_tensor_share_gradient (s, d->weight, dw.buf);
    weft_tensor_share_gradient (s, d->bias, db.buf);
  }
  weft_grad_end (s, d->weight, dw);
  weft_grad_end (s, d->bias, db);
}

static void
weight_gradient (struct weft_step *s, const struct weft_delayed *d)
{
  (d->counts == WEFT_NO_BUF ? dense_gradient : weft_experts_gradient) (s, d);
}

void
weft_linear_gradient (struct weft_step *s, const struct weft_delayed *d)
{
  struct weft_delayed later = *d;

  later.micro = s->at.micro;
  later.chunk = s->at.chunk;
  if (!weft_params_trains (s, d->weight))
    return;
  if (weft_step_delays (s))
    g_array_append_val (s->layer->delayed, later);
  else
    weight_gradient (s, d);
}

void
weft_layer_run_delayed_wgrads (struct weft_step *s)
{
  struct weft_op at = s->at;
  guint left = 0;

  s->at.phase = WEFT_PHASE_WEIGHT_GRAD;
  for (guint i = 0; i < s->layer->delayed->len; i++) {
    const struct weft_delayed d = g_array_index (s->layer->delayed, struct weft_delayed, i);
    s->at.layer = d.layer;
    if (d.micro == at.micro && d.chunk == at.chunk)
      weight_gradient (s, &d);
    else
      g_array_index (s->layer->delayed, struct weft_delayed, left++) = d;
  }
  g_array_set_size (s->layer->delayed, left);
  s->at = at;
}

/* Sets op kind, weight and scale of an input gradient product. In fp8 the matrix product reads the
 * transposed copy of the weight. */
static void
take_weight_back (struct weft_step *s, struct weft_piece *p, uint32_t param)
{
  gboolean both = weft_fp8_takes (s, param);

  if (!both && weft_params_scale (s, param) == WEFT_NO_BUF) {
    p->kind = WEFT_OP_MATMUL_DGRAD;
    p->w = weft_cast_weight (s, param);
    return;
  }
  struct weft_fp8 w = weft_fp8_weight_transposed (s, param);
  p->kind = both ? WEFT_OP_FP8_MATMUL_DGRAD : WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS;
  p->w = w.codes;
  p->w_scale = w.scale;
  p->shape.dim[5] = both ? weft_fp8_block (s) : 0;
}

/* Converts the gradient of the output for both matrix products of backward. For fp8 recipes with
 * block scales, the gradient is all-gathered before it is quantised. */
static void
take_gradient (struct weft_step *s, struct weft_piece *p, struct weft_delayed *d)
{
  d->dy = weft_cast_to_compute (s, d->dy, d->name);
  if (!weft_fp8_takes (s, d->weight))
    return;
  if (weft_fp8_block (s) && cut_of (s, d->weight) == WEFT_CUT_COLUMNS)
    d->dy = weft_tensor_gather_rows (s, d->dy, d->name);
  const struct weft_fp8_source source =
      source_of (d->dy, d->weight, WEFT_FP8_GRADIENT, d->n, d->name);
  struct weft_fp8 dy = weft_fp8_rows (s, &source);
  d->dy = dy.codes;
  p->x_scale = dy.scale;
}

/* All-gathers the saved input of a linear layer for its weight gradient. */
static uint32_t
gather_input (struct weft_step *s, enum weft_layer_param which, const char *name, uint32_t x)
{
  if (!weft_overlap_is_bulk (s, which, FALSE))
    return weft_tensor_gather_rows (s, x, name);
  uint32_t all = weft_overlap_buffer (s, which, FALSE, weft_build_buf_at (s->b, x)->dtype,
                                      weft_step_elements (s, x) * s->mesh->tp);
  weft_tensor_gather_into (s, x, all, name);
  return all;
}

static uint32_t
take_input (struct weft_step *s, const struct weft_delayed *d)
{
  if (!weft_fp8_takes (s, d->weight))
    return gather_input (s, d->which, d->name, weft_cast_to_compute (s, d->x, d->name));
  if (weft_fp8_block (s))
    return gather_input (s, d->which, d->name, d->x);
  const struct weft_fp8_source source = source_of (d->x, d->weight, WEFT_FP8_INPUT, d->k, d->name);
  uint32_t part = weft_fp8_rows (s, &source).codes;
  return weft_fp8_gathered (s, part, gather_input (s, d->which, d->name, part));
}

/* Returns a buffer for the input gradient of all tokens. */
static uint32_t
whole_gradient (struct weft_step *s, const struct weft_piece *p)
{
  uint64_t n = p->shape.dim[0] * p->shape.dim[2];

  if (weft_overlap_is_bulk (s, p->which, TRUE))
    return weft_overlap_buffer (s, p->which, TRUE, p->shape.out_dtype, n);
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, p->shape.out_dtype, n, p->name);
}

/* Reduces the input gradient of all tokens over the tensor parallel ranks. Returns this rank's
 * rows. */
static uint32_t
reduce_gradient (struct weft_step *s, const struct weft_piece *p, uint32_t dx)
{
  if (!weft_overlap_is_bulk (s, p->which, TRUE))
    return weft_tensor_reduce_rows (s, dx, p->name);
  uint32_t mine = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, p->shape.out_dtype,
                                    s->rows * p->shape.dim[2], p->name);
  weft_tensor_scatter_into (s, dx, mine, p->name);
  return mine;
}

/* Whether the input gradient is reduced after the weight gradient has been computed, as software
 * does that knows no overlap of both (reduces_beside_wgrad of core/stack.def). Collectives of
 * tp_comm_overlap have buffers of their own, and always overlap. */
static gboolean
reduces_late (const struct weft_step *s, enum weft_layer_param which)
{
  return !s->job->stack.reduces_beside_wgrad && !weft_overlap_is_bulk (s, which, TRUE);
}

/* Backward of y = x w^T: the input gradient comes first, then the weight gradient. Collectives of
 * one of these matrix products overlap kernels of the other, unless the software does without.
 * Only what is needed is computed: the weight gradient of a trained weight, and the input gradient
 * if something below is trained. */
uint32_t
weft_linear_alone_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                            struct weft_linear_operands o, const uint64_t size[2])
{
  uint32_t dy = o.dy, x = o.x;
  uint64_t n = size[0], k = size[1];
  uint32_t w = weft_params_layer (s, which), dx;
  gboolean partial = cut_of (s, w) == WEFT_CUT_ROWS;
  struct weft_piece p = { .name = name,
                          .which = which,
                          .shape = WEFT_SHAPE (read_dtype (s, w), rows_of (s, w), n, k) };
  struct weft_delayed d = { .name = name,
                            .layer = s->at.layer,
                            .which = which,
                            .weight = w,
                            .bias = bias_of (s, which),
                            .dy = dy,
                            .x = x,
                            .n = n,
                            .k = k,
                            .counts = WEFT_NO_BUF };

  p.shape.out_dtype = partial ? weft_tensor_partial (s) : s->product_dtype;
  set_leaves (s, which, &p.shape, TRUE);
  take_gradient (s, &p, &d);
  if (partial && weft_params_trains (s, w))
    d.x = take_input (s, &d);
  uint32_t own = d.dy;
  if (!o.flows) {
    if (cut_of (s, w) == WEFT_CUT_COLUMNS && weft_params_trains (s, w))
      d.dy = weft_tensor_gather_rows (s, d.dy, name);
    weft_linear_gradient (s, &d);
    return WEFT_NO_BUF;
  }
  take_weight_back (s, &p, w);
  gboolean whole = !weft_overlap_dgrad (s, &p, &d.dy, &dx);
  gboolean late = whole && partial && reduces_late (s, which);
  if (whole) {
    if (cut_of (s, w) == WEFT_CUT_COLUMNS && gathers_codes (s, w))
      d.dy = weft_tensor_gather_rows (s, d.dy, name);
    dx = whole_gradient (s, &p);
    weft_piece_multiply (s, &p, d.dy, dx);
    if (partial && !late)
      dx = reduce_gradient (s, &p, dx);
  }
  if (weft_fp8_takes (s, w))
    weft_fp8_gathered (s, own, d.dy);
  weft_linear_gradient (s, &d);
  if (late)
    dx = reduce_gradient (s, &p, dx);
  return weft_cast_to_compute (s, dx, name);
}
