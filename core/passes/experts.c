/* The MLPs of experts: one kernel for all that this rank has. */
#include "core/passes/moe.h"

static struct weft_shape
product_shape (const struct weft_step *s, uint64_t n, uint64_t k)
{
  struct weft_moe z = weft_moe_sizes (s);

  return WEFT_SHAPE (s->linear_dtype, z.rows, n, k, z.local, weft_moe_stride (s, &z));
}

/* ... that is summed over what ranks share out of an expert, which `tail` cuts into parts. */
static struct weft_shape
shared_shape (const struct weft_step *s, uint64_t n, uint64_t k, uint64_t tail)
{
  struct weft_shape shape = product_shape (s, n, k);

  shape.dim[5] = s->expert_leaves;
  shape.dim[6] = s->expert_leaves ? tail : 0;
  shape.out_dtype = weft_moe_partial (s);
  return shape;
}

/* Codes of fp8, whose scales kernels of experts do not read yet: such a program is not run. */
static uint32_t
factor (struct weft_step *s, struct weft_fp8_source x)
{
  return weft_fp8_takes (s, x.param) ? weft_fp8_rows (s, &x).codes : weft_inward (s, x.buf, x.name);
}

static uint32_t
weight (struct weft_step *s, uint32_t param)
{
  return weft_fp8_takes (s, param) ? weft_fp8_weight (s, param).codes : weft_cast_weight (s, param);
}

/* n outputs and k inputs of each expert. */
static uint32_t
multiply (struct weft_step *s, const char *name, enum weft_layer_param which,
          const struct weft_saved *saved, uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  gboolean first = which == WEFT_EXPERT_FC1;
  uint32_t y = first ? weft_moe_rows (s, s->product_dtype, z.up, name)
                     : weft_moe_rows (s, weft_moe_partial (s), z.h, name);
  uint32_t param = weft_params_layer (s, which), w = weight (s, param);

  x = factor (s, (struct weft_fp8_source){ x, param, WEFT_FP8_INPUT, first ? z.h : z.f, name });
  weft_emit (s, WEFT_OP_MOE_MATMUL, name,
             first ? product_shape (s, z.up, z.h) : shared_shape (s, z.h, z.f, 0),
             WEFT_USES (WEFT_R (x), WEFT_R (w), WEFT_R (saved->counts), WEFT_W (y)));
  return y;
}

/* The weights of rows where they multiply activations. */
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

gboolean
weft_experts_gather (const struct weft_step *s)
{
  return s->canonical && s->mesh->ep * s->mesh->etp < s->mesh->tp;
}

/* What a gradient is taken of, and by how many ranks it came. */
struct factors {
  uint32_t dy, x, counts, ranks;
};

static struct factors
factors_of (struct weft_step *s, const struct weft_delayed *d)
{
  uint32_t x =
      factor (s, (struct weft_fp8_source){ d->x, d->weight, WEFT_FP8_INPUT, d->k, d->name });

  if (!weft_experts_gather (s))
    return (struct factors){ d->dy, x, d->counts, 1 };
  const struct weft_peers peers = weft_rows_peers (s, d->counts);
  return (struct factors){
    weft_rows_of_peers (s, &peers, (struct weft_move){ .name = d->name, .columns = d->n }, d->dy),
    weft_rows_of_peers (s, &peers, (struct weft_move){ .name = d->name, .columns = d->k }, x),
    peers.counts, peers.n
  };
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
  weft_emit (s, WEFT_OP_MOE_MATMUL_WGRAD, d->name, shape,
             WEFT_USES (WEFT_R (f.dy), WEFT_R (f.x), WEFT_R (f.counts), dw));
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
  uint32_t w = weight (s, d->weight);

  d->dy =
      factor (s, (struct weft_fp8_source){ d->dy, d->weight, WEFT_FP8_GRADIENT, d->n, d->name });
  weft_emit (s, WEFT_OP_MOE_MATMUL_DGRAD, d->name,
             first ? shared_shape (s, d->n, d->k, z.up - z.f) : product_shape (s, d->n, d->k),
             WEFT_USES (WEFT_R (d->dy), WEFT_R (w), WEFT_R (d->counts), WEFT_W (dx)));
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
                         weft_model_wide (s->model), s->expert_leaves),
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

  if (weft_runs_again (s, WEFT_MODULE_MOE_ACT) && !weft_runs_again (s, WEFT_MODULE_MOE))
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
