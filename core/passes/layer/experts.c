/* The MLPs of experts. One kernel computes all experts of this rank (grouped GEMM). */
#include "core/passes/layer/fp8_products.h"
#include "core/passes/layer/moe.h"

static struct weft_shape
product_shape (const struct weft_step *s, uint64_t n, uint64_t k)
{
  struct weft_moe z = weft_moe_sizes (s);
  struct weft_shape shape =
      WEFT_SHAPE (s->linear_dtype, z.rows, n, k, z.local, weft_moe_stride (s, &z));

  shape.dim[7] = s->linear_dtype == WEFT_FP8 ? weft_fp8_block (s) : 0;
  shape.out_dtype = s->product_dtype;
  return shape;
}

/* Returns the shape of a matrix product of the experts whose sum is divided among expert tensor
 * parallel ranks. `tail`: number of rows of each of the weight's last two blocks (struct
 * weft_param). */
static struct weft_shape
shared_shape (const struct weft_step *s, uint64_t n, uint64_t k, uint64_t tail)
{
  struct weft_shape shape = product_shape (s, n, k);

  shape.dim[5] = s->leaves.expert;
  shape.dim[6] = s->leaves.expert ? tail : 0;
  shape.out_dtype = weft_moe_partial (s);
  return shape;
}

/* Returns the input of an expert's matrix product, or the gradient of its output, as an operand of
 * rows grouped by expert. */
static struct weft_fp8_source
rows_source (const struct weft_step *s, const struct weft_delayed *d, enum weft_fp8_role role)
{
  struct weft_moe z = weft_moe_sizes (s);
  gboolean input = role == WEFT_FP8_INPUT;

  return (struct weft_fp8_source){
    .buf = input ? d->x : d->dy,
    .param = d->weight,
    .role = role,
    .columns = input ? d->k : d->n,
    .name = d->name,
    .groups = { .experts = z.local,
                .each = s->canonical ? weft_mesh_expert_sequences (s->mesh) : 1,
                .rows = z.rows,
                .stride = weft_moe_stride (s, &z),
                .counts = d->counts },
  };
}

/* Appends the grouped GEMM y = x w^T, or for input gradients y = dy w. Returns the operand (x or
 * dy) that the kernel reads; in fp8 this is the buffer of fp8 values. */
static uint32_t
emit_product (struct weft_step *s, const struct weft_delayed *d, enum weft_fp8_role role,
              const struct weft_shape *shape, uint32_t y)
{
  gboolean forward = role == WEFT_FP8_INPUT;
  const struct weft_fp8_source rows = rows_source (s, d, role);

  if (!weft_fp8_takes (s, d->weight)) {
    uint32_t w = weft_cast_weight (s, d->weight), x = weft_cast_to_compute (s, rows.buf, d->name);
    weft_emit (s, forward ? WEFT_OP_MOE_MATMUL : WEFT_OP_MOE_MATMUL_DGRAD, d->name, *shape,
               WEFT_USES (WEFT_R (x), WEFT_R (w), WEFT_R (d->counts), WEFT_W (y)));
    return x;
  }
  struct weft_fp8 w = (forward ? weft_fp8_weight : weft_fp8_weight_transposed) (s, d->weight),
                  x = weft_fp8_rows (s, &rows);
  weft_emit (s, forward ? WEFT_OP_MOE_FP8_MATMUL : WEFT_OP_MOE_FP8_MATMUL_DGRAD, d->name, *shape,
             WEFT_USES (WEFT_R (x.codes), WEFT_R (x.scale), WEFT_R (w.codes), WEFT_R (w.scale),
                        WEFT_R (d->counts), WEFT_W (y)));
  return x.codes;
}

/* Appends a grouped GEMM with n outputs and k inputs for each expert. Returns its output. */
static uint32_t
multiply (struct weft_step *s, const char *name, enum weft_layer_param which,
          const struct weft_saved *saved, uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  gboolean first = which == WEFT_EXPERT_FC1;
  const struct weft_delayed d = { .name = name,
                                  .weight = weft_params_layer (s, which),
                                  .x = x,
                                  .n = first ? z.up : z.h,
                                  .k = first ? z.h : z.f,
                                  .counts = saved->counts };
  uint32_t y = weft_moe_rows (s, first ? s->product_dtype : weft_moe_partial (s), d.n, name);
  struct weft_shape shape = first ? product_shape (s, d.n, d.k) : shared_shape (s, d.n, d.k, 0);

  emit_product (s, &d, WEFT_FP8_INPUT, &shape, y);
  return y;
}

/* Returns the buffer of router weights if they multiply activations inside the experts. Returns
 * WEFT_NO_BUF if they multiply the experts' input. */
static uint32_t
weight_behind (const struct weft_step *s, const struct weft_saved *saved)
{
  return s->model->moe_apply_probs_on_input ? WEFT_NO_BUF : saved->pp;
}

static void
activate (struct weft_step *s, struct weft_saved *saved)
{
  struct weft_moe z = weft_moe_sizes (s);

  saved->ea = weft_moe_rows (s, s->product_dtype, z.f, "expert_act");
  weft_emit (s, WEFT_OP_MOE_ACT, "expert_act",
             WEFT_SHAPE (s->product_dtype, z.rows, z.f, z.local, weft_moe_stride (s, &z),
                         weft_model_wide (s->model)),
             WEFT_USES (WEFT_R (saved->eu), WEFT_R (weight_behind (s, saved)),
                        WEFT_R (saved->counts), WEFT_W (saved->ea)));
}

uint32_t
weft_experts_forward (struct weft_step *s, struct weft_saved *saved)
{
  saved->eu = multiply (s, "expert_fc1", WEFT_EXPERT_FC1, saved, weft_moe_weigh (s, saved));
  activate (s, saved);
  return multiply (s, "expert_fc2", WEFT_EXPERT_FC2, saved, saved->ea);
}

/* The operands of a weight gradient, and the number of ranks from which their rows come. */
struct factors {
  struct weft_fp8 dy, x; /* scale: WEFT_NO_BUF if the operand is not in fp8 */
  uint32_t counts, ranks;
};

static struct factors
factors_of (struct weft_step *s, const struct weft_delayed *d)
{
  struct factors f = { { d->dy, WEFT_NO_BUF }, { d->x, WEFT_NO_BUF }, d->counts, 1 };

  if (weft_fp8_takes (s, d->weight)) {
    const struct weft_fp8_source dy = rows_source (s, d, WEFT_FP8_GRADIENT),
                                 x = rows_source (s, d, WEFT_FP8_INPUT);
    f.dy = weft_fp8_columns (s, &dy);
    f.x = weft_fp8_columns (s, &x);
  } else {
    f.x.codes = weft_cast_to_compute (s, d->x, d->name);
  }
  if (!weft_gathers_expert_rows (s))
    return f;
  const struct weft_peers peers = weft_rows_peers (s, d->counts);
  struct weft_routed dy = { .name = d->name, .columns = d->n },
                     x = { .name = d->name, .columns = d->k };
  f.dy.codes = weft_rows_of_peers (s, &peers, dy, f.dy.codes);
  f.x.codes = weft_rows_of_peers (s, &peers, x, f.x.codes);
  f.counts = peers.counts;
  f.ranks = peers.n;
  return f;
}

void
weft_experts_gradient (struct weft_step *s, const struct weft_delayed *d)
{
  const struct factors f = factors_of (s, d);
  struct weft_use dw = weft_grad_begin (s, d->weight);
  struct weft_shape shape = product_shape (s, d->n, d->k);
  struct weft_moe z = weft_moe_sizes (s);

  shape.dim[0] *= f.ranks;
  shape.dim[5] = s->canonical ? z.sources * f.ranks : 0;
  shape.dim[6] = s->canonical ? z.parts : 0;
  shape.out_dtype = s->grad_dtype;
  if (f.x.scale == WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_MOE_MATMUL_WGRAD, d->name, shape,
               WEFT_USES (WEFT_R (f.dy.codes), WEFT_R (f.x.codes), WEFT_R (f.counts), dw));
  else
    weft_emit (s, WEFT_OP_MOE_FP8_MATMUL_WGRAD, d->name, shape,
               WEFT_USES (WEFT_R (f.dy.codes), WEFT_R (f.dy.scale), WEFT_R (f.x.codes),
                          WEFT_R (f.x.scale), WEFT_R (f.counts), dw));
  if (f.ranks > 1)
    weft_context_keep (s, dw.buf, f.ranks);
  weft_grad_end (s, d->weight, dw);
}

static uint32_t
multiply_backward (struct weft_step *s, struct weft_delayed *d)
{
  struct weft_moe z = weft_moe_sizes (s);
  gboolean first = d->which == WEFT_EXPERT_FC1;
  uint32_t dx = weft_moe_rows (s, first ? weft_moe_partial (s) : s->product_dtype, d->k, d->name);
  struct weft_shape shape =
      first ? shared_shape (s, d->n, d->k, z.up - z.f) : product_shape (s, d->n, d->k);

  d->dy = emit_product (s, d, WEFT_FP8_GRADIENT, &shape, dx);
  weft_linear_gradient (s, d);
  return dx;
}

static uint32_t
activate_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t da, uint32_t *dpp)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t du = weft_moe_rows (s, s->product_dtype, z.up, "dexpert_act");

  *dpp = weight_behind (s, saved) == WEFT_NO_BUF
             ? WEFT_NO_BUF
             : weft_moe_rows (s, weft_moe_partial (s), 1, "dpp");
  weft_emit (s, WEFT_OP_MOE_ACT_BWD, "expert_act",
             WEFT_SHAPE (s->product_dtype, z.rows, z.f, z.local, weft_moe_stride (s, &z),
                         weft_model_wide (s->model), s->leaves.expert),
             WEFT_USES (WEFT_R (saved->eu), WEFT_R (weight_behind (s, saved)),
                        WEFT_R (saved->counts), WEFT_R (da), WEFT_W (du), WEFT_W (*dpp)));
  return du;
}

static void
activate_again (struct weft_step *s, struct weft_saved *saved)
{
  struct weft_op at = weft_step_again (s);

  activate (s, saved);
  s->at = at;
}

uint32_t
weft_experts_backward (struct weft_step *s, struct weft_saved *saved, uint32_t dy, uint32_t *dpp)
{
  struct weft_moe z = weft_moe_sizes (s);

  if (weft_recomputes (s, WEFT_MODULE_MOE_ACT) && !weft_recomputes (s, WEFT_MODULE_MOE))
    activate_again (s, saved);
  struct weft_delayed fc2 = { .name = "expert_fc2",
                              .layer = s->at.layer,
                              .which = WEFT_EXPERT_FC2,
                              .weight = weft_params_layer (s, WEFT_EXPERT_FC2),
                              .bias = WEFT_NO_PARAM,
                              .dy = dy,
                              .x = saved->ea,
                              .n = z.h,
                              .k = z.f,
                              .counts = saved->counts };
  uint32_t da = multiply_backward (s, &fc2);
  uint32_t du = activate_backward (s, saved, da, dpp);
  struct weft_delayed fc1 = { .name = "expert_fc1",
                              .layer = s->at.layer,
                              .which = WEFT_EXPERT_FC1,
                              .weight = weft_params_layer (s, WEFT_EXPERT_FC1),
                              .bias = WEFT_NO_PARAM,
                              .dy = du,
                              .x = s->model->moe_apply_probs_on_input ? saved->xw : saved->xp,
                              .n = z.up,
                              .k = z.h,
                              .counts = saved->counts };

  return weft_moe_weigh_backward (s, saved, multiply_backward (s, &fc1), dpp);
}
