#include "core/plan/allocator.h"
#include <math.h>
#include <string.h>

/* The blocks of one role. opened[op] and closed[op]: bytes that op allocates and releases. */
struct replay {
  const weft_plan *plan;
  const weft_program *p;
  const union weft_stack *stack;
  double permanent;
  double *opened, *closed;
};

static double
block (const struct replay *r, double bytes)
{
  return ceil (bytes / r->stack->allocator_block) * r->stack->allocator_block;
}

/* Holds a tensor from op `first` to op `last`. */
static void
hold (struct replay *r, double bytes, uint32_t first, uint32_t last)
{
  r->opened[first] += block (r, bytes);
  r->closed[last] += block (r, bytes);
}

static double
elements (const struct weft_buf *b)
{
  return (double) b->bytes / weft_dtype_bytes ((enum weft_dtype) b->dtype);
}

/* Whether a buffer is the flat fp32 copy of reduced gradients, which the program keeps for the
 * whole step. In the distributed optimizer of Megatron-Core the copy exists from the reduction to
 * the end of the update (distrib_optimizer.py, _copy_model_grads_to_main_grads and zero_grad). */
static gboolean
is_copy_of_gradients (const struct replay *r, const struct weft_buf *b)
{
  return !r->stack->permanent_fp32_gradients && b->kind == WEFT_BUF_OPTIMIZER &&
         g_str_equal (r->p->name[b->name], WEFT_FP32_GRADIENTS);
}

/* Whether a buffer holds fp8 weights that the program keeps for several ops, and that the software
 * converts again for each op. */
static gboolean
is_converted_weight (const struct replay *r, const struct weft_buf *b)
{
  return !r->stack->permanent_fp8_weights && b->kind == WEFT_BUF_WEIGHTS && b->dtype == WEFT_FP8;
}

/* Holds the parts of converted weights and the copies of gradients while ops use them. */
static void
hold_used (struct replay *r)
{
  g_autofree uint32_t *first = g_new (uint32_t, r->p->n_buf + 1),
                      *last = g_new0 (uint32_t, r->p->n_buf + 1);

  memset (first, 0xff, (r->p->n_buf + 1) * sizeof *first);
  for (uint32_t op = 0; op < r->p->n_op; op++)
    for (uint32_t u = r->p->op[op].uses; u < r->p->op[op + 1].uses; u++) {
      uint32_t buf = r->p->uses[u].buf;
      uint32_t owner = buf == WEFT_NO_BUF ? buf : weft_buf_owner (r->p, buf);
      if (owner == WEFT_NO_BUF)
        continue;
      if (is_converted_weight (r, &r->p->buf[owner]))
        hold (r, (double) r->p->buf[buf].bytes, op, op);
      if (!is_copy_of_gradients (r, &r->p->buf[owner]))
        continue;
      first[owner] = MIN (first[owner], op);
      last[owner] = op;
    }
  for (uint32_t i = 0; i < r->p->n_buf; i++)
    if (first[i] != WEFT_NO_OP)
      hold (r, (double) r->p->buf[i].bytes, first[i], last[i]);
}

static void
hold_buffers (struct replay *r)
{
  for (uint32_t i = 0; i < r->p->n_buf; i++) {
    const struct weft_buf *b = &r->p->buf[i];
    if (b->base != WEFT_NO_BUF || b->pool == WEFT_POOL_HOST || is_converted_weight (r, b) ||
        is_copy_of_gradients (r, b))
      continue;
    if (b->permanent)
      r->permanent += block (r, (double) b->bytes);
    else if (b->first != WEFT_NO_OP)
      hold (r, (double) b->bytes, b->first, b->last);
  }
}

/* ------------------------------------------------------------------------ gradients */

static gboolean
is_layer_matrix (const struct weft_param *param)
{
  return param->layer != WEFT_NO_LAYER && param->columns > 1;
}

/* Rows of the matrix of a parameter; for experts, of one expert. */
static uint64_t
matrix_rows (const struct weft_param *param)
{
  return param->block ? param->block : param->rows;
}

static gboolean
is_first_of_shape (const weft_program *p, uint32_t i)
{
  for (uint32_t j = 0; j < i; j++)
    if (is_layer_matrix (&p->param[j]) && p->param[j].columns == p->param[i].columns &&
        matrix_rows (&p->param[j]) == matrix_rows (&p->param[i]))
      return FALSE;
  return TRUE;
}

/* Transformer Engine adds weight gradients to the sum of the microbatches, and returns a tensor
 * without meaning to autograd. It keeps one such tensor for each shape of weights for ever. */
static void
hold_dummies (struct replay *r)
{
  double bytes = weft_dtype_bytes (weft_job_product_dtype (&r->plan->job));

  if (!r->stack->dummy_weight_gradients || !r->plan->job.strategy.gradient_accumulation_fusion)
    return;
  for (uint32_t i = 0; i < r->p->n_param; i++) {
    const struct weft_param *param = &r->p->param[i];
    if (is_layer_matrix (param) && is_first_of_shape (r->p, i))
      r->permanent += block (r, bytes * (double) (matrix_rows (param) * param->columns));
  }
}

/* Gradients of one microbatch, in the training precision, beside the fp32 sum. */
static void
hold_narrow_gradients (struct replay *r)
{
  double bytes = weft_dtype_bytes (weft_job_product_dtype (&r->plan->job));

  for (uint32_t i = 0; i < r->p->n_buf; i++) {
    const struct weft_buf *b = &r->p->buf[i];
    if (r->stack->keeps_narrow_gradients && b->kind == WEFT_BUF_GRADIENTS && b->permanent &&
        b->base == WEFT_NO_BUF && b->dtype == WEFT_FP32)
      r->permanent += block (r, bytes * elements (b));
  }
}

static uint32_t
operand (const struct replay *r, uint32_t op, uint32_t i)
{
  return r->p->uses[r->p->op[op].uses + i].buf;
}

/* Holds the gradient that one microbatch contributes to a weight, if the program adds it to the sum
 * of the microbatches without a separate buffer: autograd returns a whole tensor. */
static void
hold_contribution (struct replay *r, uint32_t op, uint32_t gradient)
{
  double bytes = weft_dtype_bytes (weft_job_product_dtype (&r->plan->job));

  if (gradient != WEFT_NO_BUF && r->p->buf[weft_buf_owner (r->p, gradient)].permanent)
    hold (r, bytes * elements (&r->p->buf[gradient]), op, op);
}

/* Gradients outside layers. The backward pass of an embedding writes a dense gradient of the whole
 * table; the output layer of Megatron-Core is no module of Transformer Engine, and its tensor
 * without meaning is freed after the op. */
static void
hold_end_gradients (struct replay *r)
{
  for (uint32_t op = 0; op < r->p->n_op; op++)
    if (r->p->op[op].kind == WEFT_OP_EMBED_BWD && r->stack->dense_embedding_gradient)
      hold_contribution (r, op, operand (r, op, 2));
    else if (r->p->op[op].kind == WEFT_OP_MATMUL_WGRAD && r->p->op[op].layer == WEFT_NO_LAYER &&
             r->stack->dummy_weight_gradients)
      hold_contribution (r, op, operand (r, op, 2));
}

/* Tensors of the update, from its first kernel to its last: PyTorch's optimizers run each of their
 * operations over all parameters before the next one, and store what lies between. */
static void
hold_update (struct replay *r)
{
  uint32_t first = WEFT_NO_OP, last = 0;
  double sum = 0;

  for (uint32_t op = 0; op < r->p->n_op; op++) {
    if (r->p->op[op].kind != WEFT_OP_ADAM)
      continue;
    first = MIN (first, op);
    last = op;
    sum += (double) weft_op_shape (r->p, op)->dim[0];
  }
  if (first != WEFT_NO_OP)
    hold (r, r->stack->update_bytes * sum, first, last);
}

/* ------------------------------------------------------------------------ loss */

static gboolean
reads_logits (enum weft_op_kind kind)
{
  return kind == WEFT_OP_XENT || kind == WEFT_OP_XENT_MAX || kind == WEFT_OP_XENT_PART ||
         kind == WEFT_OP_XENT_BWD || kind == WEFT_OP_XENT_GRAD;
}

/* Copies of the logits of a microbatch: in fp32, their softmax, their gradients. They live from the
 * first op of the loss to the last one. */
static void
hold_logits (struct replay *r)
{
  const union weft_strategy *k = &r->plan->job.strategy;
  g_autofree gboolean *held = g_new0 (gboolean, r->p->n_buf + 1);

  if (k->cross_entropy_loss_fusion && k->cross_entropy_fusion_impl != WEFT_LOSS_NATIVE)
    return;
  for (uint32_t op = r->p->n_op; op-- > 0;) {
    if (!reads_logits (r->p->op[op].kind))
      continue;
    uint32_t logits = operand (r, op, 0);
    double bytes = block (r, r->stack->loss_logit_bytes * elements (&r->p->buf[logits]));
    if (!held[logits])
      r->closed[op] += bytes;
    held[logits] = TRUE;
  }
  for (uint32_t op = 0; op < r->p->n_op; op++) {
    if (!reads_logits (r->p->op[op].kind))
      continue;
    uint32_t logits = operand (r, op, 0);
    if (held[logits])
      r->opened[op] += block (r, r->stack->loss_logit_bytes * elements (&r->p->buf[logits]));
    held[logits] = FALSE;
  }
}

/* ------------------------------------------------------------------------ peak */

static struct weft_allocated
peak_of (const struct replay *r)
{
  struct weft_allocated result = { r->permanent, r->permanent, 0 };
  double now = r->permanent;

  for (uint32_t op = 0; op < r->p->n_op; op++) {
    now += r->opened[op];
    if (now > result.peak) {
      result.peak = now;
      result.op = op;
    }
    now -= r->closed[op];
  }
  return result;
}

struct weft_allocated
weft_allocator_run (const weft_plan *plan, uint32_t role)
{
  const weft_program *p = plan->role[role];
  g_autofree double *opened = g_new0 (double, p->n_op + 1), *closed = g_new0 (double, p->n_op + 1);
  struct replay r = {
    .plan = plan, .p = p, .stack = &plan->job.stack, .opened = opened, .closed = closed
  };

  hold_buffers (&r);
  hold_used (&r);
  hold_dummies (&r);
  hold_narrow_gradients (&r);
  hold_end_gradients (&r);
  hold_update (&r);
  hold_logits (&r);
  return peak_of (&r);
}

double
weft_allocator_reserved (const weft_plan *plan, uint32_t role,
                         const struct weft_allocated *allocated)
{
  double cached = plan->job.stack.cached_share * (allocated->peak - allocated->permanent);
  double most = plan->job.cluster.f.gpu_memory - (double) weft_plan_reserved_bytes (plan, role);

  return fmax (allocated->peak, fmin (allocated->peak + cached, most));
}
