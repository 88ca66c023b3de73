#include "kernels/bind.h"
#include "core/base/error.h"
#include "core/base/mix.h"
#include "core/exec/feed.h"
#include "core/program/cut.h"
#include "core/program/muon.h"

void
weft_bind_init (weft_bind *b, const weft_plan *plan, uint32_t rank)
{
  const struct weft_mesh *mesh = &plan->mesh;

  *b = (weft_bind){ .plan = plan,
                    .p = plan->role[weft_mesh_stage (mesh, rank)],
                    .rank = rank };
  for (int kind = 0; kind < WEFT_N_GROUP; kind++)
    b->place[kind] = weft_mesh_place (mesh, rank, kind);
  b->slice = weft_slices (b->p, mesh, rank, &b->n_slice);
  b->segment = g_new (struct weft_segment, b->p->n_param + 1);
}

void
weft_bind_clear (weft_bind *b)
{
  g_free (b->slice);
  g_free (b->segment);
}

/* Whether a collective can reduce a type: fp8 codes can only be copied, and words of exact sums
 * cannot be averaged. */
static gboolean
can_reduce (const struct weft_op *row, enum weft_dtype dtype)
{
  enum weft_op_kind kind = weft_op_even (row->kind);

  if (kind != WEFT_OP_ALL_REDUCE && kind != WEFT_OP_REDUCE_SCATTER)
    return TRUE;
  return dtype != WEFT_FP8 && dtype != WEFT_E5M2 &&
         (dtype != WEFT_INT64 ||
          (row->reduce != WEFT_REDUCE_AVG && row->reduce != WEFT_REDUCE_PREMUL));
}

static gboolean
can_run (const weft_program *p, const char *name, GError **error)
{
  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_op_kind kind = p->op[op].kind;
    const struct weft_shape *shape = weft_op_shape (p, op);
    if (kind == WEFT_OP_FILL)
      return weft_bad_input (
          error, "the %s executor does not draw random weights: they must be written", name);
    if (!can_reduce (&p->op[op], shape->dtype))
      return weft_bad_input (error, "the %s executor has no %s of %s over %s", name,
                             weft_op_words[kind], weft_reduce_words[p->op[op].reduce],
                             weft_dtype_words[shape->dtype]);
  }
  return TRUE;
}

/* Whether buffers of experts have room for every routing of real tokens. All tokens may go to the
 * experts of one rank, but a plan for GPUs has room for moe_load_imbalance times the mean
 * (core/passes/layer/moe.c). */
static gboolean
has_room (const weft_plan *plan, GError **error)
{
  double found = plan->job.strategy.moe_load_imbalance, ranks = plan->mesh.ep;

  if (ranks == 1 || weft_cluster_is_cpu (&plan->job.cluster))
    return TRUE;
  double wanted = ranks * (double) weft_job_choices (&plan->job) /
                  (double) MAX (1, plan->job.model.moe_router_topk);
  return found >= wanted ||
         weft_bad_input (error,
                         "moe_load_imbalance: found %g, wanted at least %g to run with real tokens "
                         "a plan for GPUs: the tokens of all %g ranks may go to one rank",
                         found, wanted, ranks);
}

/* Refuses a job whose predicted cost is not that of its kernels: the kernels have only the scaling
 * of fp8_recipe, and no dropout inside attention. Other values of these knobs are only for
 * predictions. */
static gboolean
is_priced_as_run (const weft_plan *plan, GError **error)
{
  int64_t found = plan->job.strategy.fp8_priced_as;

  if (plan->job.strategy.attention_priced_with_dropout)
    return weft_bad_input (error, "attention_priced_with_dropout: found true, wanted false to run: "
                                  "dropout within attention is predicted only");
  if (plan->job.strategy.attention_priced_in_fp8)
    return weft_bad_input (error, "attention_priced_in_fp8: found true, wanted false to run: "
                                  "attention in fp8 is predicted only");
  if (plan->job.strategy.experts_priced_as_gpt_oss)
    return weft_bad_input (error, "experts_priced_as_gpt_oss: found true, wanted false to run: "
                                  "limits and biases of experts are predicted only");
  return found == WEFT_FP8_PRICE_RECIPE ||
         weft_bad_input (error,
                         "fp8_priced_as: found %s, wanted recipe to run: the scaling is predicted "
                         "only",
                         weft_fp8_price_words[found]);
}

gboolean
weft_bind_check (const weft_plan *plan, const char *name, GError **error)
{
  for (uint32_t role = 0; role < plan->n_roles; role++)
    if (!can_run (plan->role[role], name, error))
      return FALSE;
  return is_priced_as_run (plan, error) && has_room (plan, error) &&
         weft_kernels_check_model (&plan->job.model, error);
}

/* -------------------------------------------------------------------- operands */

uint8_t *
weft_bind_at (const weft_bind *b, uint32_t buf)
{
  return b->arena[b->p->buf[weft_buf_owner (b->p, buf)].pool] + weft_buf_address (b->p, buf);
}

struct weft_operand
weft_bind_operand (const weft_bind *b, const struct weft_use *use)
{
  if (use->buf == WEFT_NO_BUF)
    return (struct weft_operand){ 0 };
  const struct weft_buf *buf = &b->p->buf[use->buf];
  struct weft_place sharing = b->place[buf->shard];
  uint64_t size = weft_dtype_bytes (buf->dtype), n = buf->bytes / size / sharing.of;

  return (struct weft_operand){ .data = weft_bind_at (b, use->buf) + sharing.at * n * size,
                                .n = n,
                                .dtype = buf->dtype,
                                .accumulate = use->read && use->write };
}

/* The context-parallel place that kernels of an op use. Attention over parts of a sequence uses the
 * rank's place in its ring; other ops use its place among all ranks that hold a part of the
 * sequence. */
static struct weft_place
place_of (const weft_bind *b, enum weft_op_kind kind)
{
  return b->place[weft_op_info[kind].in_ring ? WEFT_GROUP_CP_RING : WEFT_GROUP_CP];
}

/* Moves an operand from this rank's slice of a buffer to the slice of the rank `peer` places after
 * it (before it if negative). */
static void
turn_to (struct weft_operand *o, const struct weft_place *place, int peer)
{
  int64_t to = ((int64_t) place->at + peer + place->of) % place->of;
  o->data = (uint8_t *) o->data +
            (to - (int64_t) place->at) * (int64_t) (o->n * weft_dtype_bytes (o->dtype));
}

static struct weft_kernel
kernel_of (const weft_bind *b, uint32_t op)
{
  const weft_plan *plan = b->plan;
  const struct weft_op *row = &b->p->op[op];
  int64_t attention = plan->job.strategy.attention_backend;
  struct weft_kernel k = { .kind = row->kind,
                           .shape = *weft_op_shape (b->p, op),
                           .tp = b->place[WEFT_GROUP_TP],
                           .cp = place_of (b, row->kind),
                           .model = &plan->job.model,
                           .control = b->control,
                           .train = &plan->job.train,
                           .draw = { .layer = row->layer },
                           .before = (uint32_t) -row->peer,
                           .canonical = plan->job.train.reduction_order == WEFT_ORDER_CANONICAL,
                           .fused = attention == WEFT_ATTENTION_FUSED ||
                                    attention == WEFT_ATTENTION_AUTO,
                           .quicker = attention == WEFT_ATTENTION_AUTO,
                           .deterministic = (gboolean) plan->job.strategy.deterministic_mode };
  uint32_t n = b->p->op[op + 1].uses - row->uses;

  if (row->micro != WEFT_NO_MICRO)
    k.draw.sequence = weft_feed_first_sequence (plan, b->rank, row);
  g_assert (n <= WEFT_MOST_OPERANDS);
  for (uint32_t i = 0; i < n; i++) {
    const struct weft_use *use = weft_bind_use (b, op, i);
    k.operand[i] = weft_bind_operand (b, use);
    if (use->buf != WEFT_NO_BUF && b->p->buf[use->buf].shard == WEFT_GROUP_TP)
      turn_to (&k.operand[i], &k.tp, row->peer);
  }
  return k;
}

/* ----------------------------------------------------- kernels over flat buffers */

static void
advance (struct weft_operand *o, const struct weft_segment *segment)
{
  if (!o->data)
    return;
  o->data = (uint8_t *) o->data + segment->offset * weft_dtype_bytes (o->dtype);
  o->n = segment->n;
}

/* Finds the number of the first element of an op's first operand, if the elements of all flat
 * buffers of a pipeline stage are numbered consecutively. For grad_norm and unscale, this operand
 * is the reduced gradient of a slice. For other ops, the operand is the gradient or the master
 * weights of a part of a slice. FALSE: the op does not work on flat buffers. */
static gboolean
first_element (const weft_bind *b, uint32_t op, uint64_t *first)
{
  uint32_t grad = weft_bind_use (b, op, 0)->buf;
  enum weft_op_kind kind = b->p->op[op].kind;
  gboolean whole = kind == WEFT_OP_GRAD_NORM || kind == WEFT_OP_UNSCALE;

  for (uint32_t i = 0; i < b->n_slice; i++) {
    const struct weft_slice *slice = &b->slice[i];
    if ((whole ? slice->reduced : slice->grad) == grad || slice->master == grad) {
      *first = whole ? slice->first - slice->part : slice->first;
      return TRUE;
    }
  }
  return FALSE;
}

/* Finds the number of the first element of the gradient buffer `flat`, if the elements of all flat
 * buffers of a pipeline stage are numbered consecutively (struct weft_param, start). FALSE: `flat`
 * is no flat buffer, but holds a single bucket. */
static gboolean
first_of_flat (const weft_program *p, uint32_t flat, uint64_t *first)
{
  for (uint32_t i = 0; i < p->n_param; i++) {
    if (p->param[i].grad == WEFT_NO_BUF || p->buf[p->param[i].grad].base != flat)
      continue;
    const struct weft_buf *grad = &p->buf[p->param[i].grad];
    *first = p->param[i].start - grad->offset / weft_dtype_bytes (grad->dtype);
    return TRUE;
  }
  return FALSE;
}

struct to {
  weft_bind_call call;
  void *user;
};

/* Makes the calls that compute the squared norm of a gradient buffer: one call for each parameter
 * of a flat buffer, so that the padding between parameters does not count, or one call for a buffer
 * that holds a single bucket. */
static void
bind_bucket_norm (const weft_bind *b, uint32_t op, struct to to)
{
  const struct weft_buf *grads = &b->p->buf[weft_bind_use (b, op, 0)->buf];
  uint64_t size = weft_dtype_bytes (grads->dtype);
  struct weft_kernel k = kernel_of (b, op);
  const struct weft_operand whole = k.operand[0];
  uint64_t first;

  if (grads->base == WEFT_NO_BUF || !first_of_flat (b->p, grads->base, &first)) {
    to.call (to.user, &k);
    return;
  }
  first += grads->offset / size;
  uint32_t n = weft_segments (b->p, first, grads->bytes / size, b->segment);
  for (uint32_t s = 0; s < n; s++) {
    k.operand[0] = whole;
    advance (&k.operand[0], &b->segment[s]);
    k.operand[1].accumulate = s > 0;
    k.shape.dim[0] = b->segment[s].n;
    to.call (to.user, &k);
  }
}

/* The operand for the fp8 scale of a parameter: a single number, because the tensor has one
 * scale. */
static struct weft_operand
scale_of (const weft_bind *b, const struct weft_param *param, struct weft_operand all)
{
  all.data = weft_bind_at (b, param->scale);
  all.n = 1;
  return all;
}

/* Whether the gradient norm counts this tensor on another rank: the tensor is a tied copy, or
 * tensor-parallel ranks replicate it. */
static gboolean
is_counted_elsewhere (const weft_bind *b, const struct weft_param *param)
{
  return param->duplicate || (param->ways == 1 && param->group != WEFT_GROUP_TP_EP &&
                              b->place[WEFT_GROUP_TP].at > 0);
}

enum { STOCHASTIC = 2 }; /* number of the dimension that is 1 if the op rounds stochastically */

/* Key of the random numbers of a tensor: a hash of its name and layer. The key is the same on every
 * stage, so copies of a tied embedding get equal updates. */
static uint64_t
key_of_tensor (const weft_program *p, const struct weft_param *param)
{
  const char *name = param->tied ? "embedding.weight" : p->name[param->name];
  uint64_t key = WEFT_HASH_BEGIN;

  for (; *name; name++)
    key = weft_hash_byte (key, (uint8_t) *name);
  return weft_mix (key ^ param->layer);
}

/* A parameter of this rank is a part of a tensor of the model. Describes in `whole` the place of
 * element `at` of the parameter in that tensor. Returns the number of elements of [at, end), from
 * `at` on, for which the description is correct. */
static uint64_t
place_in_whole (const weft_bind *b, const struct weft_param *param, uint64_t at, uint64_t end,
                struct weft_whole *whole)
{
  uint32_t place = b->place[param->group].at;
  uint64_t first = at, n = end - at;
  struct weft_cut_run run;

  if (weft_cut_run (param, place, at, end, &run)) { /* padding has no place in the whole tensor */
    first = run.at == at ? run.first : at;
    n = run.at == at ? run.n : run.at - at;
  }
  *whole = (struct weft_whole){ key_of_tensor (b->p, param), at, G_MAXUINT64, 0, first - at };
  if (param->cut != WEFT_CUT_COLUMNS)
    return n;
  whole->columns = param->columns;
  whole->stride = param->whole_columns;
  whole->offset = first - (at / param->columns * param->whole_columns + at % param->columns);
  return end - at;
}

/* Makes the calls of adam with stochastic rounding. There is one call for each range of elements
 * that is contiguous in the whole tensor, because the random numbers depend on the index in the
 * whole tensor. */
static void
bind_stochastic (const weft_bind *b, const struct weft_kernel *all,
                 const struct weft_segment *segment, struct to to)
{
  const struct weft_param *param = &b->p->param[segment->param];
  uint32_t bulk = weft_op_info[all->kind].bulk;
  uint64_t n;

  for (uint64_t done = 0; done < segment->n; done += n) {
    struct weft_kernel k = *all;
    n = place_in_whole (b, param, segment->start + done, segment->start + segment->n, &k.whole);
    const struct weft_segment run = { .offset = done, .n = n };
    for (uint32_t i = 0; i < WEFT_MOST_OPERANDS; i++)
      if (bulk >> i & 1)
        advance (&k.operand[i], &run);
    k.shape.dim[0] = n;
    to.call (to.user, &k);
  }
}

enum { FIRST_SCALE = 6 }; /* number of the first of the two operands with scales of adam_8bit */

/* Moves the scales of 8-bit moments to the first block of a parameter. Parameters and slices begin
 * at multiples of a block. */
static void
advance_scales (struct weft_kernel *k, const struct weft_segment *segment)
{
  const struct weft_segment blocks = { .offset = segment->offset / WEFT_8BIT_BLOCK,
                                       .n = (segment->n + WEFT_8BIT_BLOCK - 1) / WEFT_8BIT_BLOCK };

  for (uint32_t i = FIRST_SCALE; i < FIRST_SCALE + 2 && k->kind == WEFT_OP_ADAM_8BIT; i++)
    advance (&k->operand[i], &blocks);
}

/* Makes one kernel call for each parameter in the part of a flat buffer that the op works on. */
static void
bind_segments (const weft_bind *b, uint32_t op, uint64_t first, struct to to)
{
  const struct weft_kernel whole = kernel_of (b, op);
  gboolean scaled = whole.kind == WEFT_OP_AMAX || whole.kind == WEFT_OP_QUANTISE;
  uint32_t n = weft_segments (b->p, first, whole.shape.dim[0], b->segment);
  uint32_t bulk = weft_op_info[whole.kind].bulk;

  for (uint32_t s = 0; s < n; s++) {
    const struct weft_param *param = &b->p->param[b->segment[s].param];
    struct weft_kernel k = whole;
    if (whole.kind == WEFT_OP_GRAD_NORM && is_counted_elsewhere (b, param))
      continue;
    for (uint32_t i = 0; i < WEFT_MOST_OPERANDS; i++)
      if (bulk >> i & 1)
        advance (&k.operand[i], &b->segment[s]);
    advance_scales (&k, &b->segment[s]);
    if (scaled)
      k.operand[1] = scale_of (b, param, k.operand[1]);
    k.decay = param->decay;
    k.shape.dim[0] = b->segment[s].n;
    if (whole.kind == WEFT_OP_ADAM && whole.shape.dim[STOCHASTIC])
      bind_stochastic (b, &k, &b->segment[s], to);
    else
      to.call (to.user, &k);
  }
}

static gboolean
is_of_unit (const struct weft_op *row, const struct weft_param *param)
{
  return param->layer == row->layer && param->chunk == row->chunk;
}

/* Whether a pack or unpack op covers this tensor: the tensor belongs to the op's layer and model
 * chunk. Experts may be packed by an op of their own. */
static gboolean
is_packed (const weft_bind *b, const struct weft_op *row, const struct weft_param *param)
{
  const struct weft_param *first = b->p->param;

  if (!is_of_unit (row, param))
    return FALSE;
  while (!is_of_unit (row, first))
    first++;
  return (param->bucket != first->bucket) == ((row->flags & WEFT_OP_EXPERTS) != 0);
}

/* Makes the calls of a pack or unpack op, one per tensor. In one operand, each tensor is
 * contiguous; in the other operand, the slice of each rank contains a piece of every tensor. */
static void
bind_repack (const weft_bind *b, uint32_t op, struct to to)
{
  struct weft_kernel k = kernel_of (b, op);
  uint32_t slices = k.kind == WEFT_OP_UNPACK ? 0 : 1;
  const struct weft_operand cut = k.operand[slices], whole = k.operand[!slices];
  uint64_t done = 0, offset = 0;

  for (uint32_t i = 0; i < b->p->n_param; i++) {
    const struct weft_param *param = &b->p->param[i];
    struct weft_segment piece = { .offset = offset, .n = cut.n - offset };
    struct weft_segment all = { .offset = done, .n = param->rows * param->columns };
    if (!is_packed (b, &b->p->op[op], param))
      continue;
    k.operand[slices] = cut;
    k.operand[!slices] = whole;
    advance (&k.operand[slices], &piece);
    advance (&k.operand[!slices], &all);
    k.shape.dim[2] = param->piece;
    to.call (to.user, &k);
    done += all.n;
    offset += param->piece;
  }
}

/* Whether an op of Muon works on a parameter of the rank. The shape of a product already says
 * everything, unless the op stands for other parameters on other ranks. */
static gboolean
is_of_matrix (const weft_bind *b, uint32_t op)
{
  enum weft_op_kind kind = b->p->op[op].kind;

  return kind == WEFT_OP_MUON_TAKE || kind == WEFT_OP_MUON_NORMALISE ||
         kind == WEFT_OP_MUON_UPDATE ||
         (kind == WEFT_OP_NEWTON_SCHULZ && weft_op_shape (b->p, op)->dim[WEFT_MUON_BUCKET] > 0);
}

/* The slice of the optimizer with a parameter; NULL if the rank does not have it. */
static const struct weft_slice *
slice_of (const weft_bind *b, const struct weft_param *param)
{
  for (uint32_t i = 0; i < b->n_slice; i++)
    if (param->start >= b->slice[i].first && param->start < b->slice[i].first + b->slice[i].n)
      return &b->slice[i];
  return NULL;
}

/* The parameter of this rank's slice of a bucket whose turn it is; NULL if the slice has fewer. */
static const struct weft_param *
param_of_turn (const weft_bind *b, uint32_t bucket, uint64_t turn)
{
  for (uint32_t i = 0; i < b->p->n_param; i++) {
    const struct weft_param *param = &b->p->param[i];
    const struct weft_slice *slice = slice_of (b, param);
    uint64_t before = 0;
    if (param->bucket != bucket || param->frozen || !slice)
      continue;
    for (uint32_t k = 0; k < b->p->n_param; k++)
      before += !b->p->param[k].frozen && b->p->param[k].start >= slice->first &&
                b->p->param[k].start < param->start;
    if (before == turn)
      return param;
  }
  return NULL;
}

/* The parameter of an op of Muon: that of the rank's turn, or the one with the name and the layer
 * of the op. */
static const struct weft_param *
param_of (const weft_bind *b, uint32_t op)
{
  const uint64_t *dim = weft_op_shape (b->p, op)->dim;
  const struct weft_param *param = b->p->param;

  if (dim[WEFT_MUON_BUCKET])
    return param_of_turn (b, (uint32_t) dim[WEFT_MUON_BUCKET] - 1, dim[WEFT_MUON_TURN] / 4);
  while (param->name != b->p->op[op].name || !is_of_unit (&b->p->op[op], param))
    param++;
  return param;
}

/* Sets the shape of an op that stands for another parameter on each rank to that of matrix `m` of
 * the rank's own. */
static void
reshape (struct weft_kernel *k, const struct weft_param *param, const struct weft_muon_matrix *m)
{
  uint64_t small = MIN (m->rows, m->columns), large = MAX (m->rows, m->columns);
  uint64_t *dim = k->shape.dim;
  gboolean applies = dim[3] == 2; /* the third product of a step */

  if (k->kind == WEFT_OP_MUON_TAKE) {
    dim[0] = param->rows * param->columns;
  } else if (k->kind == WEFT_OP_NEWTON_SCHULZ) {
    dim[0] = applies ? m->rows : small;
    dim[1] = applies ? m->columns : small;
    dim[2] = dim[3] == 0 ? large : small;
    dim[5] = m->rows > m->columns;
  } else {
    dim[0] = m->rows;
    dim[1] = m->columns;
    dim[2] = m->ways;
    dim[3] = m->block;
  }
}

/* Lets operands that are buffers of the optimizer begin at the parameter. */
static void
advance_to (const weft_bind *b, uint32_t op, const struct weft_param *param, struct weft_kernel *k)
{
  const struct weft_slice *slice = slice_of (b, param);
  const struct weft_segment segment = { .offset = param->start - slice->first,
                                        .n = param->rows * param->columns };

  for (uint32_t i = 0; i < b->p->op[op + 1].uses - b->p->op[op].uses; i++) {
    uint32_t buf = weft_bind_use (b, op, i)->buf;
    if (buf == slice->grad || buf == slice->m || buf == slice->weight || buf == slice->master)
      advance (&k->operand[i], &segment);
  }
}

/* Makes the call of an op of Muon on one matrix, if the rank has one. */
static void
bind_matrix (const weft_bind *b, uint32_t op, struct to to)
{
  const struct weft_job *job = &b->plan->job;
  const struct weft_param *param = param_of (b, op);
  struct weft_kernel k = kernel_of (b, op);
  uint32_t i = (uint32_t) (k.shape.dim[WEFT_MUON_TURN] % 4);

  if (!param || i >= weft_muon_matrices (job, b->p->name[param->name]))
    return;
  struct weft_muon_matrix m = weft_muon_matrix (job, b->p->name[param->name], param, i);
  if (k.shape.dim[WEFT_MUON_BUCKET])
    reshape (&k, param, &m);
  advance_to (b, op, param, &k);
  k.decay = param->decay;
  k.matrix = (struct weft_matrix){ .rows = param->rows,
                                   .columns = param->columns,
                                   .tail = weft_muon_matrices (job, b->p->name[param->name]) > 1
                                               ? weft_param_tail (param, k.model)
                                               : param->tail,
                                   .ways = param->ways,
                                   .at = b->place[param->group].at,
                                   .cut = param->cut };
  to.call (to.user, &k);
}

void
weft_bind_kernels (const weft_bind *b, uint32_t op, weft_bind_call call, void *user)
{
  enum weft_op_kind kind = b->p->op[op].kind;
  struct to to = { call, user };
  uint64_t first;

  if (weft_op_info[kind].class != WEFT_CLASS_COMPUTE || !weft_kernels[kind].cpu)
    return;
  if (kind == WEFT_OP_BUCKET_NORM) {
    bind_bucket_norm (b, op, to);
  } else if (kind == WEFT_OP_PACK || kind == WEFT_OP_UNPACK) {
    bind_repack (b, op, to);
  } else if (is_of_matrix (b, op)) {
    bind_matrix (b, op, to);
  } else if (weft_op_info[kind].bulk && first_element (b, op, &first)) {
    bind_segments (b, op, first, to);
  } else {
    struct weft_kernel k = kernel_of (b, op);
    call (user, &k);
  }
}

/* ------------------------------------------------------- copies and collectives */

void
weft_bind_copy (const weft_bind *b, uint32_t op, struct weft_operand *from, struct weft_operand *to)
{
  *from = weft_bind_operand (b, weft_bind_use (b, op, 0));
  *to = weft_bind_operand (b, weft_bind_use (b, op, 1));
  const uint64_t *dim = weft_op_shape (b->p, op)->dim, size = weft_dtype_bytes (from->dtype);
  struct weft_operand *device = weft_op_enters_device (b->p->op[op].kind) ? to : from;

  g_assert (from->dtype == to->dtype && device->n >= dim[0] + dim[1]);
  device->data = (uint8_t *) device->data + dim[1] * size;
  from->n = to->n = dim[0];
}

/* The number of this rank in the group over which the buffer is sharded. */
static uint32_t
shard_before (const weft_bind *b, uint32_t buf)
{
  return b->place[b->p->buf[buf].shard].at;
}

struct weft_bound_operands
weft_bind_collective (const weft_bind *b, uint32_t op, const struct weft_place *member)
{
  const struct weft_op *row = &b->p->op[op];
  const struct weft_shape *shape = weft_op_shape (b->p, op);
  /* The whole tensor is the second operand of all_gather, which writes it. It is the first operand
   * of the other collectives, and some of them have no other operand. The output of all_to_all is
   * as large as its input. */
  uint32_t whole = row->kind == WEFT_OP_ALL_GATHER, n = b->p->op[op + 1].uses - row->uses;
  uint64_t size = weft_dtype_bytes (shape->dtype);
  struct weft_bound_operands bound = { .data =
                                           weft_bind_at (b, weft_bind_use (b, op, whole)->buf) };

  if (n == 1)
    bound.data += shard_before (b, weft_bind_use (b, op, 0)->buf) * shape->dim[0] * size;
  bound.slice = bound.data + shape->dim[0] * member->at / member->of * size;
  if (row->kind != weft_op_even (row->kind)) {
    bound.send = weft_bind_operand (b, weft_bind_use (b, op, 1));
    bound.slice = weft_bind_at (b, weft_bind_use (b, op, 2)->buf);
  } else if (n > 1 && b->p->buf[weft_bind_use (b, op, !whole)->buf].shard == 0) {
    bound.slice = weft_bind_at (b, weft_bind_use (b, op, !whole)->buf);
  }
  return bound;
}
