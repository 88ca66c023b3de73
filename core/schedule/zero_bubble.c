/* Schedules that split the backward: the input gradient runs first, because the previous stage
 * waits for it; the weight gradient runs when the rank would otherwise be idle.
 *
 * ZB-H1 and ZB-H2: Qi et al. 2023, "Zero Bubble Pipeline Parallelism". ZB-V: the same paper. V-Half
 * and V-Min: Qi et al. 2024, "Pipeline Parallelism with Controllable Memory". DualPipe: DeepSeek-AI
 * 2024, "DeepSeek-V3 Technical Report"; DualPipeV is one half of it, folded. */
#include "core/schedule/order.h"

/* Writes the cells of one rank from a pattern. A pattern consists of F, I, B and the letter of a
 * chunk: "Fa" is the next forward of chunk a, "Fa&Bb" a forward and a backward that run together,
 * "w" the oldest weight gradient that waits. Cells beyond the last microbatch are left out. */
struct writer {
  GArray *row;
  uint32_t n_micro;           /* number of microbatches that run on a chunk */
  /* for each chunk (0: a, 1: b): its number, and its first microbatch */
  uint32_t chunk[2], base[2];
  uint32_t n_forward[2], n_backward[2];
  GQueue waiting; /* weight gradients that wait: microbatch * 2 + chunk (0: a, 1: b) */
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

/* Writes the cells of a rank in 1F1B order with split backward: `warm` warm-up forwards, and at
 * most `most` weight gradients that wait. */
static void
zero_bubble (struct writer *w, uint32_t warm, uint32_t most)
{
  repeat (w, MIN (warm, w->n_micro), "Fa");
  repeat (w, MIN (most, w->n_micro), "FaIa");
  repeat (w, w->n_micro - MIN (most, w->n_micro), "FaIaw");
  repeat (w, g_queue_get_length (&w->waiting), "w");
}

/* Fills the rows of all ranks. The number of warm-up forwards of a rank is `ahead` times the number
 * of later ranks: `ahead` is 1, as in 1F1B, or 2. */
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

static void
put_found (const struct weft_v_spec *spec, GArray **row)
{
  g_autoptr (weft_grid) found = weft_search_v (spec);

  for (uint32_t rank = 0; rank < spec->n_ranks; rank++)
    g_array_append_vals (row[rank], found->cell[rank], found->n_cell[rank]);
}

/* Lower bound of the idle slots of a rank in a V-shaped schedule, for p ranks and m microbatches.
 * Before its first backward, a rank waits for the forward of microbatch 0 through chunk 0 of all
 * ranks, for its forward through chunk 1 in the opposite order, and for its backward through chunk
 * 1 of the previous ranks. After its last backward, a rank waits for the backward through chunk 0
 * of the previous ranks. */
static uint32_t
least_idle (uint32_t p, uint32_t m)
{
  uint32_t full = p - 1, few = 3 * p - 1 > 2 * m ? 3 * p - 1 - 2 * m : 0,
           fewest = 4 * p - 1 > 4 * m ? 4 * p - 1 - 4 * m : 0;

  return MAX (full, MAX (few, fewest));
}

/* A microbatch passes down the ranks through chunks a and up through chunks b. A rank warms up with
 * forwards on chunk a until microbatch 0 returns on chunk b, then with forwards on both chunks
 * until the first gradient arrives. After the warm-up, every six slots contain the whole work of
 * one microbatch on both chunks. If there are too few microbatches for this pattern, a search finds
 * a shorter order. */
void
weft_order_zb_v (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t p = grid->n_ranks, n_micro = grid->n_micro;

  (void) spec;
  if (3 * n_micro < 5 * p) {
    put_found (
        &(struct weft_v_spec){
            .n_ranks = p, .n_micro = n_micro, .most = 2 * p, .enough = least_idle (p, n_micro) },
        row);
    return;
  }
  for (uint32_t rank = 0; rank < p; rank++) {
    struct writer w = start (row[rank], n_micro);
    repeat (&w, 2 * (p - rank) - 1, "Fa");
    repeat (&w, rank, "FbFa");
    repeat (&w, p - rank, "FbIbw");
    repeat (&w, MAX (n_micro, 2 * p - 1) - p, "FaIawFbIbw");
    repeat (&w, rank, "IaIb");
    repeat (&w, p - rank, "Iaw");
    repeat (&w, g_queue_get_length (&w.waiting), "w");
  }
}

/* V-Half: a rank keeps half as many activations as with 1F1B. A strictly periodic order with this
 * memory has 7/12 of the bubble of 1F1B; the order that weft_search_v() finds has half of the
 * bubble. With an even number of ranks, the forwards of chunk a and those of chunk b need the same
 * slots, so the search then adds one rank. */
void
weft_order_v_half (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t p = grid->n_ranks, n_micro = grid->n_micro, odd = p | 1, most = odd + 2;

  (void) spec;
  put_found (&(struct weft_v_spec){ .n_ranks = p,
                                    .n_micro = n_micro,
                                    .most = most,
                                    .enough = MAX (3 * p - 1, least_idle (p, n_micro)),
                                    .n_more = 2 * n_micro > most ? odd - p : 0 },
             row);
}

/* In a periodic order a microbatch begins every PERIOD slots. `first` contains the slots of
 * microbatch 0 on a rank for its four passes Fa, Fb, Ib and Ia; weight gradients use the remaining
 * slots. The slots of the passes determine how long an activation is kept, and therefore how many
 * activations a rank keeps. */
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

/* V-Min: a microbatch passes from rank to rank without delay, so that activations are kept as short
 * as possible. If the number of ranks p is a multiple of 3, two passes would need the same slot. A
 * microbatch then waits two slots on rank p - 1 between Fa and Fb, and two slots between Ib and
 * Ia. */
void
weft_order_v_min (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t p = grid->n_ranks, wait = p % 3 ? 0 : 2;

  (void) spec;
  for (uint32_t r = 0; r < p; r++) {
    uint32_t up = 2 * p - 1 - r + wait, down = 2 * p + r + wait, back = 4 * p - 1 - r + 2 * wait;
    put_by_slot (row[r], grid->n_micro, (const uint32_t[]){ r, up, down, back });
  }
}

/* ------------------------------------------------------------------ from both ends */

/* Writes the cells of a rank of DualPipe. `depth`: number of ranks between an end of the pipeline
 * and its middle; `near`: number of these ranks that are closer to the end than this rank. Chunk a
 * runs the microbatches that enter the pipeline at this end, chunk b those that enter at the other
 * end. */
static void
dual (struct writer *w, uint32_t depth, uint32_t near)
{
  uint32_t far = depth - 1 - near, both = w->n_micro - 2 * depth + near + 1;

  repeat (w, 2 * far, "Fa");
  repeat (w, near + 1, "FaFb");
  repeat (w, far, "IbwFb");
  /* the middle rank has no backward that could overlap with the first forward */
  repeat (w, far == 0, "FaBbFb&Ba");
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
