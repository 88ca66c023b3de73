#include "core/plan/deepspeed.h"
#include "core/plan/caching.h"
#include <math.h>
#include <string.h>

/* allgather_bucket_size of runtime/zero/constants.py, elements. */
#define GATHER_BUCKET 5e8

/* Bytes of an element of fp32 and of fp64. */
enum { WIDE = 4, WIDEST = 8 };

/* The first step makes the blocks of the passes and of the update, the second one those that its
 * passes need because the update has taken others. */
enum { STEPS = 2 };

struct parameter {
  double elements;
  double updated;  /* elements that the first data parallel rank updates */
  uint32_t weight; /* block of the weight before weights become flat; 0: none, as below */
  uint32_t grad;   /* block of the gradient as kernels write it */
  int64_t group;
};

/* A parameter group of the optimizer. */
struct group {
  double elements, updated;
  uint32_t grad; /* block of the fp32 gradients of the update */
};

struct run {
  const struct weft_job *job;
  const weft_program *p;
  weft_caching *caching;
  struct parameter *parameter;
  struct group *group;
  int64_t n_group;
  double narrow;  /* bytes of a weight as kernels read it */
  gboolean sums;  /* gradients of the microbatches are added in fp32: BF16_Optimizer */
  double ranks;   /* tensor parallel ranks */
  uint32_t micro; /* number of microbatches that the replay takes of the program */
};

static uint32_t
take (struct run *r, double bytes)
{
  return weft_caching_take (r->caching, bytes);
}

static void
give (struct run *r, uint32_t *block)
{
  weft_caching_give (r->caching, *block);
  *block = 0;
}

/* Allocates a tensor and frees it at once. */
static void
pass (struct run *r, double bytes)
{
  uint32_t block = take (r, bytes);
  give (r, &block);
}

/* ------------------------------------------------------------------------ the start */

/* Groups of _get_params_for_weight_decay_optimization() in megatron/optimizer/__init__.py: matrices
 * in the order of the modules, cut by their number, then vectors. */
static void
group_parameters (struct run *r)
{
  int64_t matrices = 0, seen = 0, cuts = r->n_group - 1;

  for (uint32_t i = 0; i < r->p->n_param; i++)
    matrices += r->p->param[i].columns > 1;
  for (uint32_t i = 0; i < r->p->n_param; i++) {
    const struct weft_param *param = &r->p->param[i];
    struct parameter *own = &r->parameter[i];
    own->elements = (double) (param->rows * param->columns);
    own->group = cuts;
    for (int64_t g = cuts; g-- > 0 && param->columns > 1;)
      if (seen < matrices * (g + 1) / cuts)
        own->group = g;
    seen += param->columns > 1;
    r->group[own->group].elements += own->elements;
  }
}

/* Cuts each group into equal parts, of which the first rank updates the first. */
static void
divide_groups (struct run *r)
{
  g_autofree double *left = g_new (double, (gsize) r->n_group);

  for (int64_t g = 0; g < r->n_group; g++)
    left[g] = r->group[g].updated = ceil (r->group[g].elements / (double) weft_job_dp (r->job));
  for (uint32_t i = 0; i < r->p->n_param; i++) {
    struct parameter *own = &r->parameter[i];
    own->updated = fmin (own->elements, left[own->group]);
    left[own->group] -= own->updated;
  }
}

static void
free_weights (struct run *r, int64_t group)
{
  for (uint32_t i = 0; i < r->p->n_param; i++)
    if (r->parameter[i].group == group)
      give (r, &r->parameter[i].weight);
}

/* The constructor of DeepSpeedZeroOptimizer moves the weights of a group to the CPU, and copies
 * them back as one flat tensor; BF16_Optimizer flattens them on the GPU, and has a flat fp32 tensor
 * for all gradients of the group. */
static void
flatten_weights (struct run *r, int64_t g)
{
  const struct group *group = &r->group[g];

  if (!r->sums)
    free_weights (r, g);
  take (r, r->narrow * group->elements);
  free_weights (r, g);
  uint32_t clone = take (r, r->narrow * group->updated);
  take (r, WIDE * group->updated);
  give (r, &clone);
  if (r->sums)
    take (r, WIDE * group->elements);
}

/* initialize_optimizer_states() updates once, with gradients of zero, and so allocates the two
 * moments. */
static void
start (struct run *r)
{
  for (uint32_t i = 0; i < r->p->n_param; i++)
    r->parameter[i].weight = take (r, r->narrow * r->parameter[i].elements);
  for (int64_t g = 0; g < r->n_group; g++)
    flatten_weights (r, g);
  for (int64_t g = 0; g < r->n_group && !r->sums; g++)
    r->group[g].grad = take (r, WIDE * r->group[g].updated);
  for (int64_t g = 0; g < r->n_group; g++) {
    take (r, WIDE * r->group[g].updated);
    take (r, WIDE * r->group[g].updated);
  }
  for (int64_t g = 0; g < r->n_group; g++)
    give (r, &r->group[g].grad);
}

/* ------------------------------------------------------------------------ lifetimes */

/* In Python a tensor lives until its function returns, or until its variable gets another tensor:
 * forward() of ParallelAttention and ParallelTransformerLayer in megatron/model/transformer.py, and
 * CheckpointFunction.backward() of runtime/activation_checkpointing/checkpointing.py, which holds
 * the output of the recomputation. A row: the op that makes the tensor, and the op of the same
 * layer after which no variable and no graph holds it. */
static const struct scope {
  const char *from, *to;
  gboolean first_pass, recompute; /* the passes to which the row applies */
  gboolean backward;              /* `to` is an op of the backward pass */
  gboolean masks;                 /* the row applies to masks, too: a graph holds them */
} scopes[] = {
  { "norm1", "norm2", TRUE, TRUE, FALSE, FALSE },
  { "qkv", "proj", TRUE, TRUE, FALSE, FALSE },
  { "scores", "proj", TRUE, TRUE, FALSE, FALSE },
  { "dropout", "proj", TRUE, FALSE, FALSE, FALSE },
  /* one node of autograd computes both gradients of the product with the values */
  { "dropout", "context", FALSE, TRUE, TRUE, FALSE },
  { "proj", "residual2", TRUE, TRUE, FALSE, FALSE },
  { "residual1", "residual2", TRUE, TRUE, FALSE, TRUE },
  { "norm2", "residual2", TRUE, TRUE, FALSE, FALSE },
  { "residual2", "norm1", FALSE, TRUE, TRUE, FALSE },
};

static gboolean
is_named (const struct run *r, uint32_t op, const char *name)
{
  return g_str_equal (r->p->name[r->p->op[op].name], name);
}

static gboolean
is_mask (const struct run *r, const struct weft_held *h)
{
  return h->buf != WEFT_NO_BUF && r->p->buf[h->buf].dtype == WEFT_UINT8;
}

static gboolean
applies (const struct run *r, const struct scope *scope, const struct weft_held *h)
{
  uint8_t phase = r->p->op[h->first].phase;

  return (scope->masks || !is_mask (r, h)) && is_named (r, h->first, scope->from) &&
         ((scope->first_pass && phase == WEFT_PHASE_FORWARD) ||
          (scope->recompute && phase == WEFT_PHASE_RECOMPUTE));
}

/* The op after which a tensor is gone. */
static uint32_t
end_of (const struct run *r, const struct weft_held *h)
{
  const struct weft_op *op = &r->p->op[h->first];

  for (size_t i = 0; i < G_N_ELEMENTS (scopes) && op->layer != WEFT_NO_LAYER; i++) {
    if (!applies (r, &scopes[i], h))
      continue;
    for (uint32_t at = h->first; at < r->p->n_op && r->p->op[at].layer == op->layer; at++)
      if (is_named (r, at, scopes[i].to) &&
          scopes[i].backward == (r->p->op[at].phase == WEFT_PHASE_BACKWARD))
        return scopes[i].backward ? at : MAX (at, h->last);
  }
  return h->last;
}

/* ------------------------------------------------------------------------ the passes */

/* Tensors of the passes, and those that the replay adds to them. */
struct passes {
  const GArray *held; /* array of struct weft_held */
  uint32_t *block;    /* by tensor: its block */
  /* by op: indices into opens[] and closes[], which list tensors by their first and last op */
  uint32_t *open, *close, *opens, *closes;
  uint32_t *part;    /* by microbatch: this rank's part of the output */
  uint32_t whole;    /* the output that backward uses */
  uint32_t incoming; /* gradient of the output of a layer */
  uint32_t micro;    /* the microbatch whose gradients exist, or WEFT_NO_MICRO */
};

static const struct weft_held *
tensor (const struct passes *t, uint32_t i)
{
  return &g_array_index (t->held, struct weft_held, i);
}

/* Lists the numbers of n keys, each below n_keys, by key. Those of key k begin at first[k]. */
static uint32_t *
list_by_key (const uint32_t *key, uint32_t n, uint32_t n_keys, uint32_t **first)
{
  uint32_t *list = g_new (uint32_t, n + 1), *end = *first = g_new0 (uint32_t, n_keys + 2);

  for (uint32_t i = 0; i < n; i++)
    end[key[i] + 2]++;
  for (uint32_t k = 2; k < n_keys + 2; k++)
    end[k] += end[k - 1];
  for (uint32_t i = 0; i < n; i++)
    list[end[key[i] + 1]++] = i;
  return list;
}

/* Software with partitioned outputs frees the whole output of the stage when it has been sent:
 * _exec_forward_pass() of runtime/pipe/engine.py. */
static void
list_tensors (const struct run *r, struct passes *t)
{
  uint32_t n = t->held->len;
  g_autofree uint32_t *first = g_new (uint32_t, n + 1), *last = g_new (uint32_t, n + 1);
  g_autofree uint32_t *sent = g_new (uint32_t, r->p->n_buf + 1);

  memset (sent, 0xff, (r->p->n_buf + 1) * sizeof *sent);
  for (uint32_t op = 0; op < r->p->n_op && r->ranks > 1; op++)
    if (r->p->op[op].kind == WEFT_OP_SEND && r->p->op[op].peer > 0)
      sent[r->p->uses[r->p->op[op].uses].buf] = op;
  for (uint32_t i = 0; i < n; i++) {
    const struct weft_held *h = tensor (t, i);
    first[i] = h->first;
    last[i] = h->buf != WEFT_NO_BUF && sent[h->buf] != WEFT_NO_OP ? sent[h->buf] : end_of (r, h);
  }
  t->opens = list_by_key (first, n, r->p->n_op, &t->open);
  t->closes = list_by_key (last, n, r->p->n_op, &t->close);
  t->block = g_new0 (uint32_t, n + 1);
  t->part = g_new0 (uint32_t, r->micro + 1);
  t->micro = WEFT_NO_MICRO;
}

static void
passes_clear (struct passes *t)
{
  g_free (t->open);
  g_free (t->close);
  g_free (t->opens);
  g_free (t->closes);
  g_free (t->block);
  g_free (t->part);
}

static void
free_gradients (struct run *r)
{
  for (uint32_t i = 0; i < r->p->n_param; i++)
    give (r, &r->parameter[i].grad);
}

/* update_hp_grads() converts the gradients of a microbatch one after another. */
static void
add_in_fp32 (struct run *r)
{
  for (uint32_t i = 0; i < r->p->n_param; i++)
    if (r->parameter[i].grad)
      pass (r, WIDE * r->parameter[i].elements);
}

/* The parameter to whose gradient an op adds, or NULL. */
static struct parameter *
gradient_of (const struct run *r, uint32_t op)
{
  const struct weft_op *row = &r->p->op[op];
  uint32_t operand = row->kind == WEFT_OP_GRAD_ADD ? 0 : 2;

  if (row->kind != WEFT_OP_GRAD_ADD && row->kind != WEFT_OP_MATMUL_WGRAD &&
      row->kind != WEFT_OP_EMBED_BWD)
    return NULL;
  uint32_t buf = r->p->uses[row->uses + operand].buf;
  for (uint32_t i = 0; i < r->p->n_param && buf != WEFT_NO_BUF; i++)
    if (r->p->param[i].grad == buf)
      return &r->parameter[i];
  return NULL;
}

/* Autograd keeps the first gradient of a parameter, and adds later ones to it. BF16_Optimizer adds
 * those of a microbatch to an fp32 sum, and frees them when the next backward pass begins. */
static void
write_gradient (struct run *r, struct passes *t, uint32_t op)
{
  struct parameter *own = gradient_of (r, op);

  if (!own)
    return;
  if (r->sums && r->p->op[op].micro != t->micro) {
    add_in_fp32 (r);
    free_gradients (r);
    t->micro = r->p->op[op].micro;
  }
  if (own->grad)
    pass (r, r->narrow * own->elements);
  else
    own->grad = take (r, r->narrow * own->elements);
}

/* The bytes of the first operand of an op. */
static double
operand_bytes (const struct run *r, uint32_t op)
{
  return (double) r->p->buf[r->p->uses[r->p->op[op].uses].buf].bytes;
}

/* PartitionedTensor.full() of runtime/utils.py gathers the parts of the tensor parallel ranks in a
 * new tensor, for which ProcessGroupNCCL::allgather() needs another one, and returns a copy. This
 * is the tensor and the other one; returns the former. */
static uint32_t
gather_parts (struct run *r, double bytes)
{
  uint32_t flat = take (r, bytes);

  pass (r, bytes);
  return flat;
}

/* The backward pass begins with the whole output and frees it at its end: _exec_backward_pass(). */
static void
restore_output (struct run *r, struct passes *t, uint32_t op)
{
  double bytes = operand_bytes (r, op);

  give (r, &t->whole);
  give (r, &t->part[r->p->op[op].micro]);
  uint32_t flat = gather_parts (r, bytes);
  t->whole = take (r, bytes);
  give (r, &flat);
}

/* Tensors of the pass through a norm of a layer, beside the program's: its kernel writes a new
 * gradient, which autograd adds to that of the residual, and CheckpointFunction.backward() holds
 * the gradient of the output of the layer until it returns. */
static void
run_norm (struct run *r, struct passes *t, uint32_t op)
{
  pass (r, operand_bytes (r, op));
  if (is_named (r, op, "norm2"))
    t->incoming = take (r, operand_bytes (r, op));
  else
    give (r, &t->incoming);
}

/* What the engine allocates before the tensors of an op, and frees after it. */
static uint32_t
before_op (struct run *r, struct passes *t, uint32_t op)
{
  const struct weft_op *row = &r->p->op[op];

  if (row->phase == WEFT_PHASE_FORWARD)
    give (r, &t->whole);
  if (r->ranks > 1 && row->kind == WEFT_OP_RELEASE)
    restore_output (r, t, op);
  return r->ranks > 1 && row->kind == WEFT_OP_RECV ? gather_parts (r, operand_bytes (r, op)) : 0;
}

static void
run_op (struct run *r, struct passes *t, uint32_t op)
{
  const struct weft_op *row = &r->p->op[op];
  uint32_t flat = before_op (r, t, op);

  for (uint32_t i = t->open[op]; i < t->open[op + 1]; i++)
    t->block[t->opens[i]] = take (r, tensor (t, t->opens[i])->bytes);
  give (r, &flat);
  if (r->ranks > 1 && row->kind == WEFT_OP_SEND && row->peer > 0)
    t->part[row->micro] = take (r, operand_bytes (r, op) / r->ranks);
  if (row->kind == WEFT_OP_NORM_BWD && row->layer != WEFT_NO_LAYER)
    run_norm (r, t, op);
  write_gradient (r, t, op);
  for (uint32_t i = t->close[op]; i < t->close[op + 1]; i++)
    give (r, &t->block[t->closes[i]]);
}

static void
run_passes (struct run *r, struct passes *t)
{
  t->micro = WEFT_NO_MICRO;
  for (uint32_t op = 0; op < r->p->n_op; op++)
    if (r->p->op[op].micro == WEFT_NO_MICRO || r->p->op[op].micro < r->micro)
      run_op (r, t, op);
  give (r, &t->whole);
  if (r->sums)
    add_in_fp32 (r);
}

/* ------------------------------------------------------------------------ the update */

/* Whether a parameter is of a group and the rank updates some of it. */
static gboolean
is_updated (const struct run *r, uint32_t i, int64_t group)
{
  return r->parameter[i].group == group && r->parameter[i].updated > 0;
}

/* Reduces a bucket of several gradients: allreduce_bucket() of runtime/zero/stage_1_and_2.py copies
 * them to a flat tensor, and converts bf16 to fp16. A collective uses the last tensor until the
 * device has run it. If the host does not wait, the block is in use until the end of all buckets,
 * and goes to `late`. */
static void
reduce_bucket (struct run *r, double elements, uint32_t tensors, GArray *late)
{
  uint32_t flat = take (r, tensors > 1 ? r->narrow * elements : 0), sent = 0;

  if (weft_job_product_dtype (r->job) == WEFT_BF16)
    sent = take (r, r->narrow * elements);
  g_array_append_val (late, flat);
  g_array_append_val (late, sent);
  for (guint i = 0; i < late->len && r->job->stack.launch_blocking; i++)
    give (r, &g_array_index (late, uint32_t, i));
}

/* reduce_independent_p_g_buckets_and_remove_grads() fills buckets of reduce_bucket_size with the
 * gradients of one group after another. */
static void
reduce (struct run *r)
{
  g_autoptr (GArray) late = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  double elements = 0;
  uint32_t tensors = 0;

  for (int64_t g = 0; g < r->n_group; g++)
    for (uint32_t i = 0; i < r->p->n_param; i++) {
      if (r->parameter[i].group != g)
        continue;
      double more = r->parameter[i].elements;
      if (tensors > 0 && elements + more > r->job->stack.reduction_copy_elements) {
        reduce_bucket (r, elements, tensors, late);
        elements = tensors = 0;
      }
      elements += more;
      tensors++;
    }
  reduce_bucket (r, elements, tensors, late);
  for (guint i = 0; i < late->len; i++)
    give (r, &g_array_index (late, uint32_t, i));
}

/* independent_gradient_partition_epilogue() frees the gradients that other ranks update;
 * has_overflow_partitioned_grads_serial() converts each of the others to fp32. */
static void
check_overflow (struct run *r)
{
  for (uint32_t i = 0; i < r->p->n_param; i++)
    if (r->parameter[i].updated <= 0)
      give (r, &r->parameter[i].grad);
  for (int64_t g = 0; g < r->n_group; g++)
    for (uint32_t i = 0; i < r->p->n_param; i++)
      if (is_updated (r, i, g))
        pass (r, WIDE * r->parameter[i].updated);
}

/* step(): get_grad_norm_direct() converts each gradient of a group to fp64; then flatten() copies
 * several to one tensor, which is converted to fp32, and they are freed. */
static void
convert_gradients (struct run *r, int64_t g)
{
  uint32_t tensors = 0;

  for (uint32_t i = 0; i < r->p->n_param; i++)
    if (is_updated (r, i, g)) {
      pass (r, WIDEST * r->parameter[i].updated);
      tensors++;
    }
  uint32_t flat = take (r, tensors > 1 ? r->narrow * r->group[g].updated : 0);
  r->group[g].grad = take (r, WIDE * r->group[g].updated);
  give (r, &flat);
  for (uint32_t i = 0; i < r->p->n_param; i++)
    if (r->parameter[i].group == g)
      give (r, &r->parameter[i].grad);
}

/* ProcessGroupNCCL::allgather() receives each piece of the weights in a tensor of its own. */
static void
gather_weights (struct run *r)
{
  for (int64_t g = 0; g < r->n_group; g++) {
    double pieces = fmax (1, floor (r->group[g].elements / GATHER_BUCKET));
    pass (r, r->narrow * r->group[g].elements / pieces);
  }
}

static void
update (struct run *r)
{
  if (r->sums) {
    /* allreduce_bucket() of runtime/engine.py converts flat gradients to communication_data_type */
    for (int64_t g = 0; g < r->n_group; g++)
      pass (r, r->narrow * r->group[g].elements);
  } else {
    reduce (r);
    check_overflow (r);
    for (int64_t g = 0; g < r->n_group; g++)
      convert_gradients (r, g);
    for (int64_t g = 0; g < r->n_group; g++)
      give (r, &r->group[g].grad);
  }
  gather_weights (r);
}

static gboolean
sums_in_fp32 (const weft_program *p)
{
  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].kind == WEFT_BUF_GRADIENTS && p->buf[i].permanent &&
        p->buf[i].base == WEFT_NO_BUF && p->buf[i].dtype == WEFT_FP32)
      return TRUE;
  return FALSE;
}

/* From the number of microbatches that are in flight on, each further one takes the same blocks as
 * the one before, so the replay takes twice as many. */
static uint32_t
microbatches (const struct weft_job *job)
{
  int64_t all = weft_job_microbatches (job),
          enough = 2 * (job->strategy.pipeline_model_parallel_size + 1);

  return (uint32_t) MIN (all, enough);
}

double
weft_deepspeed_reserved (const struct weft_job *job, const weft_program *p, const GArray *held,
                         double permanent, double most)
{
  int64_t n_group = job->stack.optimizer_groups + 1;
  g_autoptr (weft_caching) caching = weft_caching_new (most);
  g_autofree struct parameter *parameter = g_new0 (struct parameter, p->n_param + 1);
  g_autofree struct group *group = g_new0 (struct group, (gsize) n_group);
  struct run r = { .job = job,
                   .p = p,
                   .caching = caching,
                   .parameter = parameter,
                   .group = group,
                   .n_group = n_group,
                   .narrow = weft_dtype_bytes (weft_job_product_dtype (job)),
                   .sums = sums_in_fp32 (p),
                   .ranks = (double) job->strategy.tensor_model_parallel_size,
                   .micro = microbatches (job) };
  struct passes t = { .held = held };

  group_parameters (&r);
  divide_groups (&r);
  list_tensors (&r, &t);
  take (&r, permanent);
  start (&r);
  for (int step = 0; step < STEPS; step++) {
    run_passes (&r, &t);
    update (&r);
  }
  passes_clear (&t);
  return weft_caching_reserved (caching);
}
