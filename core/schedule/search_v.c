/* Searches the order of a V schedule: greedy list scheduling in slots of one pass each, run once
 * for each of several priority rules.
 *
 * A microbatch makes four passes through all ranks in sequence: forward down the ranks on chunk a,
 * forward up on chunk b, then down and up with its input gradients. A place is one pass on one
 * rank. Microbatches run in order at every place, so the number of microbatches done at each place
 * determines which passes may run next. */
#include "core/schedule/order.h"

enum pass { DOWN, UP, GRADIENT_DOWN, GRADIENT_UP, N_PASS, WEIGHT = N_PASS, IDLE };

static const struct {
  uint8_t phase, chunk;
} cell_of[N_PASS] = {
  [DOWN] = { WEFT_PHASE_FORWARD, 0 },
  [UP] = { WEFT_PHASE_FORWARD, 1 },
  [GRADIENT_DOWN] = { WEFT_PHASE_INPUT_GRAD, 1 },
  [GRADIENT_UP] = { WEFT_PHASE_INPUT_GRAD, 0 },
};

/* cells of a microbatch on a rank: forward, input gradient and weight gradient for each of two
 * chunks */
enum { CELLS = 6 };

/* A priority rule. A rank runs the first pass in the list `urgent` that may run; if none may run,
 * it runs its oldest waiting weight gradient. Forwards on chunk a must leave room for forwards on
 * chunk b: on rank r, at most `most` - 1 - `back` - `slope` r / 24 microbatches may be between
 * their forward and their input gradient of chunk a. From microbatch `thirds` p / 3 on, a rank
 * starts a forward on chunk a one slot after the previous rank has finished it. */
struct way {
  uint8_t urgent[N_PASS];
  uint8_t back, slope, thirds;
};

#define NEVER UINT8_MAX

/* The priority rules that a search selected. The search tried every order of `urgent` with a grid
 * of values for `back`, `slope` and `thirds`, on 2 to 64 ranks. Rules in which passes do not wait
 * need the fewest slots. The other rules need slightly more slots, but lose less time if gradients
 * take longer than forwards, because a late rank does not immediately delay the next rank. */
static const struct way ways[] = {
  { { UP, GRADIENT_UP, DOWN, GRADIENT_DOWN }, 0, 12, NEVER },
  { { UP, DOWN, GRADIENT_UP, GRADIENT_DOWN }, 0, 12, 3 },
  { { UP, DOWN, GRADIENT_UP, GRADIENT_DOWN }, 0, 12, 2 },
  { { UP, DOWN, GRADIENT_UP, GRADIENT_DOWN }, 0, 12, 1 },
  { { UP, DOWN, GRADIENT_UP, GRADIENT_DOWN }, 1, 11, 2 },
};

struct rank {
  struct weft_cell *cell;
  uint32_t n;       /* number of cells written so far */
  uint32_t weight;  /* first cell of the row whose weight gradient may still wait */
  uint32_t waiting; /* number of weight gradients that wait */
  uint32_t room;    /* largest value that `down` may reach */
  /* microbatches whose forward on chunk a has run on the rank, but not their input gradient */
  uint32_t down;
  /* activations that the rank keeps, counted in halves: an input gradient frees one half of an
   * activation, a weight gradient the other half */
  uint32_t halves;
  enum pass now;
};

struct search {
  const struct weft_v_spec *spec;
  /* unpaced: number of microbatches before the first microbatch that waits one slot on each rank
   * (struct way) */
  uint32_t n_ranks, n_micro, unpaced;
  /* number of microbatches done at each place(), now and one slot earlier */
  uint32_t *done, *earlier;
  struct rank *rank;
};

/* Index of a pass on a rank, in the order in which a microbatch visits passes and ranks. UP passes
 * begin at the last rank. */
static uint32_t
place (const struct search *s, enum pass pass, uint32_t rank)
{
  return pass * s->n_ranks + (pass % 2 ? s->n_ranks - 1 - rank : rank);
}

static gboolean
has_come (const struct search *s, enum pass pass, uint32_t at)
{
  const uint32_t *done = pass == DOWN && s->done[at] >= s->unpaced ? s->earlier : s->done;

  return (at ? done[at - 1] : s->n_micro) > s->done[at];
}

/* Whether a rank may run a pass now. Forwards on chunk a leave room for the activations of one
 * forward on chunk b; otherwise no rank could continue. */
static gboolean
may_run (const struct search *s, enum pass pass, uint32_t rank)
{
  const struct rank *r = &s->rank[rank];
  uint32_t most = 2 * s->spec->most;

  if (!has_come (s, pass, place (s, pass, rank)))
    return FALSE;
  if (pass == DOWN)
    return r->halves + 4 <= most && r->down < r->room;
  return pass != UP || r->halves + 2 <= most;
}

static enum pass
choose (const struct search *s, const struct way *way, uint32_t rank)
{
  for (uint32_t i = 0; i < N_PASS; i++)
    if (may_run (s, way->urgent[i], rank))
      return way->urgent[i];
  return s->rank[rank].waiting ? WEIGHT : IDLE;
}

static void
take_weight (struct rank *r)
{
  while (r->cell[r->weight].phase != WEFT_PHASE_INPUT_GRAD)
    r->weight++;
  r->cell[r->n] = r->cell[r->weight++];
  r->cell[r->n++].phase = WEFT_PHASE_WEIGHT_GRAD;
  r->waiting--;
  r->halves--;
}

static void
take (struct search *s, uint32_t rank)
{
  struct rank *r = &s->rank[rank];
  gboolean forward = r->now <= UP;

  if (r->now == IDLE)
    return;
  if (r->now == WEIGHT) {
    take_weight (r);
    return;
  }
  r->cell[r->n++] = (struct weft_cell){ .phase = cell_of[r->now].phase,
                                        .chunk = cell_of[r->now].chunk,
                                        .micro = s->done[place (s, r->now, rank)]++ };
  r->halves += forward ? 2 : -1;
  r->waiting += !forward;
  r->down += (r->now == DOWN) - (r->now == GRADIENT_UP);
}

static void
start (struct search *s, const struct way *way)
{
  size_t places = (size_t) N_PASS * s->n_ranks;

  s->unpaced = way->thirds == NEVER ? s->n_micro : way->thirds * s->n_ranks / 3;
  memset (s->done, 0, places * sizeof *s->done);
  for (uint32_t rank = 0; rank < s->n_ranks; rank++) {
    uint32_t left = 1 + way->back + (way->slope * rank + 12) / 24;
    s->rank[rank] = (struct rank){ .cell = s->rank[rank].cell,
                                   .room = s->spec->most > left ? s->spec->most - left : 1 };
  }
}

/* Runs the pipeline by one priority rule, slot by slot. In every slot each rank chooses its pass by
 * the state before the slot. */
static void
run (struct search *s, const struct way *way)
{
  size_t places = (size_t) N_PASS * s->n_ranks, left = places * s->n_micro;

  start (s, way);
  memcpy (s->earlier, s->done, places * sizeof *s->done);
  for (left = (size_t) CELLS * s->n_ranks * s->n_micro; left > 0;) {
    for (uint32_t rank = 0; rank < s->n_ranks; rank++) {
      s->rank[rank].now = choose (s, way, rank);
      left -= s->rank[rank].now != IDLE;
    }
    memcpy (s->earlier, s->done, places * sizeof *s->done);
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
      take (s, rank);
  }
}

/* The grid that one priority rule makes for `n_micro` microbatches, without the ranks that the
 * search adds (n_more). */
static weft_grid *
try_way (const struct weft_v_spec *spec, const struct way *way, uint32_t n_micro)
{
  uint32_t n_ranks = spec->n_ranks + spec->n_more;
  g_autofree uint32_t *done = g_new (uint32_t, (size_t) N_PASS * n_ranks);
  g_autofree uint32_t *earlier = g_new (uint32_t, (size_t) N_PASS * n_ranks);
  g_autofree struct rank *rank = g_new0 (struct rank, n_ranks);
  weft_grid *grid = weft_grid_blank (spec->n_ranks, 2, n_micro, WEFT_GRID_V);
  struct search s = { .spec = spec,
                      .n_ranks = n_ranks,
                      .n_micro = n_micro,
                      .done = done,
                      .earlier = earlier,
                      .rank = rank };

  for (uint32_t i = 0; i < n_ranks; i++)
    rank[i].cell = g_new (struct weft_cell, (size_t) CELLS * n_micro);
  run (&s, way);
  for (uint32_t i = 0; i < spec->n_ranks; i++) {
    grid->cell[i] = rank[i].cell;
    grid->n_cell[i] = rank[i].n;
  }
  for (uint32_t i = spec->n_ranks; i < n_ranks; i++)
    g_free (rank[i].cell);
  return grid;
}

/* The score of a grid; a lower score is better. First it counts the idle slots above `enough`.
 * Grids with equal slots are ordered by their time if input gradients take 1.5 times as long as the
 * other passes, as with attention. */
static double
score (const weft_grid *grid, uint32_t enough)
{
  double slots = weft_grid_replay (grid, (struct weft_cell_times){ 1, 1, 1, 0 }, NULL);
  double uneven = weft_grid_replay (grid, (struct weft_cell_times){ 2, 3, 2, 0 }, NULL);
  double work = 7.0 * 2 * CELLS * grid->n_micro * grid->n_ranks;

  return MAX (slots - CELLS * grid->n_micro - enough, 0) + uneven / (uneven + work);
}

/* Returns the grid of the priority rule with the lowest score. The rules are compared on at most 2p
 * + 4 microbatches, which is enough to fill and drain a pipeline of p ranks; more microbatches only
 * repeat the middle part. */
weft_grid *
weft_search_v (const struct weft_v_spec *spec)
{
  uint32_t n_micro = MIN (spec->n_micro, 2 * spec->n_ranks + 4);
  g_autoptr (weft_grid) best = NULL;
  const struct way *way = NULL;
  double least = 0;

  for (size_t i = 0; i < G_N_ELEMENTS (ways); i++) {
    g_autoptr (weft_grid) grid = try_way (spec, &ways[i], n_micro);
    double loss = score (grid, spec->enough);
    if (best && loss >= least)
      continue;
    g_clear_pointer (&best, weft_grid_free);
    best = g_steal_pointer (&grid);
    way = &ways[i];
    least = loss;
  }
  return n_micro < spec->n_micro ? try_way (spec, way, spec->n_micro) : g_steal_pointer (&best);
}
