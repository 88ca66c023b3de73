/* Schedules that split the backward: the gradient of a stage's input at once, because the stage
 * before waits for it, and the gradient of its weights when there is nothing better to do.
 *
 * ZB-H1 and ZB-H2: Qi et al. 2023, "Zero Bubble Pipeline Parallelism".  ZB-V: the same paper.
 * V-Half and V-Min: Qi et al. 2024, "Pipeline Parallelism with Controllable Memory".  DualPipe:
 * DeepSeek-AI 2024, "DeepSeek-V3 Technical Report"; DualPipeV is its half, folded. */
#include "core/program/pipeline_order.h"

/* Writes one rank.  Patterns are made of F, I, B and the letter of a chunk: "Fa" is the next forward
 * of chunk a, "Fa&Bb" a forward and a backward that run together.  "w" is the oldest weight gradient
 * that waits.  What would be beyond the last microbatch is left out. */
struct writer {
  GArray *row;
  uint32_t n_micro;           /* of a chunk */
  uint32_t chunk[2], base[2]; /* by letter: the chunk, its first microbatch */
  uint32_t n_forward[2], n_backward[2];
  GQueue waiting; /* of weight gradients: microbatch * 2 + letter */
};

static void
put (struct writer *w, enum weft_phase phase, uint32_t letter, uint32_t micro)
{
  if (micro < w->n_micro)
    weft_order_put (w->row, phase, w->chunk[letter], w->base[letter] + micro);
}

static void
put_weight_gradient (struct writer *w)
{
  uint32_t oldest = GPOINTER_TO_UINT (g_queue_pop_head (&w->waiting));

  put (w, WEFT_PHASE_WEIGHT_GRAD, oldest % 2, oldest / 2);
}

static void
put_next (struct writer *w, char phase, uint32_t letter)
{
  uint32_t micro = phase == 'F' ? w->n_forward[letter]++ : w->n_backward[letter]++;

  if (phase == 'F')
    put (w, WEFT_PHASE_FORWARD, letter, micro);
  else if (phase == 'B')
    put (w, WEFT_PHASE_BACKWARD, letter, micro);
  else
    put (w, WEFT_PHASE_INPUT_GRAD, letter, micro);
  if (phase == 'I')
    g_queue_push_tail (&w->waiting, GUINT_TO_POINTER (micro * 2 + letter));
}

static void
repeat (struct writer *w, uint32_t times, const char *pattern)
{
  while (times-- > 0)
    for (const char *at = pattern; *at; at++) {
      if (*at == 'w') {
        put_weight_gradient (w);
        continue;
      }
      if (*at == '&') {
        g_array_index (w->row, struct weft_cell, w->row->len - 1).paired = TRUE;
        at++;
      }
      put_next (w, at[0], at[1] - 'a');
      at++;
    }
}

static struct writer
start (GArray *row, uint32_t n_micro)
{
  return (struct writer){ .row = row, .n_micro = n_micro, .chunk = { 0, 1 } };
}

/* ------------------------------------------------------------------ one chunk */

/* 1F1B that runs `warm` forwards ahead and lets at most `most` weight gradients wait. */
static void
zero_bubble (struct writer *w, uint32_t warm, uint32_t most)
{
  repeat (w, MIN (warm, w->n_micro), "Fa");
  repeat (w, MIN (most, w->n_micro), "FaIa");
  repeat (w, w->n_micro - MIN (most, w->n_micro), "FaIaw");
  repeat (w, g_queue_get_length (&w->waiting), "w");
}

/* `ahead` ranks' worth of forwards: what 1F1B keeps, or twice that. */
static void
fill_zero_bubble (const weft_grid *grid, GArray **row, uint32_t ahead)
{
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    struct writer w = start (row[rank], grid->n_micro);
    zero_bubble (&w, ahead * (grid->n_ranks - 1 - rank), ahead * rank);
  }
}

void
weft_order_zb_h1 (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  (void) spec;
  fill_zero_bubble (grid, row, 1);
}

void
weft_order_zb_h2 (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  (void) spec;
  fill_zero_bubble (grid, row, 2);
}

/* ------------------------------------------------------------------ two chunks in a V */

/* A microbatch comes down through chunks a and up through chunks b.  A rank fills up with as many
 * forwards as come back to the same slot, then every six slots hold the whole work of one
 * microbatch on its two chunks.  Written for at least 2p - 1 microbatches; with fewer, the order of
 * those that there are. */
void
weft_order_zb_v (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t p = grid->n_ranks;

  (void) spec;
  for (uint32_t rank = 0; rank < p; rank++) {
    struct writer w = start (row[rank], grid->n_micro);
    repeat (&w, 2 * (p - rank) - 1, "Fa");
    repeat (&w, rank, "FbFa");
    repeat (&w, p - rank, "FbIbw");
    repeat (&w, MAX (grid->n_micro, 2 * p - 1) - p, "FaIawFbIbw");
    repeat (&w, rank, "IaIb");
    repeat (&w, p - rank, "Iaw");
    repeat (&w, g_queue_get_length (&w.waiting), "w");
  }
}

/* A microbatch every six slots: first slot of its four passes on a rank, Fa, Fb, Ib and Ia, for
 * microbatch 0; weight gradients take the slots that are left.  Which slots the passes have decides
 * how long an activation lives, and so how many a rank keeps. */
enum { PERIOD = 6, N_PASS = 4 };

static const char *
pass_at (const uint32_t first[N_PASS], uint32_t n_micro, uint32_t slot)
{
  static const char *const pass[N_PASS] = { "Fa", "Fb", "Ib", "Ia" };

  for (uint32_t i = 0; i < N_PASS; i++)
    if (slot >= first[i] && (slot - first[i]) % PERIOD == 0 && (slot - first[i]) / PERIOD < n_micro)
      return pass[i];
  return NULL;
}

static void
put_by_slot (GArray *row, uint32_t n_micro, const uint32_t first[N_PASS])
{
  struct writer w = start (row, n_micro);
  uint32_t last = first[N_PASS - 1] + PERIOD * (n_micro - 1);

  for (uint32_t slot = 0; slot <= last || g_queue_get_length (&w.waiting); slot++) {
    const char *pass = pass_at (first, n_micro, slot);
    if (pass)
      repeat (&w, 1, pass);
    else if (g_queue_get_length (&w.waiting))
      repeat (&w, 1, "w");
  }
}

/* Forwards go down at half speed, one rank every two slots, so that gradients meet them sooner. */
void
weft_order_v_half (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t p = grid->n_ranks, gap = p % 2 ? 0 : 3; /* keeps passes off one another's slots */

  (void) spec;
  for (uint32_t r = 0; r < p; r++)
    put_by_slot (
        row[r], grid->n_micro,
        (const uint32_t[]){ 2 * r, 3 * p - 2 - r, 3 * p + gap - 1 + 2 * r, 6 * p + gap - 2 - r });
}

void
weft_order_v_min (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t p = grid->n_ranks, gap = p % 3 ? 0 : 2;

  (void) spec;
  for (uint32_t r = 0; r < p; r++)
    put_by_slot (row[r], grid->n_micro,
                 (const uint32_t[]){ r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r });
}

/* ------------------------------------------------------------------ from both ends */

/* `depth` ranks from an end to the middle, this one `near` ranks from its end.  Chunk a is that of
 * microbatches which enter at the near end, b that of those which have been to the middle. */
static void
dual (struct writer *w, uint32_t depth, uint32_t near)
{
  uint32_t far = depth - 1 - near, both = w->n_micro - 2 * depth + near + 1;

  repeat (w, 2 * far, "Fa");
  repeat (w, near + 1, "FaFb");
  repeat (w, far, "IbwFb");
  repeat (w, far == 0, "FaBbFb&Ba"); /* the middle has nothing to hide behind the first pair */
  repeat (w, both - (far == 0), "Fa&BbFb&Ba");
  repeat (w, far, "BbFb&Ba");
  for (uint32_t i = 0; i < 2 * (near + 1); i++)
    put_next (w, i <= near ? 'B' : 'I', i % 2 ? 0 : 1);
  repeat (w, far, "wIa");
  repeat (w, near + 1, "w");
}

void
weft_order_dualpipe (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t p = grid->n_ranks, half = grid->n_micro / 2;

  (void) spec;
  for (uint32_t rank = 0; rank < p; rank++) {
    struct writer w = start (row[rank], half);
    gboolean upper = rank >= p / 2;
    w.chunk[0] = upper;
    w.chunk[1] = !upper;
    w.base[0] = upper ? half : 0;
    w.base[1] = upper ? 0 : half;
    dual (&w, p / 2, MIN (rank, p - 1 - rank));
  }
}

void
weft_order_dualpipev (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  (void) spec;
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    struct writer w = start (row[rank], grid->n_micro);
    dual (&w, grid->n_ranks, rank);
  }
}
