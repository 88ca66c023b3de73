#include "core/plan/parts.h"
#include "core/job/pipeline.h"
#include <string.h>

const char *const weft_part_words[] = { WEFT_PART_LIST (WEFT_WORD_TEXT) NULL };

/* -------------------------------------------------------------------- list of parts */

static void
add_part (GArray *list, enum weft_part_kind kind, uint32_t micro)
{
  struct weft_part part = { .kind = kind, .micro = micro };

  g_array_append_val (list, part);
}

static gboolean
is_listed (const GArray *list, enum weft_part_kind kind, uint32_t micro)
{
  for (uint32_t i = 0; i < list->len; i++) {
    const struct weft_part *part = &g_array_index (list, struct weft_part, i);
    if (part->kind == kind && part->micro == micro)
      return TRUE;
  }
  return FALSE;
}

/* Adds a part for each cell (forward or backward of one microbatch) of the schedule. Both halves of
 * a split backward are one part. */
static void
add_cells (GArray *list, const weft_plan *plan)
{
  g_autoptr (weft_grid) grid = weft_job_grid (&plan->job, NULL);

  for (uint32_t i = 0; i < grid->n_cell[0]; i++) {
    const struct weft_cell *cell = &grid->cell[0][i];
    enum weft_part_kind kind =
        cell->phase == WEFT_PHASE_FORWARD ? WEFT_PART_FORWARD : WEFT_PART_BACKWARD;
    if (!is_listed (list, kind, cell->micro))
      add_part (list, kind, cell->micro);
  }
}

static void
list_parts (weft_parts *parts, const weft_plan *plan)
{
  GArray *list = g_array_new (FALSE, FALSE, sizeof (struct weft_part));

  add_part (list, WEFT_PART_ZERO, WEFT_NO_MICRO);
  if (plan->mesh.pp == 1)
    add_cells (list, plan);
  else
    add_part (list, WEFT_PART_SCHEDULE, WEFT_NO_MICRO);
  for (int kind = WEFT_PART_START; kind < WEFT_N_PART; kind++)
    add_part (list, kind, WEFT_NO_MICRO);
  parts->n = list->len;
  parts->part = (struct weft_part *) (void *) g_array_free (list, FALSE);
}

/* ------------------------------------------------------------------- part of each op */

struct marker {
  const weft_parts *parts;
  const weft_program *p;
  uint32_t *of;
  /* indices of two ops: the last op of the pipeline schedule, and the last op that belongs to the
   * launch of a gradient collective */
  uint32_t last_cell, last_launch;
  /* [microbatch]: indices of its forward part and its backward part */
  uint32_t *forward, *backward;
};

static gboolean
joins (const struct weft_op *row)
{
  return row->kind == WEFT_OP_SUM_SLICES || row->kind == WEFT_OP_RELEASE;
}

static void
find_places (struct marker *m)
{
  for (uint32_t op = 0; op < m->p->n_op; op++) {
    const struct weft_op *row = &m->p->op[op];
    if (row->micro != WEFT_NO_MICRO)
      m->last_cell = op;
    else if (row->phase == WEFT_PHASE_REDUCE && !joins (row))
      m->last_launch = op;
  }
}

/* The index of a part after the schedule. These parts are the last parts of the list, in the order
 * of enum weft_part_kind. */
static uint32_t
tail (const struct marker *m, enum weft_part_kind kind)
{
  return m->parts->n - (WEFT_N_PART - kind);
}

/* The part of an op, found by the phase of the op. A gather of weights before their first use
 * belongs to part `next`, the part of the next kernel. */
static uint32_t
own_part (const struct marker *m, uint32_t op, uint32_t next)
{
  const struct weft_op *row = &m->p->op[op];

  if (row->micro != WEFT_NO_MICRO)
    return (row->phase == WEFT_PHASE_FORWARD ? m->forward : m->backward)[row->micro];
  switch (row->phase) {
  case WEFT_PHASE_REDUCE:
    return tail (m, op <= m->last_launch ? WEFT_PART_START : WEFT_PART_FINISH);
  case WEFT_PHASE_FINALIZE:
    return tail (m, WEFT_PART_FINALIZE);
  case WEFT_PHASE_OPTIMIZER:
    return op < m->last_cell ? next : tail (m, WEFT_PART_UPDATE);
  default:
    return 0;
  }
}

static void
mark_own (struct marker *m)
{
  uint32_t next = tail (m, WEFT_PART_UPDATE);

  for (uint32_t op = m->p->n_op; op-- > 0;) {
    m->of[op] = own_part (m, op, next);
    if (m->p->op[op].lane == WEFT_LANE_GPU)
      next = m->of[op];
  }
}

/* Moves gradient collectives from part start_grad_sync to the cells of several stages, if a cell
 * depends on them: with variable_seq_lengths, the host waits for all transfers that it has launched
 * before it reads a length. Otherwise close_parts() would move the cells, of this stage only, and a
 * receive of another stage would be in an earlier part than its send. */
static void
pull_launches (struct marker *m)
{
  uint32_t earliest[WEFT_N_LANE];

  memset (earliest, 0xff, sizeof earliest);
  for (uint32_t op = m->p->n_op; op-- > 0;) {
    uint32_t *newer = &earliest[m->p->op[op].lane];
    if (m->p->op[op].phase == WEFT_PHASE_REDUCE)
      m->of[op] = MIN (m->of[op], *newer);
    *newer = MIN (*newer, m->of[op]);
    for (uint32_t d = m->p->op[op].deps; d < m->p->op[op + 1].deps; d++)
      if (m->p->op[m->p->deps[d]].phase == WEFT_PHASE_REDUCE)
        m->of[m->p->deps[d]] = MIN (m->of[m->p->deps[d]], m->of[op]);
  }
}

/* Moves ops to later parts where needed: an op must not belong to an earlier part than an op that
 * it depends on or follows on its lane. */
static void
close_parts (struct marker *m)
{
  uint32_t lane[WEFT_N_LANE] = { 0 };

  for (uint32_t op = 0; op < m->p->n_op; op++) {
    uint32_t *newest = &lane[m->p->op[op].lane];
    m->of[op] = MAX (m->of[op], *newest);
    for (uint32_t d = m->p->op[op].deps; d < m->p->op[op + 1].deps; d++)
      m->of[op] = MAX (m->of[op], m->of[m->p->deps[d]]);
    *newest = m->of[op];
  }
}

/* Finds the forward part and the backward part of each microbatch, and stores their indices. A
 * program with several stages has one part for all cells of the schedule; this part has index 1,
 * which is then stored for every microbatch. */
static void
index_cells (struct marker *m, uint32_t n_micro)
{
  m->forward = g_new (uint32_t, n_micro);
  m->backward = g_new (uint32_t, n_micro);
  for (uint32_t i = 0; i < n_micro; i++)
    m->forward[i] = m->backward[i] = 1;
  for (uint32_t i = 0; i < m->parts->n; i++) {
    const struct weft_part *part = &m->parts->part[i];
    if (part->micro != WEFT_NO_MICRO)
      (part->kind == WEFT_PART_FORWARD ? m->forward : m->backward)[part->micro] = i;
  }
}

weft_parts *
weft_parts_new (const weft_plan *plan)
{
  weft_parts *parts = g_new0 (weft_parts, 1);
  struct marker m = { .parts = parts };

  list_parts (parts, plan);
  parts->n_roles = plan->n_roles;
  parts->of = g_new0 (uint32_t *, plan->n_roles);
  index_cells (&m, weft_job_microbatches (&plan->job));
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    m.p = plan->role[role];
    m.of = parts->of[role] = g_new (uint32_t, m.p->n_op + 1);
    m.last_cell = m.last_launch = 0;
    find_places (&m);
    mark_own (&m);
    if (plan->mesh.pp > 1)
      pull_launches (&m);
    close_parts (&m);
  }
  g_free (m.forward);
  g_free (m.backward);
  return parts;
}

gboolean
weft_parts_reduces (const weft_parts *parts, const weft_plan *plan, uint32_t part)
{
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    for (uint32_t op = 0; op < p->n_op; op++)
      if (parts->of[role][op] == part && p->op[op].phase == WEFT_PHASE_REDUCE &&
          weft_op_is_comm (p->op[op].kind))
        return TRUE;
  }
  return FALSE;
}

void
weft_parts_free (weft_parts *parts)
{
  for (uint32_t role = 0; role < parts->n_roles; role++)
    g_free (parts->of[role]);
  g_free (parts->of);
  g_free (parts->part);
  g_free (parts);
}
