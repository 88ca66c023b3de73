#include "core/plan/allocator.h"
#include "core/plan/deepspeed.h"
#include <math.h>
#include <string.h>

/* Values of fields of core/stack.def. */
enum { FLAT_AS_DEEPSPEED = 2 /* flat_update */, RENEWED = 2 /* keeps_narrow_gradients */ };

/* The blocks of one role. */
struct replay {
  const struct weft_job *job;
  const weft_program *p;
  const union weft_stack *stack;
  gboolean first;  /* the step is the first of a run */
  uint32_t update; /* the first kernel of Adam, or WEFT_NO_OP */
  double permanent[WEFT_N_BUF_KIND];
  GArray *held; /* array of struct weft_held */
};

/* Whether the bytes that the allocator reserves come from a replay of DeepSpeed's allocations. */
static gboolean
is_replayed (const struct weft_job *job)
{
  return job->stack.optimizer_groups > 0 && job->strategy.use_distributed_optimizer;
}

static double
block (const struct replay *r, double bytes)
{
  return ceil (bytes / r->stack->allocator_block) * r->stack->allocator_block;
}

/* Holds a tensor from op `first` to op `last`. */
static void
hold (struct replay *r, enum weft_buf_kind kind, double bytes, uint32_t first, uint32_t last)
{
  struct weft_held held = { block (r, bytes), first, last, WEFT_NO_BUF, (uint8_t) kind, FALSE };

  g_array_append_val (r->held, held);
}

/* Holds a flat tensor of the update from op `first` to op `last`. */
static void
hold_flat (struct replay *r, enum weft_buf_kind kind, double bytes, uint32_t first, uint32_t last)
{
  hold (r, kind, bytes, first, last);
  g_array_index (r->held, struct weft_held, r->held->len - 1).flat = r->stack->flat_update > 0;
}

/* Holds a tensor during the whole step. */
static void
keep (struct replay *r, enum weft_buf_kind kind, double bytes)
{
  r->permanent[kind] += block (r, bytes);
}

static double
elements (const struct weft_buf *b)
{
  return (double) b->bytes / weft_dtype_bytes ((enum weft_dtype) b->dtype);
}

static gboolean
writes_gradient (const struct weft_op *op)
{
  return op->kind == WEFT_OP_MATMUL_WGRAD || op->kind == WEFT_OP_EMBED_BWD;
}

/* The first op that writes a gradient of weights; op 0 if there is none. */
static uint32_t
first_gradient (const weft_program *p)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (writes_gradient (&p->op[op]))
      return op;
  return 0;
}

/* The last op that writes a gradient of weights; op 0 if there is none. */
static uint32_t
last_gradient (const weft_program *p)
{
  for (uint32_t op = p->n_op; op-- > 0;)
    if (writes_gradient (&p->op[op]))
      return op;
  return 0;
}

/* The first or the last kernel of Adam; WEFT_NO_OP if there is none. */
static uint32_t
update_op (const weft_program *p, gboolean last)
{
  for (uint32_t i = 0; i < p->n_op; i++) {
    uint32_t op = last ? p->n_op - 1 - i : i;
    if (p->op[op].kind == WEFT_OP_ADAM)
      return op;
  }
  return WEFT_NO_OP;
}

/* Holds a sum of gradients in the training precision: during the whole step, or from the first
 * backward pass to the reduction. */
static void
hold_gradient (struct replay *r, double bytes)
{
  if (r->stack->flat_update == FLAT_AS_DEEPSPEED)
    hold (r, WEFT_BUF_GRADIENTS, bytes, first_gradient (r->p), last_gradient (r->p));
  else
    keep (r, WEFT_BUF_GRADIENTS, bytes);
}

/* Whether a buffer is the flat fp32 copy of reduced gradients, which the program keeps for the
 * whole step. In the distributed optimizer of Megatron-Core the copy exists from the reduction to
 * the end of the update (distrib_optimizer.py, _copy_model_grads_to_main_grads and zero_grad). */
static gboolean
is_copy_of_gradients (const union weft_stack *stack, const weft_program *p,
                      const struct weft_buf *b)
{
  return !stack->permanent_fp32_gradients && b->kind == WEFT_BUF_OPTIMIZER &&
         g_str_equal (p->name[b->name], WEFT_FP32_GRADIENTS);
}

/* Whether a buffer holds fp8 weights that the program keeps for several ops, and that the software
 * converts again for each op. */
static gboolean
is_converted_weight (const union weft_stack *stack, const struct weft_buf *b)
{
  return !stack->fp8_weight_lifetime && b->kind == WEFT_BUF_WEIGHTS && b->dtype == WEFT_FP8;
}

/* Whether a buffer holds fp8 weights of one microbatch, and the software keeps them longer. */
static gboolean
is_kept_weight (const struct weft_job *job, const struct weft_buf *b)
{
  return weft_job_fp8_lifetime (job) >= WEFT_FP8_FOR_STEP && b->kind == WEFT_BUF_WEIGHTS &&
         b->dtype == WEFT_FP8 && !b->permanent;
}

gboolean
weft_allocator_holds (const struct weft_job *job, const weft_program *p, const struct weft_buf *b)
{
  return !is_converted_weight (&job->stack, b) && !is_kept_weight (job, b) &&
         !is_copy_of_gradients (&job->stack, p, b);
}

/* Number of elements of the gradients of one microbatch that exist in the training precision
 * besides their fp32 sum. */
static double
doubled_gradients (const struct replay *r)
{
  double sum = 0;

  for (uint32_t i = 0; i < r->p->n_buf; i++) {
    const struct weft_buf *b = &r->p->buf[i];
    if (r->stack->keeps_narrow_gradients && b->kind == WEFT_BUF_GRADIENTS && b->permanent &&
        b->base == WEFT_NO_BUF && b->dtype == WEFT_FP32)
      sum += elements (b);
  }
  return sum;
}

/* Number of elements of the largest parameter. */
static double
largest_parameter (const struct replay *r)
{
  double most = 0;

  for (uint32_t i = 0; i < r->p->n_param; i++)
    most = fmax (most, (double) (r->p->param[i].rows * r->p->param[i].columns));
  return most;
}

/* Bytes of the largest block of the norm of ZeRO, which converts the part of one gradient after
 * another that the rank updates, `updated` elements in all, to fp64; 0: there is none. */
static double
norm_block (const struct replay *r, double updated)
{
  if (r->stack->flat_update != FLAT_AS_DEEPSPEED || doubled_gradients (r) > 0)
    return 0;
  return sizeof (double) * fmin (updated, largest_parameter (r));
}

/* Adds the flat buffer of gradients in the training precision that software uses besides an fp32
 * copy, for the time of the op that writes the copy, unless the block of the norm, which is free
 * then, has room for it. */
static void
hold_flat_gradients (struct replay *r, const struct weft_buf *copy, uint32_t op)
{
  double bytes = r->stack->flat_gradient_bytes * elements (copy);

  if (bytes > norm_block (r, elements (copy)))
    hold_flat (r, WEFT_BUF_GRADIENTS, bytes, op, op);
}

/* Holds the parts of converted weights while ops use them, and the copies of gradients until the
 * last kernel of the update. */
static void
hold_used (struct replay *r)
{
  uint32_t update = update_op (r->p, TRUE);
  g_autofree uint32_t *first = g_new (uint32_t, r->p->n_buf + 1),
                      *last = g_new0 (uint32_t, r->p->n_buf + 1);

  memset (first, 0xff, (r->p->n_buf + 1) * sizeof *first);
  for (uint32_t op = 0; op < r->p->n_op; op++)
    for (uint32_t u = r->p->op[op].uses; u < r->p->op[op + 1].uses; u++) {
      uint32_t buf = r->p->uses[u].buf;
      uint32_t owner = buf == WEFT_NO_BUF ? buf : weft_buf_owner (r->p, buf);
      if (owner == WEFT_NO_BUF)
        continue;
      if (is_converted_weight (r->stack, &r->p->buf[owner]))
        hold (r, WEFT_BUF_WEIGHTS, (double) r->p->buf[buf].bytes, op, op);
      if (!is_copy_of_gradients (r->stack, r->p, &r->p->buf[owner]))
        continue;
      first[owner] = MIN (first[owner], op);
      last[owner] = update == WEFT_NO_OP ? op : MAX (op, update);
    }
  for (uint32_t i = 0; i < r->p->n_buf; i++)
    if (first[i] != WEFT_NO_OP) {
      hold_flat (r, WEFT_BUF_OPTIMIZER, (double) r->p->buf[i].bytes, first[i], last[i]);
      hold_flat_gradients (r, &r->p->buf[i], first[i]);
    }
}

/* Keeps the fp8 codes of all converted weights and their transposed copies. They are as large as
 * the buffers of the first microbatch, one for each chunk. */
static void
keep_weights (struct replay *r)
{
  enum { ORIENTATIONS = 2 };

  if (weft_job_fp8_lifetime (r->job) == WEFT_FP8_ALWAYS)
    return;
  for (uint32_t i = 0; i < r->p->n_buf; i++) {
    const struct weft_buf *b = &r->p->buf[i];
    if (is_kept_weight (r->job, b) && b->base == WEFT_NO_BUF && b->micro == 0 &&
        g_str_equal (r->p->name[b->name], WEFT_CAST_WEIGHTS))
      keep (r, WEFT_BUF_WEIGHTS, ORIENTATIONS * (double) b->bytes);
  }
}

/* Whether weights are sharded over replicas, so that the update runs over the shards of single
 * parameters. */
static gboolean
shards_weights (const struct replay *r)
{
  const union weft_strategy *k = &r->job->strategy;

  return k->use_megatron_fsdp || k->distributed_config == WEFT_FSDP2;
}

/* The bytes of a buffer that exists during the whole step: those of the program, in which shards of
 * weights, gradients and Adam's moments are fp32, or those of the training precision. */
static double
permanent_bytes (const struct replay *r, const struct weft_buf *b)
{
  gboolean shard =
      b->kind == WEFT_BUF_WEIGHTS || b->kind == WEFT_BUF_GRADIENTS || b->kind == WEFT_BUF_OPTIMIZER;

  if (!r->stack->narrow_shards || !shards_weights (r) || !shard || b->dtype != WEFT_FP32)
    return (double) b->bytes;
  return weft_dtype_bytes (weft_job_product_dtype (r->job)) * elements (b);
}

/* Whether a buffer holds the sum of the gradients of all microbatches in the training precision. */
static gboolean
is_narrow_gradient (const struct weft_buf *b)
{
  return b->kind == WEFT_BUF_GRADIENTS && b->dtype != WEFT_FP32;
}

/* Whether a buffer is optimizer state that the first update allocates. */
static gboolean
comes_with_update (const struct replay *r, const struct weft_buf *b)
{
  const char *name = r->p->name[b->name];

  return r->first && r->update != WEFT_NO_OP && r->stack->late_moments &&
         b->kind == WEFT_BUF_OPTIMIZER && !g_str_equal (name, WEFT_FP32_WEIGHTS) &&
         !g_str_equal (name, WEFT_FP32_GRADIENTS);
}

/* Holds a buffer of the program that the software has as long as the program. */
static void
hold_buffer (struct replay *r, const struct weft_buf *b)
{
  if (b->permanent && is_narrow_gradient (b))
    hold_gradient (r, permanent_bytes (r, b));
  else if (b->permanent && comes_with_update (r, b))
    hold (r, b->kind, permanent_bytes (r, b), r->update, r->p->n_op - 1);
  else if (b->permanent)
    keep (r, b->kind, permanent_bytes (r, b));
  else if (b->first != WEFT_NO_OP) {
    hold (r, b->kind, (double) b->bytes, b->first, b->last);
    g_array_index (r->held, struct weft_held, r->held->len - 1).buf = (uint32_t) (b - r->p->buf);
  }
}

static void
hold_buffers (struct replay *r)
{
  for (uint32_t i = 0; i < r->p->n_buf; i++) {
    const struct weft_buf *b = &r->p->buf[i];
    if (b->base != WEFT_NO_BUF || b->pool == WEFT_POOL_HOST ||
        !weft_allocator_holds (r->job, r->p, b))
      continue;
    hold_buffer (r, b);
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

/* Holds the dummy gradients of Transformer Engine, which adds weight gradients to the sum of the
 * microbatches itself and returns a tensor with arbitrary content to autograd. It keeps one such
 * tensor for each shape of weights and never frees it. */
static void
hold_dummies (struct replay *r)
{
  double bytes = weft_dtype_bytes (weft_job_product_dtype (r->job));

  if (!r->stack->dummy_weight_gradients || !r->job->strategy.gradient_accumulation_fusion)
    return;
  for (uint32_t i = 0; i < r->p->n_param; i++) {
    const struct weft_param *param = &r->p->param[i];
    if (!param->frozen && is_layer_matrix (param) && is_first_of_shape (r->p, i))
      keep (r, WEFT_BUF_GRADIENTS, bytes * (double) (matrix_rows (param) * param->columns));
  }
}

/* Holds the gradients of one microbatch in the training precision, besides their fp32 sum. If each
 * backward pass allocates them anew, the blocks of the pass before count as in use, too, because
 * activations have divided them, unless the replay finds out. */
static void
hold_narrow_gradients (struct replay *r)
{
  double bytes = weft_dtype_bytes (weft_job_product_dtype (r->job)) * doubled_gradients (r);
  uint32_t first = first_gradient (r->p), last = last_gradient (r->p);

  if (r->stack->keeps_narrow_gradients != RENEWED) {
    keep (r, WEFT_BUF_GRADIENTS, bytes);
    return;
  }
  hold_flat (r, WEFT_BUF_GRADIENTS, bytes, first, last);
  if (!is_replayed (r->job))
    hold_flat (r, WEFT_BUF_GRADIENTS, bytes, first, last);
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
  double bytes = weft_dtype_bytes (weft_job_product_dtype (r->job));

  if (gradient != WEFT_NO_BUF && r->p->buf[weft_buf_owner (r->p, gradient)].permanent)
    hold (r, WEFT_BUF_GRADIENTS, bytes * elements (&r->p->buf[gradient]), op, op);
}

/* Holds gradients of parameters outside layers. The backward pass of an embedding writes a dense
 * gradient of the whole table. The output layer of Megatron-Core is no module of Transformer
 * Engine, and its dummy gradient is freed after the op. */
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

/* Holds the flat buffers into which gradients are copied for their reduction, at most as large as
 * all gradients. Software that adds gradients of each microbatch to an fp32 sum converts one tensor
 * at a time, and reduces the sum in place. */
static void
hold_reduction_copies (struct replay *r)
{
  double copied = r->stack->reduction_copy_elements, all = 0, width = 0;
  uint32_t op = last_gradient (r->p);

  for (uint32_t i = 0; i < r->p->n_buf; i++) {
    const struct weft_buf *b = &r->p->buf[i];
    if (b->kind != WEFT_BUF_GRADIENTS || !b->permanent || b->base != WEFT_NO_BUF)
      continue;
    width = weft_dtype_bytes ((enum weft_dtype) b->dtype);
    all += (double) b->bytes;
  }
  if (copied > 0 && doubled_gradients (r) > 0)
    copied = largest_parameter (r);
  if (copied > 0)
    hold_flat (r, WEFT_BUF_COMMUNICATION, fmin (width * copied, all), op, op);
}

/* Holds what the norm of ZeRO needs beside the block of the fp32 gradients of `updated` elements,
 * which it uses before them. */
static void
hold_norm (struct replay *r, double updated, uint32_t op)
{
  double block = norm_block (r, updated), converted = weft_dtype_bytes (WEFT_FP32) * updated;

  if (block > converted)
    hold_flat (r, WEFT_BUF_GRADIENTS, block - converted, op, op);
}

/* The share of a role's parameters that are stored in fp8: the matrices of layers. */
static double
fp8_share (const struct replay *r)
{
  double matrices = 0, all = 0;

  for (uint32_t i = 0; i < r->p->n_param; i++) {
    const struct weft_param *param = &r->p->param[i];
    double n = (double) (param->rows * param->columns);
    matrices += is_layer_matrix (param) ? n : 0;
    all += n;
  }
  return all > 0 ? matrices / all : 0;
}

/* Holds the copies of the fp32 weights from which the software makes the weights that it stores in
 * fp8, all at a time, after the last kernel of the update, which handles `updated` elements. */
static void
hold_fp8_copies (struct replay *r, double updated, uint32_t op)
{
  const union weft_strategy *k = &r->job->strategy;
  gboolean stored = k->fp8_param_gather || weft_job_fp8_lifetime (r->job) == WEFT_FP8_ALWAYS;

  if (stored && !k->reuse_grad_buf_for_mxfp8_param_ag)
    hold (r, WEFT_BUF_WORKSPACE, r->stack->fp8_copy_bytes * fp8_share (r) * updated, op, op);
}

/* Holds the intermediate tensors of the update, from its first kernel to its last. PyTorch's
 * optimizers run each operation over all parameters before the next operation, and store the
 * intermediate results. */
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
  if (first == WEFT_NO_OP)
    return;
  hold_fp8_copies (r, sum, last);
  if (shards_weights (r)) {
    hold (r, WEFT_BUF_WORKSPACE, r->stack->update_bytes * sum, first, last);
    keep (r, WEFT_BUF_WEIGHTS, r->stack->shard_copy_bytes * sum);
  } else {
    hold_flat (r, WEFT_BUF_WORKSPACE, r->stack->update_bytes * sum, first, last);
    hold_reduction_copies (r);
    hold_norm (r, sum, first);
  }
}

/* ------------------------------------------------------------------------ loss */

static gboolean
reads_logits (enum weft_op_kind kind)
{
  return kind == WEFT_OP_XENT || kind == WEFT_OP_XENT_MAX || kind == WEFT_OP_XENT_PART ||
         kind == WEFT_OP_XENT_BWD || kind == WEFT_OP_XENT_GRAD;
}

/* Holds tensors that are as large as the logits of a microbatch, from the first op of the loss to
 * the last: a copy in fp32, the softmax, the gradients. */
static void
hold_logits (struct replay *r)
{
  const union weft_strategy *k = &r->job->strategy;
  g_autofree uint32_t *first = g_new (uint32_t, r->p->n_buf + 1),
                      *last = g_new0 (uint32_t, r->p->n_buf + 1);

  if (k->cross_entropy_loss_fusion && k->cross_entropy_fusion_impl != WEFT_LOSS_NATIVE)
    return;
  memset (first, 0xff, (r->p->n_buf + 1) * sizeof *first);
  for (uint32_t op = 0; op < r->p->n_op; op++)
    if (reads_logits (r->p->op[op].kind)) {
      uint32_t logits = operand (r, op, 0);
      first[logits] = MIN (first[logits], op);
      last[logits] = op;
    }
  for (uint32_t i = 0; i < r->p->n_buf; i++)
    if (first[i] != WEFT_NO_OP)
      hold (r, WEFT_BUF_ACTIVATIONS, r->stack->loss_logit_bytes * elements (&r->p->buf[i]),
            first[i], last[i]);
}

/* ------------------------------------------------------------------------ peak */

/* Writes the bytes in use after the allocations of each op, with or without flat tensors. */
static void
sum_by_op (const struct replay *r, gboolean flat, double *in_use)
{
  g_autofree double *change = g_new0 (double, r->p->n_op + 1);
  double now = 0;

  for (guint i = 0; i < r->held->len; i++) {
    const struct weft_held *h = &g_array_index (r->held, struct weft_held, i);
    if (h->flat && !flat)
      continue;
    change[h->first] += h->bytes;
    change[h->last + 1] -= h->bytes;
  }
  for (uint32_t op = 0; op < r->p->n_op; op++)
    in_use[op] = now += change[op];
}

/* Returns the first op at which in_use[] is largest, and sets *most to this number of bytes, at
 * least 0. */
static uint32_t
op_of_most (const double *in_use, uint32_t n, double *most)
{
  uint32_t op = 0;

  *most = 0;
  for (uint32_t i = 0; i < n; i++)
    if (in_use[i] > *most) {
      *most = in_use[i];
      op = i;
    }
  return op;
}

/* Sets the bytes of the blocks that are in use at the op of the peak, by kind. */
static void
fill_at_peak (const struct replay *r, struct weft_allocated *result)
{
  memcpy (result->at_peak, r->permanent, sizeof result->at_peak);
  for (guint i = 0; i < r->held->len; i++) {
    const struct weft_held *h = &g_array_index (r->held, struct weft_held, i);
    if (h->first <= result->op && result->op <= h->last)
      result->at_peak[h->kind] += h->bytes;
    if (h->flat)
      result->flat += h->bytes;
  }
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++) {
    result->permanent += r->permanent[kind];
    result->peak += result->at_peak[kind];
  }
}

static struct weft_allocated
peak_of (const struct replay *r)
{
  struct weft_allocated result = { 0 };
  g_autofree double *in_use = g_new0 (double, r->p->n_op + 1);
  double most;

  sum_by_op (r, FALSE, in_use);
  op_of_most (in_use, r->p->n_op, &result.shared);
  sum_by_op (r, TRUE, in_use);
  result.op = op_of_most (in_use, r->p->n_op, &most);
  fill_at_peak (r, &result);
  return result;
}

static void
replay_init (struct replay *r, const struct weft_job *job, const weft_program *p, gboolean first)
{
  *r = (struct replay){ .job = job,
                        .p = p,
                        .stack = &job->stack,
                        .first = first,
                        .update = update_op (p, FALSE),
                        .held = g_array_new (FALSE, FALSE, sizeof (struct weft_held)) };
  hold_buffers (r);
  hold_used (r);
  keep_weights (r);
  hold_dummies (r);
  hold_narrow_gradients (r);
  hold_end_gradients (r);
  hold_update (r);
  hold_logits (r);
}

static struct weft_allocated
replay_step (const struct weft_job *job, const weft_program *p, gboolean first)
{
  struct replay r;

  replay_init (&r, job, p, first);
  struct weft_allocated result = peak_of (&r);
  g_array_unref (r.held);
  return result;
}

struct weft_allocated
weft_allocator_run (const struct weft_job *job, const weft_program *p)
{
  return replay_step (job, p, FALSE);
}

struct weft_allocated
weft_allocator_run_first (const struct weft_job *job, const weft_program *p)
{
  return replay_step (job, p, TRUE);
}

/* Whether a tensor is of the passes, and no gradient: a grad_add reads a gradient of one microbatch
 * last. */
static gboolean
is_of_passes (const weft_program *p, const struct weft_held *h)
{
  return !h->flat && h->kind != WEFT_BUF_GRADIENTS && h->kind != WEFT_BUF_OPTIMIZER &&
         p->op[h->last].kind != WEFT_OP_GRAD_ADD;
}

/* The bytes that DeepSpeed reserves: its flat tensors and the blocks of the passes serve one
 * another as far as their sizes allow. */
static double
reserved_by_deepspeed (const struct weft_job *job, const weft_program *p, double most)
{
  g_autoptr (GArray) passes = g_array_new (FALSE, FALSE, sizeof (struct weft_held));
  struct replay r;
  double permanent = 0;

  replay_init (&r, job, p, FALSE);
  for (guint i = 0; i < r.held->len; i++)
    if (is_of_passes (p, &g_array_index (r.held, struct weft_held, i)))
      g_array_append_val (passes, g_array_index (r.held, struct weft_held, i));
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    if (kind != WEFT_BUF_WEIGHTS && kind != WEFT_BUF_GRADIENTS && kind != WEFT_BUF_OPTIMIZER)
      permanent += r.permanent[kind];
  g_array_unref (r.held);
  return weft_deepspeed_reserved (job, p, passes, permanent, most);
}

double
weft_allocator_reserved (const struct weft_job *job, const weft_program *p,
                         const struct weft_allocated *allocated, double libraries)
{
  double most = job->cluster.f.gpu_memory - libraries;

  if (is_replayed (job))
    return fmax (allocated->peak, reserved_by_deepspeed (job, p, most));
  double blocks = allocated->permanent + allocated->shared + allocated->flat;
  double cached = job->stack.cached_share * allocated->shared;

  return fmax (allocated->peak, fmin (blocks + cached, most));
}
