#include "core/report/waits.h"
#include <math.h>

/* The waits of a role, and one row of a timeline. */
struct scene {
  const weft_program *p;
  const struct weft_memory *memory;
  const double *begin, *end;
};

/* ------------------------------------------------------------------------- who */

static struct weft_waits_for *
row_of (GArray *awaited, const struct weft_op *on)
{
  struct weft_waits_for row = { .lane = on->lane, .kind = on->kind };

  if (on->lane == WEFT_LANE_GPU)
    row.kind = WEFT_N_OP;
  for (guint i = 0; i < awaited->len; i++) {
    struct weft_waits_for *at = &g_array_index (awaited, struct weft_waits_for, i);
    if (at->lane == row.lane && at->kind == row.kind)
      return at;
  }
  g_array_append_val (awaited, row);
  return &g_array_index (awaited, struct weft_waits_for, awaited->len - 1);
}

static void
count (struct weft_waits *waits, const weft_program *p, const struct weft_memory *memory)
{
  for (uint32_t i = 0; i < memory->n_wait; i++) {
    gboolean next = i == 0 || memory->wait[i].op != memory->wait[i - 1].op;
    waits->n_op += next;
    waits->n_kernel += next && p->op[memory->wait[i].op].lane == WEFT_LANE_GPU;
    row_of (waits->awaited, &p->op[memory->wait[i].on])->ops++;
  }
}

/* ------------------------------------------------------------------------- how long */

/* First of the waits of an op, or of those of a later one. */
static uint32_t
first_wait (const struct weft_memory *memory, uint32_t op)
{
  uint32_t low = 0, high = memory->n_wait;

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (memory->wait[middle].op < op)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static gboolean
is_for_memory (const struct weft_memory *memory, uint32_t op, uint32_t on)
{
  for (uint32_t i = first_wait (memory, op); i < memory->n_wait && memory->wait[i].op == op; i++)
    if (memory->wait[i].on == on)
      return TRUE;
  return FALSE;
}

/* What an op of a launch waits for: when all but its bytes were there, and who of the others was last. */
struct need {
  double ready;
  uint32_t last; /* WEFT_NO_OP: nobody */
};

static void
add_needs (const struct scene *s, uint32_t op, struct need *need)
{
  for (uint32_t d = s->p->op[op].deps; d < s->p->op[op + 1].deps; d++)
    if (!is_for_memory (s->memory, op, s->p->deps[d]))
      need->ready = fmax (need->ready, s->end[s->p->deps[d]]);
  for (uint32_t i = first_wait (s->memory, op); i < s->memory->n_wait; i++) {
    const struct weft_memory_wait *wait = &s->memory->wait[i];
    if (wait->op != op)
      break;
    if (need->last == WEFT_NO_OP || s->end[wait->on] > s->end[need->last])
      need->last = wait->on;
  }
}

/* One launch: ops [first, end) of a lane. */
static void
add_launch (const struct scene *s, enum weft_lane lane, uint32_t first, uint32_t end, double weight,
            struct weft_waits *waits)
{
  const uint32_t *op = s->p->lane_ops[lane];
  struct need need = { first ? s->end[op[first - 1]] : 0, WEFT_NO_OP };

  for (uint32_t i = first; i < end; i++)
    add_needs (s, op[i], &need);
  if (need.last == WEFT_NO_OP)
    return;
  double held = weight * fmax (0, fmin (s->begin[op[first]], s->end[need.last]) - need.ready);
  waits->held_s += held;
  row_of (waits->awaited, &s->p->op[need.last])->held_s += held;
}

static void
add_row (const struct scene *s, double weight, struct weft_waits *waits)
{
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    for (uint32_t i = 0, end; i < s->p->lane_n[lane]; i = end) {
      end = weft_program_group_end (s->p, lane, i);
      add_launch (s, lane, i, end, weight, waits);
    }
}

/* ------------------------------------------------------------------------- the whole */

void
weft_waits_init (struct weft_waits *waits, const weft_plan *plan, uint32_t role,
                 const weft_timeline *t)
{
  struct scene s = { .p = plan->role[role], .memory = &plan->memory[role] };
  uint32_t rows = 0;

  *waits = (struct weft_waits){ 0 };
  if (s.memory->n_wait == 0)
    return;
  waits->awaited = g_array_new (FALSE, FALSE, sizeof (struct weft_waits_for));
  count (waits, s.p, s.memory);
  for (uint32_t row = 0; t && row < t->n; row++)
    rows += t->role[row] == role;
  for (uint32_t row = 0; t && row < t->n; row++) {
    if (t->role[row] != role)
      continue;
    s.begin = t->begin[row];
    s.end = t->end[row];
    add_row (&s, 1.0 / rows, waits);
  }
}

void
weft_waits_clear (struct weft_waits *waits)
{
  g_clear_pointer (&waits->awaited, g_array_unref);
}

const char *
weft_waits_word (const struct weft_waits_for *awaited)
{
  return awaited->kind == WEFT_N_OP ? "kernels" : weft_op_words[awaited->kind];
}
