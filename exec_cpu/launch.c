/* An op that computes or copies: its operands in the arena, and the kernel that works on them. */
#include "core/base/error.h"
#include "core/base/exact.h"
#include "exec_cpu/machine.h"
#include "exec_cpu/team.h"
#include <math.h>
#include <string.h>

/* FLOPs and bytes of a kernel that is worth waking other threads for: they cost some 10 us. */
#define WORTH_SHARING 1e6

/* Bytes of weights are only moved, and words of exact sums have no average. */
static gboolean
can_reduce (const struct weft_op *row, enum weft_dtype dtype)
{
  enum weft_op_kind kind = weft_op_even (row->kind);

  if (kind != WEFT_OP_ALL_REDUCE && kind != WEFT_OP_REDUCE_SCATTER)
    return TRUE;
  return dtype != WEFT_FP8 && (dtype != WEFT_INT64 || (row->reduce != WEFT_REDUCE_AVG &&
                                                       row->reduce != WEFT_REDUCE_PREMUL));
}

gboolean
cpu_launch_can (const weft_program *p, GError **error)
{
  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_op_kind kind = p->op[op].kind;
    const struct weft_shape *shape = weft_op_shape (p, op);
    if (kind == WEFT_OP_FILL)
      return weft_bad_input (error, "the cpu executor draws no weights: they are written");
    if (!can_reduce (&p->op[op], shape->dtype))
      return weft_bad_input (error, "the cpu executor has no %s of %s over %s", weft_op_words[kind],
                             weft_reduce_words[p->op[op].reduce], weft_dtype_words[shape->dtype]);
  }
  return TRUE;
}

struct weft_operand
cpu_operand (const struct cpu_rank *r, const struct weft_use *use)
{
  if (use->buf == WEFT_NO_BUF)
    return (struct weft_operand){ 0 };
  const struct weft_buf *b = &r->p->buf[use->buf];
  struct weft_group sharing = weft_mesh_group (&r->m->base.plan->mesh, r->rank, b->shard);
  uint64_t size = weft_dtype_bytes (b->dtype), n = b->bytes / size / weft_group_size (&sharing);
  uint8_t *data = cpu_arena_at (r, use->buf) + weft_group_index (&sharing, r->rank) * n * size;

  return (struct weft_operand){
    .data = data, .n = n, .dtype = b->dtype, .accumulate = use->read && use->write
  };
}

/* Attention is shared out over a ring, all else over every rank that has a part of the sequence. */
static struct weft_place
place_of (const struct cpu_rank *r, enum weft_op_kind kind)
{
  gboolean ring = kind == WEFT_OP_ATTENTION_PART || kind == WEFT_OP_ATTENTION_PART_BWD ||
                  kind == WEFT_OP_ATTENTION_MERGE || kind == WEFT_OP_JOIN_SEQUENCE;

  return ring ? r->ring : r->context;
}

/* Of the global batch, the first that the microbatch of an op has. */
static int64_t
first_sequence (const struct cpu_rank *r, uint32_t op)
{
  return weft_job_sequence (&r->m->base.plan->job, r->place / r->context.of, r->p->op[op].micro);
}

/* From this rank's slice of a buffer to that of a rank some places after it, or before. */
static void
turn_to (struct weft_operand *o, const struct weft_place *place, int peer)
{
  int64_t to = ((int64_t) place->at + peer + place->of) % place->of;
  o->data = (uint8_t *) o->data +
            (to - (int64_t) place->at) * (int64_t) (o->n * weft_dtype_bytes (o->dtype));
}

static struct weft_kernel
kernel_of (const struct cpu_rank *r, uint32_t op)
{
  const weft_plan *plan = r->m->base.plan;
  struct weft_kernel k = { .kind = r->p->op[op].kind,
                           .shape = *weft_op_shape (r->p, op),
                           .tp = weft_mesh_place (&plan->mesh, r->rank, WEFT_GROUP_TP),
                           .cp = place_of (r, r->p->op[op].kind),
                           .model = &plan->job.model,
                           .control = r->m->options.control,
                           .draw = { .layer = r->p->op[op].layer },
                           .before = (uint32_t) -r->p->op[op].peer,
                           .canonical = plan->job.train.reduction_order == WEFT_ORDER_CANONICAL };
  uint32_t n = r->p->op[op + 1].uses - r->p->op[op].uses;

  if (r->p->op[op].micro != WEFT_NO_MICRO)
    k.draw.sequence = first_sequence (r, op);
  g_assert (n <= WEFT_MOST_OPERANDS);
  for (uint32_t i = 0; i < n; i++) {
    const struct weft_use *use = cpu_use (r, op, i);
    k.operand[i] = cpu_operand (r, use);
    if (use->buf != WEFT_NO_BUF && r->p->buf[use->buf].shard == WEFT_GROUP_TP)
      turn_to (&k.operand[i], &k.tp, r->p->op[op].peer);
  }
  return k;
}

/* A kernel trusts its token ids and the numbers and counts of rows.  Poisoned ones, of a program that
 * is wrong, would lead anywhere. */
static gboolean
has_tokens (const struct weft_kernel *k)
{
  for (uint32_t i = 0; i < WEFT_MOST_OPERANDS; i++)
    if (k->operand[i].data && !weft_kernel_trusts (k, i))
      return FALSE;
  return TRUE;
}

static void
run (const struct cpu_rank *r, const struct weft_kernel *k)
{
  const struct weft_kernel_row *row = &weft_kernels[k->kind];
  const struct weft_op_info *info = &weft_op_info[k->kind];

  if (!row->cpu)
    return;
  if (r->team && row->splits && info->flops (&k->shape) + info->bytes (&k->shape) > WORTH_SHARING)
    cpu_team_run (r->team, k);
  else
    row->cpu (k, 0, 1);
}

/* ------------------------------------------------------- kernels on slices */

static void
advance (struct weft_operand *o, const struct weft_segment *segment)
{
  if (!o->data)
    return;
  o->data = (uint8_t *) o->data + segment->offset * weft_dtype_bytes (o->dtype);
  o->n = segment->n;
}

/* The elements of the flat buffers that an op works on: those of its part, of a norm all of the slice
 * whose gradient it reads.  Some begin with the masters. */
static uint64_t
first_element (const struct cpu_rank *r, uint32_t op)
{
  uint32_t grad = cpu_use (r, op, 0)->buf;
  enum weft_op_kind kind = r->p->op[op].kind;
  gboolean whole = kind == WEFT_OP_GRAD_NORM || kind == WEFT_OP_UNSCALE;

  for (uint32_t i = 0; i < r->n_slice; i++) {
    const struct weft_slice *slice = &r->slice[i];
    if ((whole ? slice->reduced : slice->grad) == grad || slice->master == grad)
      return whole ? slice->first - slice->part : slice->first;
  }
  g_assert_not_reached ();
}

/* Where a flat buffer of gradients begins among the elements of all of them. */
static uint64_t
first_of_flat (const weft_program *p, uint32_t flat)
{
  uint32_t i = 0;

  while (p->buf[p->param[i].grad].base != flat)
    g_assert (++i < p->n_param);
  const struct weft_buf *grad = &p->buf[p->param[i].grad];
  return p->param[i].start - grad->offset / weft_dtype_bytes (grad->dtype);
}

/* What lies between parameters of a flat buffer is nobody's gradient; a buffer of its own is whole. */
static void
run_bucket_norm (struct cpu_rank *r, uint32_t op)
{
  const struct weft_buf *grads = &r->p->buf[cpu_use (r, op, 0)->buf];
  uint64_t size = weft_dtype_bytes (grads->dtype);
  struct weft_kernel k = kernel_of (r, op);
  const struct weft_operand whole = k.operand[0];

  if (grads->base == WEFT_NO_BUF) {
    run (r, &k);
    return;
  }
  uint64_t first = first_of_flat (r->p, grads->base) + grads->offset / size;
  uint32_t n = weft_segments (r->p, first, grads->bytes / size, r->segment);
  for (uint32_t s = 0; s < n; s++) {
    k.operand[0] = whole;
    advance (&k.operand[0], &r->segment[s]);
    k.operand[1].accumulate = s > 0;
    k.shape.dim[0] = r->segment[s].n;
    run (r, &k);
  }
}

/* The float that belongs to the whole of a tensor in fp8. */
static struct weft_operand
scale_of (const struct cpu_rank *r, const struct weft_param *param, struct weft_operand all)
{
  all.data = cpu_arena_at (r, param->scale);
  all.n = 1;
  return all;
}

/* Whether the norm counts a tensor on another rank: a tied copy, or one that ranks which share others
 * out hold all alike. */
static gboolean
is_counted_elsewhere (const struct cpu_rank *r, const struct weft_param *param)
{
  return param->duplicate ||
         (param->ways == 1 && param->group != WEFT_GROUP_TP_EP &&
          weft_mesh_place (&r->m->base.plan->mesh, r->rank, WEFT_GROUP_TP).at > 0);
}

/* One launch for each parameter of the part; `bulk` marks operands that have an element for each of
 * the part's. */
static void
run_segments (struct cpu_rank *r, uint32_t op, uint32_t bulk, gboolean once)
{
  gboolean scaled = r->p->op[op].kind == WEFT_OP_AMAX || r->p->op[op].kind == WEFT_OP_QUANTISE;
  const struct weft_kernel whole = kernel_of (r, op);
  uint32_t n = weft_segments (r->p, first_element (r, op), whole.shape.dim[0], r->segment);

  for (uint32_t s = 0; s < n; s++) {
    const struct weft_param *param = &r->p->param[r->segment[s].param];
    struct weft_kernel k = whole;
    if (once && is_counted_elsewhere (r, param))
      continue;
    for (uint32_t i = 0; i < WEFT_MOST_OPERANDS; i++)
      if (bulk >> i & 1)
        advance (&k.operand[i], &r->segment[s]);
    if (scaled)
      k.operand[1] = scale_of (r, param, k.operand[1]);
    k.decay = param->decay;
    k.shape.dim[0] = r->segment[s].n;
    run (r, &k);
  }
}

/* Whether a tensor is one of those that an op packs: of its layer, whose first is none of the experts that
 * go by themselves. */
static gboolean
is_packed (const struct cpu_rank *r, const struct weft_op *row, const struct weft_param *param)
{
  const struct weft_param *first = r->p->param;

  if (param->layer != row->layer)
    return FALSE;
  while (first->layer != row->layer)
    first++;
  return (param->bucket != first->bucket) == ((row->flags & WEFT_OP_EXPERTS) != 0);
}

/* One launch for each of these tensors: they follow each other on the one side, and on the other
 * their pieces do in every slice. */
static void
run_repack (struct cpu_rank *r, uint32_t op)
{
  struct weft_kernel k = kernel_of (r, op);
  uint32_t slices = k.kind == WEFT_OP_UNPACK ? 0 : 1;
  const struct weft_operand cut = k.operand[slices], whole = k.operand[!slices];
  uint64_t done = 0, offset = 0;

  for (uint32_t i = 0; i < r->p->n_param; i++) {
    const struct weft_param *param = &r->p->param[i];
    struct weft_segment to = { .offset = offset, .n = cut.n - offset };
    struct weft_segment from = { .offset = done, .n = param->rows * param->columns };
    if (!is_packed (r, &r->p->op[op], param))
      continue;
    k.operand[slices] = cut;
    k.operand[!slices] = whole;
    advance (&k.operand[slices], &to);
    advance (&k.operand[!slices], &from);
    k.shape.dim[2] = param->piece;
    run (r, &k);
    done += from.n;
    offset += param->piece;
  }
}

/* ------------------------------------------------------------------ copies */

static void
copy_in (struct cpu_rank *r, uint32_t op)
{
  const union weft_train *train = &r->m->base.plan->job.train;
  uint64_t length = r->m->base.plan->job.model.seq_length, n = length / r->context.of;
  gboolean targets = strcmp (r->p->name[r->p->op[op].name], "targets") == 0;
  uint64_t depth = weft_op_shape (r->p, op)->dim[1];
  uint64_t first = (uint64_t) first_sequence (r, op);
  int32_t *to = (int32_t *) (void *) cpu_arena_at (r, cpu_use (r, op, 0)->buf);

  for (int64_t i = 0; i < train->micro_batch_size; i++) {
    const int32_t *from = r->m->options.control->tokens + (first + i) * (length + 1) + targets;
    for (uint64_t t = 0; t < n; t++) {
      uint64_t at = weft_position (r->context, n, t) + depth;
      *to++ = at < length ? from[at] : targets ? -1 : 0;
    }
  }
}

/* One of several after each other. */
static double
scalar_at (const struct cpu_rank *r, uint32_t buf, int64_t i)
{
  const uint8_t *data = cpu_arena_at (r, buf);

  if (r->p->buf[buf].dtype == WEFT_INT64)
    return weft_exact_value ((const int64_t *) (const void *) data + i * WEFT_EXACT_WORDS);
  return ((const float *) (const void *) data)[i];
}

static double
scalar (const struct cpu_rank *r, uint32_t buf)
{
  return scalar_at (r, buf, 0);
}

/* As Megatron-Core's rerun_state_machine.py: large is ten times the largest of the first hundred. */
enum { N_SAMPLES = 100, TIMES_LARGER = 10 };

static void
check_bucket (struct cpu_rank *r, uint32_t op)
{
  const union weft_strategy *strategy = &r->m->base.plan->job.strategy;
  double norm = sqrt (scalar (r, cpu_use (r, op, 0)->buf));

  if (weft_job_checks_nan (&r->m->base.plan->job) && !isfinite (norm))
    atomic_store (&r->m->bad, (uint64_t) (r->rank + 1) << 32 | op);
  if (!strategy->check_for_large_grads || !isfinite (norm))
    return;
  if (r->n_norm < N_SAMPLES) {
    r->largest_norm = MAX (r->largest_norm, norm);
    r->n_norm++;
  } else {
    r->n_large += norm >= TIMES_LARGER * r->largest_norm;
  }
}

/* Of multi-token prediction the mean over depths, as if each had a target for every token. */
static double
mtp_loss (struct cpu_rank *r, uint32_t buf)
{
  const union weft_model *m = &r->m->base.plan->job.model;
  double n = (double) m->mtp_num_layers, s = (double) m->seq_length, sum = 0;

  if (buf == WEFT_NO_BUF)
    return NAN;
  for (int64_t depth = 0; depth < m->mtp_num_layers; depth++)
    sum += scalar_at (r, buf, depth) * s / (s - (double) (depth + 1)) / n;
  return sum;
}

/* An exact loss is the sum over all tokens of the batch, a float one over those of a replica. */
static void
copy_out (struct cpu_rank *r, uint32_t op)
{
  const weft_plan *plan = r->m->base.plan;
  const struct weft_use *use = cpu_use (r, op, 0);
  double tokens = (double) plan->job.train.global_batch_size * plan->job.model.seq_length;
  gboolean last = weft_program_has_loss (r->p), clips = plan->job.train.clip_grad > 0;
  double replicas = r->p->buf[use[0].buf].dtype == WEFT_INT64 ? 1 : r->size;
  double norm = sqrt (scalar (r, use[1].buf));
  uint32_t mtp = r->p->op[op + 1].uses - r->p->op[op].uses > 2 ? use[2].buf : WEFT_NO_BUF;

  r->m->base.metrics[r->row] =
      (struct weft_metrics){ .loss = last ? scalar (r, use[0].buf) * replicas / tokens : NAN,
                             .mtp_loss = mtp_loss (r, mtp) * replicas / tokens,
                             .grad_norm = clips ? norm : NAN,
                             .skipped = r->overflow || (clips && !isfinite (norm)),
                             .large = r->n_large };
  r->n_large = 0;
  r->overflow = FALSE;
}

/* The metrics, or one number that the host waits for: of a bucket, or of all gradients of a scaled
 * loss, or whether sequences are packed, which they never are here. */
static void
read_out (struct cpu_rank *r, uint32_t op)
{
  if (r->p->op[op + 1].uses - r->p->op[op].uses > 1)
    copy_out (r, op);
  else if (r->p->op[op].phase == WEFT_PHASE_REDUCE)
    check_bucket (r, op);
  else if (r->p->op[op].phase == WEFT_PHASE_OPTIMIZER)
    r->overflow = scalar (r, cpu_use (r, op, 0)->buf) > 0;
}

/* Both sides of the host link are memory of this process. */
static void
copy_across (struct cpu_rank *r, uint32_t op)
{
  struct weft_operand from = cpu_operand (r, cpu_use (r, op, 0)),
                      to = cpu_operand (r, cpu_use (r, op, 1));
  const uint64_t *dim = weft_op_shape (r->p, op)->dim, size = weft_dtype_bytes (from.dtype);
  struct weft_operand *device = r->p->op[op].kind == WEFT_OP_TO_HOST ? &from : &to;

  g_assert (from.dtype == to.dtype && device->n >= dim[0] + dim[1]);
  device->data = (uint8_t *) device->data + dim[1] * size;
  memcpy (to.data, from.data, dim[0] * size);
}

void
cpu_launch (struct cpu_rank *r, uint32_t op)
{
  switch (r->p->op[op].kind) {
  case WEFT_OP_COPY_IN:
    copy_in (r, op);
    return;
  case WEFT_OP_COPY_OUT:
    read_out (r, op);
    return;
  case WEFT_OP_TO_HOST:
  case WEFT_OP_FROM_HOST:
    copy_across (r, op);
    return;
  case WEFT_OP_BUCKET_NORM:
    run_bucket_norm (r, op);
    return;
  case WEFT_OP_PACK:
  case WEFT_OP_UNPACK:
    run_repack (r, op);
    return;
  case WEFT_OP_GRAD_NORM:
    run_segments (r, op, 1u << 0, TRUE);
    return;
  case WEFT_OP_UNSCALE:
  case WEFT_OP_AMAX:
    run_segments (r, op, 1u << 0, FALSE);
    return;
  case WEFT_OP_QUANTISE:
    run_segments (r, op, 1u << 0 | 1u << 2, FALSE);
    return;
  case WEFT_OP_ADAM: /* all but the factor */
    run_segments (r, op, 1u << 0 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5, FALSE);
    return;
  default:
    break;
  }
  struct weft_kernel k = kernel_of (r, op);
  if (r->m->options.poison && !has_tokens (&k))
    atomic_store (&r->m->lost, (uint64_t) (r->rank + 1) << 32 | op);
  else
    run (r, &k);
}
