/* Replaces a pair of ops by one op, if the software stack has one kernel for both. The FUSION rows
 * of core/ops.def list the pairs. Each row names the field of core/stack.def that enables the pair.
 *
 * Both ops of a pair belong to one pass of one microbatch. Two ops are no pair if only one of them
 * is recomputed, or if they are on different stages. The fused op replaces the second op, if both
 * ops are consecutive on lane gpu and no op of another lane between them, such as an all-gather or
 * a copy to the host, depends on the first op. With moves_up the fused op replaces the first op,
 * unless the second op depends on an op on which the first does not depend, such as a copy from the
 * host. */
#include "core/passes/rewrite/rewrite.h"
#include "core/base/invariant.h"
#include <string.h>

static const struct fusion {
  enum weft_op_kind both, first, second;
  enum weft_stack_field asked;
  /* operands of the fused op: "f0 s2" stands for operand 0 of `first` and operand 2 of `second`, in
   * this order */
  const char *operands;
  /* made, taken: operand number `made` of op `first` and operand number `taken` of op `second` are
   * one buffer */
  uint8_t made, taken;
  /* TRUE: the fused op replaces `first` in the order of ops; FALSE: it replaces `second` */
  gboolean moves_up;
  gboolean inner; /* TRUE: the output of `first`, which only `second` reads, is not stored */
  /* TRUE: the fusion applies only to gelu with the tanh approximation, because cuBLASLt has no
   * epilogue for other activations */
  gboolean of_gelu;
  /* number of the operand that is stored only if a third op reads it; 0: no such operand */
  uint8_t optional;
  /* number of the fused op's dimension that is 1 if the optional operand is stored, and 0 if not */
  uint8_t optional_dim;
} fusions[] = {
#define FUSION(fused_op, first_op, second_op, field, list, ...)                                    \
  { .both = fused_op,                                                                              \
    .first = first_op,                                                                             \
    .second = second_op,                                                                           \
    .asked = field,                                                                                \
    .operands = list,                                                                              \
    __VA_ARGS__ },
#include "core/ops.def"
};

struct search {
  const weft_program *p;
  const struct weft_job *job;
  uint32_t *writer; /* writer[buffer]: newest op that writes the buffer */
  /* users[buffer]: number of uses of the buffer, and of views of it */
  uint32_t *users;
  uint32_t *partner; /* partner[op]: the other op of the op's pair, or WEFT_NO_OP */
  /* fusion[op], for an op of a pair: the row of the fusion table */
  const struct fusion **fusion;
};

static const struct weft_use *
operand (const weft_program *p, uint32_t op, uint32_t number)
{
  return &p->uses[p->op[op].uses + number];
}

/* Whether any op between `first` and `second` depends on `first`. */
static gboolean
is_waited_for (const weft_program *p, uint32_t first, uint32_t second)
{
  for (uint32_t d = p->op[first + 1].deps; d < p->op[second].deps; d++)
    if (p->deps[d] == first)
      return TRUE;
  return FALSE;
}

static gboolean
are_neighbours (const weft_program *p, uint32_t first, uint32_t second)
{
  return p->pos[second] == p->pos[first] + 1 && !is_waited_for (p, first, second);
}

/* Whether only the second op reads the buffer that the first op writes. */
static gboolean
is_read_once (const weft_program *p, uint32_t buf, uint32_t first, uint32_t second)
{
  for (uint32_t u = p->op[first + 1].uses; u < p->op[second].uses; u++)
    if (p->uses[u].buf != WEFT_NO_BUF &&
        weft_buf_owner (p, p->uses[u].buf) == weft_buf_owner (p, buf))
      return FALSE;
  return p->buf[weft_buf_owner (p, buf)].last == second;
}

/* Whether the second op of a pair can run in the place of the first op. The second op must have no
 * explicit dependencies. Its inputs must have been written before the first op on lane gpu, and no
 * earlier op may have written its outputs. */
static gboolean
may_move_up (const struct search *s, const struct fusion *fusion, uint32_t first, uint32_t second)
{
  const weft_program *p = s->p;

  if (p->op[second].deps != p->op[second + 1].deps)
    return FALSE;
  for (uint32_t u = 0; u < p->op[second + 1].uses - p->op[second].uses; u++) {
    const struct weft_use *use = operand (p, second, u);
    uint32_t writer = use->buf == WEFT_NO_BUF ? WEFT_NO_OP : s->writer[use->buf];
    if (u == fusion->taken || writer == WEFT_NO_OP)
      continue;
    if (use->write || writer > first || p->op[writer].lane != WEFT_LANE_GPU)
      return FALSE;
  }
  return TRUE;
}

static gboolean
is_asked (const struct weft_job *job, const struct fusion *fusion)
{
  return job->stack.at[fusion->asked].i && (!fusion->of_gelu || job->model.activation == WEFT_GELU);
}

static gboolean
is_pair (const struct search *s, const struct fusion *fusion, uint32_t first, uint32_t second)
{
  const weft_program *p = s->p;
  const struct weft_op *f = &p->op[first], *n = &p->op[second];
  const struct weft_shape *from = weft_op_shape (p, first), *to = weft_op_shape (p, second);
  uint32_t between = operand (p, second, fusion->taken)->buf;

  if (f->kind != fusion->first || operand (p, first, fusion->made)->buf != between ||
      f->micro != n->micro || f->chunk != n->chunk || f->phase != n->phase ||
      f->flags != n->flags || from->dtype != to->dtype || from->out_dtype != to->dtype ||
      s->partner[first] != WEFT_NO_OP ||
      (fusion->inner && !is_read_once (p, between, first, second)))
    return FALSE;
  return fusion->moves_up ? may_move_up (s, fusion, first, second)
                          : are_neighbours (p, first, second);
}

static void
look_at (struct search *s, uint32_t op)
{
  const weft_program *p = s->p;

  for (unsigned i = 0; i < G_N_ELEMENTS (fusions); i++) {
    const struct fusion *fusion = &fusions[i];
    if (p->op[op].kind != fusion->second || !is_asked (s->job, fusion))
      continue;
    uint32_t first = s->writer[operand (p, op, fusion->taken)->buf];
    if (first == WEFT_NO_OP || !is_pair (s, fusion, first, op))
      continue;
    s->partner[first] = op;
    s->partner[op] = first;
    s->fusion[first] = s->fusion[op] = fusion;
  }
}

static void
count_users (struct search *s)
{
  const weft_program *p = s->p;

  for (uint32_t u = 0; u < p->op[p->n_op].uses; u++)
    if (p->uses[u].buf != WEFT_NO_BUF)
      s->users[p->uses[u].buf]++;
  for (uint32_t b = 0; b < p->n_buf; b++)
    if (p->buf[b].base != WEFT_NO_BUF)
      s->users[p->buf[b].base]++;
}

static void
find_pairs (struct search *s)
{
  const weft_program *p = s->p;

  memset (s->writer, 0xff, p->n_buf * sizeof *s->writer);
  memset (s->partner, 0xff, p->n_op * sizeof *s->partner);
  count_users (s);
  for (uint32_t op = 0; op < p->n_op; op++) {
    look_at (s, op);
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
      if (p->uses[u].buf != WEFT_NO_BUF && p->uses[u].write)
        s->writer[p->uses[u].buf] = op;
  }
}

/* --------------------------------------------------------------------------- the new rows */

/* Arrays of the new program: ops, dependencies, buffer uses, shapes. */
struct rewritten {
  GArray *op, *deps, *uses, *shape;
  /* at[number of an old op]: number of the new op; both ops of a fused pair have one number */
  uint32_t *at;
};

/* For each lane: sets last[lane] to the newest op on which `op` depends, as a number in the new
 * program. A dependency on that op implies the dependencies on earlier ops of the lane. */
static void
wait_for (const weft_program *p, struct rewritten *r, uint32_t op, uint32_t last[WEFT_N_LANE])
{
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
    uint32_t dep = r->at[p->deps[d]], *of_lane = &last[p->op[p->deps[d]].lane];
    if (*of_lane == WEFT_NO_OP || *of_lane < dep)
      *of_lane = dep;
  }
}

static uint16_t
intern (GArray *shapes, const struct weft_shape *shape)
{
  for (guint i = 0; i < shapes->len; i++)
    if (memcmp (&g_array_index (shapes, struct weft_shape, i), shape, sizeof *shape) == 0)
      return (uint16_t) i;
  WEFT_INVARIANT (shapes->len < UINT16_MAX);
  g_array_append_vals (shapes, shape, 1);
  return (uint16_t) (shapes->len - 1);
}

/* Keeps the optional operand of a fused op if a third op uses the buffer. Otherwise removes the
 * operand. */
static void
keep_or_not (const struct search *s, struct rewritten *r, const struct fusion *fusion,
             struct weft_op *row)
{
  struct weft_use *of = &g_array_index (r->uses, struct weft_use, row->uses + fusion->optional);
  struct weft_shape shape = s->p->shape[row->shape];
  gboolean kept = s->users[of->buf] > 2;

  shape.dim[fusion->optional_dim] = kept;
  row->shape = intern (r->shape, &shape);
  of->buf = kept ? of->buf : WEFT_NO_BUF;
}

static void
append_both (const struct search *s, struct rewritten *r, uint32_t first, uint32_t second)
{
  const weft_program *p = s->p;
  const struct fusion *fusion = s->fusion[first];
  struct weft_op row = p->op[fusion->moves_up ? first : second];
  uint32_t last[WEFT_N_LANE];

  memset (last, 0xff, sizeof last);
  wait_for (p, r, first, last);
  wait_for (p, r, second, last);
  row.kind = fusion->both;
  row.deps = r->deps->len;
  row.uses = r->uses->len;
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (last[lane] != WEFT_NO_OP)
      g_array_append_val (r->deps, last[lane]);
  for (const char *o = fusion->operands; *o; o += o[2] ? 3 : 2)
    g_array_append_vals (r->uses, operand (p, *o == 'f' ? first : second, (uint32_t) (o[1] - '0')),
                         1);
  if (fusion->optional)
    keep_or_not (s, r, fusion, &row);
  g_array_append_val (r->op, row);
}

static void
append (const weft_program *p, struct rewritten *r, uint32_t op)
{
  struct weft_op row = p->op[op];

  row.deps = r->deps->len;
  row.uses = r->uses->len;
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    g_array_append_val (r->deps, r->at[p->deps[d]]);
  g_array_append_vals (r->uses, p->uses + p->op[op].uses, p->op[op + 1].uses - p->op[op].uses);
  g_array_append_val (r->op, row);
}

/* Appends all ops to the new program. A fused pair becomes one op in the place of its first or
 * second op, and the old numbers of both map to it. No op between the two depends on the op that
 * moves. */
static void
rewrite (const struct search *s, struct rewritten *r)
{
  const weft_program *p = s->p;

  for (uint32_t op = 0; op < p->n_op; op++) {
    uint32_t partner = s->partner[op];
    gboolean is_first = partner != WEFT_NO_OP && partner > op;
    if (partner != WEFT_NO_OP && s->fusion[op]->moves_up != is_first)
      continue;
    r->at[op] = r->op->len;
    if (partner == WEFT_NO_OP) {
      append (p, r, op);
      continue;
    }
    r->at[partner] = r->op->len;
    append_both (s, r, MIN (op, partner), MAX (op, partner));
  }
  struct weft_op end = { .deps = r->deps->len, .uses = r->uses->len };
  g_array_append_val (r->op, end);
}

static void *
replace (void *old, GArray *by)
{
  g_free (old);
  return g_array_free (by, FALSE);
}

void
weft_join (weft_program *p, const struct weft_job *job)
{
  g_autofree uint32_t *writer = g_new (uint32_t, p->n_buf + 1),
                      *users = g_new0 (uint32_t, p->n_buf + 1),
                      *partner = g_new (uint32_t, p->n_op + 1), *at = g_new (uint32_t, p->n_op + 1);
  g_autofree const struct fusion **fusion = g_new0 (const struct fusion *, p->n_op + 1);
  struct search s = { p, job, writer, users, partner, fusion };
  struct rewritten r = { .op = g_array_new (FALSE, TRUE, sizeof (struct weft_op)),
                         .deps = g_array_new (FALSE, FALSE, sizeof (uint32_t)),
                         .uses = g_array_new (FALSE, FALSE, sizeof (struct weft_use)),
                         .shape = g_array_new (FALSE, TRUE, sizeof (struct weft_shape)),
                         .at = at };

  g_array_append_vals (r.shape, p->shape, p->n_shape);
  find_pairs (&s);
  rewrite (&s, &r);
  p->n_op = r.op->len - 1;
  p->n_shape = r.shape->len;
  p->op = replace (p->op, r.op);
  p->deps = replace (p->deps, r.deps);
  p->uses = replace (p->uses, r.uses);
  p->shape = replace (p->shape, r.shape);
  weft_program_index (p);
}
