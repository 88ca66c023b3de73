#include "core/report/memory_stalls.h"
#include <math.h>

/* The program of a role and its memory waits, with begin and end of its ops in one row of a
 * timeline. */
struct scene {
  const weft_program *p;
  const struct weft_memory *memory;
  const double *begin, *end;
};

/* ----------------------------------------------------------------------- causes */

static struct weft_memory_stall *
row_of (GArray *cause, const struct weft_op *on)
{
  struct weft_memory_stall row = { .lane = on->lane, .kind = on->kind };

  if (on->lane == WEFT_LANE_GPU)
    row.kind = WEFT_N_OP;
  for (guint i = 0; i < cause->len; i++) {
    struct weft_memory_stall *at = &g_array_index (cause, struct weft_memory_stall, i);
    if (at->lane == row.lane && at->kind == row.kind)
      return at;
  }
  g_array_append_val (cause, row);
  return &g_array_index (cause, struct weft_memory_stall, cause->len - 1);
}

static void
count (struct weft_memory_stalls *stalls, const weft_program *p, const struct weft_memory *memory)
{
  for (uint32_t i = 0; i < memory->n_wait; i++) {
    gboolean next = i == 0 || memory->wait[i].op != memory->wait[i - 1].op;
    stalls->n_op += next;
    stalls->n_kernel += next && p->op[memory->wait[i].op].lane == WEFT_LANE_GPU;
    row_of (stalls->cause, &p->op[memory->wait[i].on])->ops++;
  }
}

/* ---------------------------------------------------------------------- seconds */

/* Index of the first wait for memory of an op; if the op has none, the index of the next op's first
 * wait. */
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

/* The dependencies that delay the start of a launch. */
struct need {
  double ready;  /* time at which all dependencies except waits for memory had ended */
  /* the op whose end was waited for last, of all waits for memory; WEFT_NO_OP: no wait for
   * memory */
  uint32_t last;
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

/* Adds the stall of one launch, which consists of the ops [first, end) of a lane. */
static void
add_launch (const struct scene *s, enum weft_lane lane, uint32_t first, uint32_t end, double weight,
            struct weft_memory_stalls *stalls)
{
  const uint32_t *op = s->p->lane_ops[lane];
  struct need need = { first ? s->end[op[first - 1]] : 0, WEFT_NO_OP };

  for (uint32_t i = first; i < end; i++)
    add_needs (s, op[i], &need);
  if (need.last == WEFT_NO_OP)
    return;
  double held = weight * fmax (0, fmin (s->begin[op[first]], s->end[need.last]) - need.ready);
  stalls->held_s += held;
  row_of (stalls->cause, &s->p->op[need.last])->held_s += held;
}

static void
add_row (const struct scene *s, double weight, struct weft_memory_stalls *stalls)
{
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    for (uint32_t i = 0, end; i < s->p->lane_n[lane]; i = end) {
      end = weft_program_group_end (s->p, lane, i);
      add_launch (s, lane, i, end, weight, stalls);
    }
}

/* ------------------------------------------------------------------------- the whole */

void
weft_memory_stalls_init (struct weft_memory_stalls *stalls, const weft_plan *plan, uint32_t role,
                         const weft_timeline *t)
{
  struct scene s = { .p = plan->role[role], .memory = &plan->memory[role] };
  uint32_t rows = 0;

  *stalls = (struct weft_memory_stalls){ 0 };
  if (s.memory->n_wait == 0)
    return;
  stalls->cause = g_array_new (FALSE, FALSE, sizeof (struct weft_memory_stall));
  count (stalls, s.p, s.memory);
  for (uint32_t row = 0; t && row < t->n; row++)
    rows += t->role[row] == role;
  for (uint32_t row = 0; t && row < t->n; row++) {
    if (t->role[row] != role)
      continue;
    s.begin = t->begin[row];
    s.end = t->end[row];
    add_row (&s, 1.0 / rows, stalls);
  }
}

void
weft_memory_stalls_clear (struct weft_memory_stalls *stalls)
{
  g_clear_pointer (&stalls->cause, g_array_unref);
}

const char *
weft_memory_stall_word (const struct weft_memory_stall *cause)
{
  return cause->kind == WEFT_N_OP ? "kernels" : weft_op_words[cause->kind];
}
