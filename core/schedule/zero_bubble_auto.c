/* ZB-1p and ZB-2p of Qi et al. 2023, "Zero Bubble Pipeline Parallelism": an order within a limit of
 * memory, found by a greedy search as in sail-sg/zero-bubble-pipeline-parallelism
 * (megatron/core/pipeline_parallel/zerobubble/scheduler/zb.py).
 *
 * A rank warms up with as many forwards as fit before its first gradient arrives. Then forwards and
 * input gradients alternate. A weight gradient runs when memory is needed or the rank would
 * otherwise wait. */
#include "core/schedule/order.h"

/* Durations in slots. The source measures them in the first steps: 14.4, 14.4 and 9.7 ms for stages
 * of two layers of width 4096 (mem.py of its branch `arxiv`), and 0.5 ms for a transfer. A weight
 * gradient is shorter, because neither attention nor pointwise kernels have one. Orders for these
 * durations are as good where a weight gradient takes as long as a forward. */
enum { TRANSFER = 1 };
static const uint32_t duration[] = {
  [WEFT_CELL_WORK_FORWARD] = 30,
  [WEFT_CELL_WORK_INPUT] = 30,
  [WEFT_CELL_WORK_WEIGHT] = 20,
};
static const enum weft_phase phase_of[] = {
  [WEFT_CELL_WORK_FORWARD] = WEFT_PHASE_FORWARD,
  [WEFT_CELL_WORK_INPUT] = WEFT_PHASE_INPUT_GRAD,
  [WEFT_CELL_WORK_WEIGHT] = WEFT_PHASE_WEIGHT_GRAD,
};

struct rank {
  GArray *row;
  uint32_t done[WEFT_N_CELL_WORK]; /* microbatches whose work of this kind is done */
  uint32_t *end[WEFT_N_CELL_WORK]; /* by microbatch: end of that work, in slots */
  uint32_t now;                    /* end of the last cell */
  uint32_t idle;                   /* slots without work since the first cell */
  uint32_t kept;                   /* activations in memory, in parts of WEFT_ACTIVATION */
};

struct search {
  uint32_t n_ranks, n_micro;
  struct rank *rank;
  uint32_t limit;       /* largest `kept` of a rank */
  uint32_t for_weights; /* parts of an activation that its weight gradient needs */
  /* Two choices, of which the search tries all combinations. `fills`: a weight gradient also runs
   * in a gap that is shorter, although the rank has idled less than another. `holds`: a rank leaves
   * out a forward that would delay the next rank's gradient. */
  gboolean fills, holds;
};

/* The slot from which the next microbatch of a rank has its input. */
static uint32_t
arrival (const struct search *s, uint32_t r, enum weft_cell_work work)
{
  uint32_t from = work == WEFT_CELL_WORK_FORWARD ? r - 1 : r + 1;

  if (work == WEFT_CELL_WORK_WEIGHT || from >= s->n_ranks)
    return 0;
  return s->rank[from].end[work][s->rank[r].done[work]] + TRANSFER;
}

static void
put (struct search *s, uint32_t r, enum weft_cell_work work)
{
  struct rank *at = &s->rank[r];
  uint32_t start = MAX (at->now, arrival (s, r, work)), micro = at->done[work]++;

  if (at->row->len)
    at->idle += start - at->now;
  at->now = at->end[work][micro] = start + duration[work];
  if (work == WEFT_CELL_WORK_FORWARD)
    at->kept += WEFT_ACTIVATION;
  else
    at->kept -= work == WEFT_CELL_WORK_WEIGHT ? s->for_weights : WEFT_ACTIVATION - s->for_weights;
  weft_order_put (at->row, phase_of[work], 0, micro);
}

/* Number of weight gradients that wait. */
static uint32_t
waiting (const struct search *s, uint32_t r)
{
  return s->rank[r].done[WEFT_CELL_WORK_INPUT] - s->rank[r].done[WEFT_CELL_WORK_WEIGHT];
}

static void
put_waiting (struct search *s, uint32_t r)
{
  while (waiting (s, r))
    put (s, r, WEFT_CELL_WORK_WEIGHT);
}

/* How much longer than this rank some rank has idled. */
static uint32_t
spare (const struct search *s, uint32_t r)
{
  uint32_t most = 0;

  for (uint32_t i = 0; i < s->n_ranks; i++)
    most = MAX (most, s->rank[i].idle);
  return most - s->rank[r].idle;
}

/* Runs weight gradients until the input of the next `work` arrives. */
static void
fill_gap (struct search *s, uint32_t r, enum weft_cell_work work)
{
  uint32_t until = arrival (s, r, work);
  const struct rank *at = &s->rank[r];

  while (waiting (s, r) && at->now + duration[WEFT_CELL_WORK_WEIGHT] <= until)
    put (s, r, WEFT_CELL_WORK_WEIGHT);
  if (waiting (s, r) && at->now < until && (s->fills || until - at->now > spare (s, r)))
    put (s, r, WEFT_CELL_WORK_WEIGHT);
}

static void
put_forward (struct search *s, uint32_t r)
{
  while (s->rank[r].kept + WEFT_ACTIVATION > s->limit && waiting (s, r))
    put (s, r, WEFT_CELL_WORK_WEIGHT);
  fill_gap (s, r, WEFT_CELL_WORK_FORWARD);
  put (s, r, WEFT_CELL_WORK_FORWARD);
}

static void
put_gradient (struct search *s, uint32_t r)
{
  fill_gap (s, r, WEFT_CELL_WORK_INPUT);
  if (r == 0 && s->rank[r].done[WEFT_CELL_WORK_FORWARD] == s->n_micro)
    put_waiting (s, r);
  put (s, r, WEFT_CELL_WORK_INPUT);
}

/* Sets more[r] to the number of forwards, beside that of microbatch 0, that fit into memory and
 * into the time before the first gradient. Each rank has fewer than the rank before it, unless it
 * has all microbatches. */
static void
warm_up (const struct search *s, uint32_t *more)
{
  const uint32_t forward = duration[WEFT_CELL_WORK_FORWARD];
  uint32_t gradient = 0;

  for (uint32_t r = s->n_ranks; r-- > 0;) {
    uint32_t now = s->rank[r].now;
    more[r] = 0;
    while (gradient && more[r] + 1 < s->n_micro && (more[r] + 2) * WEFT_ACTIVATION <= s->limit &&
           now + forward <= gradient + TRANSFER) {
      more[r]++;
      now += forward;
    }
    gradient = MAX (now, gradient ? gradient + TRANSFER : 0) + duration[WEFT_CELL_WORK_INPUT];
  }
  for (uint32_t r = 1; r < s->n_ranks; r++)
    if (more[r] >= more[r - 1] && more[r] + 1 < s->n_micro)
      more[r] = more[r - 1] ? more[r - 1] - 1 : 0;
}

/* Whether a rank runs a forward before its next input gradient. */
static gboolean
takes_forward (const struct search *s, uint32_t r)
{
  const struct rank *at = &s->rank[r], *next = at + 1;
  const enum weft_cell_work forward = WEFT_CELL_WORK_FORWARD;
  uint32_t room = at->kept + WEFT_ACTIVATION > s->limit ? at->kept + WEFT_ACTIVATION - s->limit : 0;

  if (!s->holds || r + 1 == s->n_ranks || at->done[forward] < next->done[forward] + 2)
    return at->done[forward] < s->n_micro;
  uint32_t gradient = next->now + duration[forward] + duration[WEFT_CELL_WORK_INPUT] + TRANSFER;
  uint32_t weights = MIN ((room + s->for_weights - 1) / s->for_weights, waiting (s, r));
  uint32_t end = at->now + duration[forward] + weights * duration[WEFT_CELL_WORK_WEIGHT];
  return at->done[forward] < s->n_micro && at->now < gradient &&
         (end <= gradient || gradient - at->now > spare (s, r));
}

/* A forward on every rank up to the last that takes one, then an input gradient on every rank. */
static void
put_round (struct search *s, gboolean *takes)
{
  gboolean all = TRUE;

  for (uint32_t r = s->n_ranks; r-- > 0;)
    takes[r] = all = takes_forward (s, r) && all;
  for (uint32_t r = 0; r < s->n_ranks; r++)
    if (takes[r])
      put_forward (s, r);
  for (uint32_t r = s->n_ranks; r-- > 0;)
    put_gradient (s, r);
}

static void
start (struct search *s, const weft_grid *grid, const struct weft_grid_spec *spec)
{
  *s = (struct search){ .n_ranks = grid->n_ranks, .n_micro = grid->n_micro };
  s->rank = g_new0 (struct rank, s->n_ranks);
  s->limit =
      MIN (spec->most_pending ? spec->most_pending : 2 * s->n_ranks, s->n_micro) * WEFT_ACTIVATION;
  s->for_weights = spec->for_weights ? spec->for_weights : WEFT_ACTIVATION / 2;
  for (uint32_t r = 0; r < s->n_ranks; r++) {
    s->rank[r].row = g_array_new (FALSE, FALSE, sizeof (struct weft_cell));
    for (uint32_t work = 0; work < WEFT_N_CELL_WORK; work++)
      s->rank[r].end[work] = g_new0 (uint32_t, s->n_micro);
  }
}

static void
discard (struct search *s)
{
  for (uint32_t r = 0; r < s->n_ranks; r++) {
    g_array_unref (s->rank[r].row);
    for (uint32_t work = 0; work < WEFT_N_CELL_WORK; work++)
      g_free (s->rank[r].end[work]);
  }
  g_free (s->rank);
}

/* Fills the rows of one way. Returns the slots of the rank that takes longest. */
static uint32_t
run (struct search *s)
{
  g_autofree uint32_t *more = g_new (uint32_t, s->n_ranks);
  g_autofree gboolean *takes = g_new (gboolean, s->n_ranks);
  uint32_t longest = 0;

  for (uint32_t r = 0; r < s->n_ranks; r++)
    put (s, r, WEFT_CELL_WORK_FORWARD);
  warm_up (s, more);
  for (uint32_t r = 0; r < s->n_ranks; r++)
    for (uint32_t i = 0; i < more[r]; i++)
      put (s, r, WEFT_CELL_WORK_FORWARD);
  for (uint32_t r = s->n_ranks; r-- > 0;)
    put (s, r, WEFT_CELL_WORK_INPUT);
  for (uint32_t micro = 1; micro < s->n_micro; micro++)
    put_round (s, takes);
  for (uint32_t r = 0; r < s->n_ranks; r++) {
    const struct rank *at = &s->rank[r];
    put_waiting (s, r);
    longest = MAX (longest, at->now - at->end[WEFT_CELL_WORK_FORWARD][0]);
  }
  return longest;
}

void
weft_order_zb_auto (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t best = UINT32_MAX;

  for (uint32_t way = 0; way < 4; way++) {
    struct search s;
    start (&s, grid, spec);
    s.fills = way & 1;
    s.holds = way >> 1;
    uint32_t slots = run (&s);
    for (uint32_t r = 0; r < s.n_ranks && slots < best; r++) {
      g_array_set_size (row[r], 0);
      g_array_append_vals (row[r], s.rank[r].row->data, s.rank[r].row->len);
    }
    best = MIN (best, slots);
    discard (&s);
  }
}
