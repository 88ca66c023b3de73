/* A residual sum and the norm that takes it, as one op: the sum is then read by nobody on its way from the
 * one to the other.  What is normed is the sum as it is stored, so that no bit changes.
 *
 * The two are next to each other on the GPU's lane, in one pass of one microbatch: inside a layer, from a
 * layer to the next of the same stage, and before the final norm.  What is between a product and the sum
 * (ranks that add their parts, a bias) has been done by then.  They stay two ops
 *  - where something else waits for the sum before the norm is issued: units that are gathered behind it,
 *    copies to the host;
 *  - where the norm is run again without the sum (recompute_modules layernorm), or in another stage;
 *  - behind dropout, whose sum is another op.
 *
 * The one op stands where the norm did, under its name and in its layer. */
#include "core/passes/step.h"
#include <string.h>

enum { ADD_A, ADD_B, ADD_SUM };
enum { NORM_X, NORM_WEIGHT, NORM_BIAS, NORM_Y };

static gboolean
is_waited_for (const weft_program *p, uint32_t op, uint32_t until)
{
  for (uint32_t d = p->op[op + 1].deps; d < p->op[until].deps; d++)
    if (p->deps[d] == op)
      return TRUE;
  return FALSE;
}

static gboolean
is_pair (const weft_program *p, uint32_t add, uint32_t norm)
{
  const struct weft_op *a = &p->op[add], *n = &p->op[norm];
  const struct weft_use *x = &p->uses[a->uses], *y = &p->uses[n->uses];

  return a->kind == WEFT_OP_ADD && n->kind == WEFT_OP_NORM && x[ADD_SUM].buf == y[NORM_X].buf &&
         a->micro == n->micro && a->chunk == n->chunk && a->phase == n->phase &&
         a->flags == n->flags && a->shape == n->shape && !is_waited_for (p, add, norm);
}

/* partner[norm] = the sum that becomes part of it, and the other way round; else WEFT_NO_OP. */
static uint32_t *
find_pairs (const weft_program *p)
{
  const uint32_t *gpu = p->lane_ops[WEFT_LANE_GPU];
  uint32_t *partner = g_new (uint32_t, p->n_op + 1);

  memset (partner, 0xff, (p->n_op + 1) * sizeof *partner);
  for (uint32_t i = 1; i < p->lane_n[WEFT_LANE_GPU]; i++)
    if (is_pair (p, gpu[i - 1], gpu[i])) {
      partner[gpu[i - 1]] = gpu[i];
      partner[gpu[i]] = gpu[i - 1];
    }
  return partner;
}

/* What the program becomes, row by row. */
struct rewritten {
  struct weft_op *op;
  uint32_t *deps, *at; /* at: the new number of each op, of a sum that of its norm */
  struct weft_use *uses;
  uint32_t n_op, n_deps, n_uses;
};

/* Of each lane the last op that is waited for: the others come before it. */
static void
wait_for (const weft_program *p, struct rewritten *r, uint32_t op, uint32_t last[WEFT_N_LANE])
{
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
    uint32_t dep = r->at[p->deps[d]], *of_lane = &last[p->op[p->deps[d]].lane];
    if (*of_lane == WEFT_NO_OP || *of_lane < dep)
      *of_lane = dep;
  }
}

static void
append_both (const weft_program *p, struct rewritten *r, uint32_t add, uint32_t norm)
{
  const struct weft_use *x = &p->uses[p->op[add].uses], *y = &p->uses[p->op[norm].uses];
  const struct weft_use uses[] = { x[ADD_A],     x[ADD_B],   y[NORM_WEIGHT],
                                   y[NORM_BIAS], x[ADD_SUM], y[NORM_Y] };
  uint32_t last[WEFT_N_LANE];

  memset (last, 0xff, sizeof last);
  wait_for (p, r, add, last);
  wait_for (p, r, norm, last);
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (last[lane] != WEFT_NO_OP)
      r->deps[r->n_deps++] = last[lane];
  memcpy (r->uses + r->n_uses, uses, sizeof uses);
  r->n_uses += G_N_ELEMENTS (uses);
}

static void
append (const weft_program *p, struct rewritten *r, uint32_t op)
{
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    r->deps[r->n_deps++] = r->at[p->deps[d]];
  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
    r->uses[r->n_uses++] = p->uses[u];
}

/* Sums wait for their norms, which come later: until then they have no number, and nobody asks for it. */
static void
rewrite (const weft_program *p, struct rewritten *r, const uint32_t *partner)
{
  for (uint32_t op = 0; op < p->n_op; op++) {
    gboolean paired = partner[op] != WEFT_NO_OP;
    if (paired && partner[op] > op)
      continue;
    struct weft_op *row = &r->op[r->n_op];
    *row = p->op[op];
    row->kind = paired ? WEFT_OP_ADD_NORM : row->kind;
    row->deps = r->n_deps;
    row->uses = r->n_uses;
    r->at[op] = r->n_op++;
    if (paired)
      r->at[partner[op]] = r->at[op];
    if (paired)
      append_both (p, r, partner[op], op);
    else
      append (p, r, op);
  }
  r->op[r->n_op] = (struct weft_op){ .deps = r->n_deps, .uses = r->n_uses };
}

void
weft_join_add_norm (weft_program *p)
{
  g_autofree uint32_t *partner = find_pairs (p), *at = g_new (uint32_t, p->n_op + 1);
  const struct weft_op *end = &p->op[p->n_op];
  struct rewritten r = { .op = g_new (struct weft_op, p->n_op + 1),
                         .deps = g_new (uint32_t, end->deps + 1),
                         .at = at,
                         .uses = g_new (struct weft_use, end->uses + 1) };

  rewrite (p, &r, partner);
  g_free (p->op);
  g_free (p->deps);
  g_free (p->uses);
  p->op = r.op;
  p->deps = r.deps;
  p->uses = r.uses;
  p->n_op = r.n_op;
  weft_program_index (p);
}
