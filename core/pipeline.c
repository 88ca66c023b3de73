#include "core/pipeline.h"
#include "core/error.h"
#include <string.h>

/* What a stage owes each microbatch, once; a full backward pays both gradient parts. */
enum part { PART_FORWARD, PART_INPUT_GRAD, PART_WEIGHT_GRAD, N_PART };

/* What a phase pays and how pictures show it; a phase that pays nothing cannot be a cell. */
struct look {
  uint8_t parts; /* bits of enum part */
  char glyph;    /* of microbatch 0 */
  const char *colour, *name;
};

/* Colours hold dark text and stand out from white and from black. */
static const struct look looks[WEFT_N_PHASE] = {
  [WEFT_PHASE_FORWARD] = { 1 << PART_FORWARD, '0', "#6ea8dc", "forward" },
  [WEFT_PHASE_BACKWARD] = { 1 << PART_INPUT_GRAD | 1 << PART_WEIGHT_GRAD, 'a', "#e59a4f",
                            "backward" },
  [WEFT_PHASE_INPUT_GRAD] = { 1 << PART_INPUT_GRAD, 'a', "#d9b93f", "input gradient" },
  [WEFT_PHASE_WEIGHT_GRAD] = { 1 << PART_WEIGHT_GRAD, 'A', "#74bf8a", "weight gradient" },
};

struct event {
  uint32_t part, stage, micro;
};

static void
put (GArray *cells, enum weft_phase phase, uint32_t micro)
{
  struct weft_cell cell = { .phase = phase, .micro = micro };

  g_array_append_val (cells, cell);
}

/* `warm` forwards, then one forward and one backward in turn, then the backwards that remain. */
static void
alternate (GArray *cells, uint32_t warm, uint32_t n_micro)
{
  for (uint32_t i = 0; i < warm; i++)
    put (cells, WEFT_PHASE_FORWARD, i);
  for (uint32_t i = 0; i < n_micro; i++) {
    if (warm + i < n_micro)
      put (cells, WEFT_PHASE_FORWARD, warm + i);
    put (cells, WEFT_PHASE_BACKWARD, i);
  }
}

static void
fill_gpipe (const weft_grid *grid, uint32_t rank, GArray *cells)
{
  (void) rank;
  alternate (cells, grid->n_micro, grid->n_micro);
}

/* A rank warms up until its first forward has come back as a gradient. */
static void
fill_1f1b (const weft_grid *grid, uint32_t rank, GArray *cells)
{
  alternate (cells, MIN (grid->n_ranks - 1 - rank, grid->n_micro), grid->n_micro);
}

/* A schedule: appends the cells of one rank in order. */
static void (*const fill[]) (const weft_grid *grid, uint32_t rank, GArray *cells) = {
  [WEFT_SCHEDULE_1F1B] = fill_1f1b,
  [WEFT_SCHEDULE_GPIPE] = fill_gpipe,
};

weft_grid *
weft_grid_new (enum weft_schedule schedule, uint32_t n_ranks, uint32_t n_micro)
{
  weft_grid *grid = g_new (weft_grid, 1);

  g_assert (n_ranks > 0 && n_micro > 0 && n_micro <= UINT16_MAX);
  *grid = (weft_grid){ .n_ranks = n_ranks, .n_chunks = 1, .n_micro = n_micro };
  grid->n_cell = g_new (uint32_t, n_ranks);
  grid->cell = g_new (struct weft_cell *, n_ranks);
  for (uint32_t rank = 0; rank < n_ranks; rank++) {
    GArray *cells = g_array_new (FALSE, FALSE, sizeof (struct weft_cell));
    fill[schedule](grid, rank, cells);
    grid->n_cell[rank] = cells->len;
    grid->cell[rank] = (struct weft_cell *) (void *) g_array_free (cells, FALSE);
  }
  return grid;
}

void
weft_grid_free (weft_grid *grid)
{
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    g_free (grid->cell[rank]);
  g_free (grid->cell);
  g_free (grid->n_cell);
  g_free (grid);
}

static uint32_t
n_stages (const weft_grid *grid)
{
  return grid->n_ranks * grid->n_chunks;
}

static uint32_t
cell_stage (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell)
{
  return cell->chunk * grid->n_ranks + rank;
}

static gboolean
cell_pays (const struct weft_cell *cell, enum part part)
{
  return looks[cell->phase].parts >> part & 1;
}

char *
weft_cell_print (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell)
{
  return g_strdup_printf ("%u%s%u", cell_stage (grid, rank, cell), weft_phase_words[cell->phase],
                          cell->micro);
}

char *
weft_grid_csv (const weft_grid *grid)
{
  GString *text = g_string_new (NULL);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
      g_autofree char *cell = weft_cell_print (grid, rank, &grid->cell[rank][i]);
      g_string_append_printf (text, "%s%s", i ? "," : "", cell);
    }
    g_string_append_c (text, '\n');
  }
  return g_string_free (text, FALSE);
}

uint32_t
weft_grid_in_flight (const weft_grid *grid, uint32_t rank)
{
  uint32_t now = 0, most = 0;

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    const struct weft_cell *cell = &grid->cell[rank][i];
    now += cell_pays (cell, PART_FORWARD);
    now -= cell_pays (cell, PART_WEIGHT_GRAD);
    most = MAX (most, now);
  }
  return (most + grid->n_chunks - 1) / grid->n_chunks;
}

/* Replay: every rank runs its cells in order, each as soon as what it needs has ended. */

struct replay {
  const weft_grid *grid;
  double forward, backward;
  double **start; /* or NULL */
  double *end;    /* by event; negative: not yet */
  double *clock;  /* by rank: when its last cell ended */
  uint32_t *next; /* by rank: its cell that is to run */
};

static size_t
event_index (const weft_grid *grid, struct event e)
{
  return ((size_t) e.stage * grid->n_micro + e.micro) * N_PART + e.part;
}

/* What must end before the cell may start: at most two events. */
static uint32_t
needs (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell, struct event need[2])
{
  uint32_t n = 0, stage = cell_stage (grid, rank, cell), micro = cell->micro;

  if (cell_pays (cell, PART_INPUT_GRAD)) {
    need[n++] = (struct event){ PART_FORWARD, stage, micro };
    if (stage + 1 < n_stages (grid))
      need[n++] = (struct event){ PART_INPUT_GRAD, stage + 1, micro };
  } else if (cell_pays (cell, PART_WEIGHT_GRAD)) {
    need[n++] = (struct event){ PART_INPUT_GRAD, stage, micro };
  } else if (stage > 0) {
    need[n++] = (struct event){ PART_FORWARD, stage - 1, micro };
  }
  return n;
}

static double
duration (const struct replay *r, const struct weft_cell *cell)
{
  if (cell_pays (cell, PART_FORWARD))
    return r->forward;
  return cell->phase == WEFT_PHASE_BACKWARD ? r->backward : r->backward / 2;
}

static gboolean
run_cell (struct replay *r, uint32_t rank)
{
  const struct weft_cell *cell = &r->grid->cell[rank][r->next[rank]];
  uint32_t stage = cell_stage (r->grid, rank, cell);
  double start = r->clock[rank];
  struct event need[2];

  for (uint32_t n = needs (r->grid, rank, cell, need); n-- > 0;) {
    double end = r->end[event_index (r->grid, need[n])];
    if (end < 0)
      return FALSE;
    start = MAX (start, end);
  }
  if (r->start)
    r->start[rank][r->next[rank]] = start;
  r->clock[rank] = start + duration (r, cell);
  for (uint32_t part = 0; part < N_PART; part++)
    if (cell_pays (cell, part))
      r->end[event_index (r->grid, (struct event){ part, stage, cell->micro })] = r->clock[rank];
  return TRUE;
}

/* Runs a rank until it must wait; whether it moved at all. */
static gboolean
run_rank (struct replay *r, uint32_t rank)
{
  uint32_t from = r->next[rank];

  while (r->next[rank] < r->grid->n_cell[rank] && run_cell (r, rank))
    r->next[rank]++;
  return r->next[rank] > from;
}

/* Stages wait only for the stage before and after, so a rank that moved can free only its two
 * neighbours on the ring: the work is linear in the number of cells. */
static void
run (struct replay *r)
{
  uint32_t n = r->grid->n_ranks, head = 0, waiting = n;
  g_autofree uint32_t *queue = g_new (uint32_t, n);
  g_autofree gboolean *queued = g_new (gboolean, n);

  for (uint32_t rank = 0; rank < n; rank++) {
    queue[rank] = rank;
    queued[rank] = TRUE;
  }
  while (waiting) {
    uint32_t rank = queue[head], neighbour[] = { (rank + 1) % n, (rank + n - 1) % n };
    head = (head + 1) % n;
    waiting--;
    queued[rank] = FALSE;
    if (!run_rank (r, rank))
      continue;
    for (uint32_t i = 0; i < G_N_ELEMENTS (neighbour); i++)
      if (!queued[neighbour[i]]) {
        queue[(head + waiting++) % n] = neighbour[i];
        queued[neighbour[i]] = TRUE;
      }
  }
}

static void
replay_init (struct replay *r, const weft_grid *grid)
{
  size_t n_events = (size_t) N_PART * n_stages (grid) * grid->n_micro;

  r->grid = grid;
  r->end = g_new (double, n_events);
  for (size_t i = 0; i < n_events; i++)
    r->end[i] = -1;
  r->clock = g_new0 (double, grid->n_ranks);
  r->next = g_new0 (uint32_t, grid->n_ranks);
}

static void
replay_clear (struct replay *r)
{
  g_free (r->end);
  g_free (r->clock);
  g_free (r->next);
}

double
weft_grid_replay (const weft_grid *grid, double forward, double backward, double **start)
{
  struct replay r = { .forward = forward, .backward = backward, .start = start };
  double makespan = 0;

  replay_init (&r, grid);
  run (&r);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    makespan = MAX (makespan, r.clock[rank]);
  replay_clear (&r);
  return makespan;
}

/* Check: every part once, then a replay that leaves nobody waiting. */

static gboolean
count_parts (const weft_grid *grid, uint32_t rank, uint8_t *paid, GError **error)
{
  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    const struct weft_cell *cell = &grid->cell[rank][i];
    if (cell->phase >= WEFT_N_PHASE || !looks[cell->phase].parts)
      return weft_bad_input (error, "cell %u of rank %u is neither F, B, I nor W", i, rank);
    g_autofree char *text = weft_cell_print (grid, rank, cell);
    if (cell->chunk >= grid->n_chunks || cell->micro >= grid->n_micro)
      return weft_bad_input (error, "rank %u runs %s, wanted %u stages and %u microbatches, from 0",
                             rank, text, n_stages (grid), grid->n_micro);
    for (uint32_t part = 0; part < N_PART; part++) {
      struct event e = { part, cell_stage (grid, rank, cell), cell->micro };
      if (cell_pays (cell, part) && paid[event_index (grid, e)]++)
        return weft_bad_input (error, "rank %u does %s twice, wanted once", rank, text);
    }
  }
  return TRUE;
}

static gboolean
check_paid (const weft_grid *grid, struct event e, const uint8_t *paid, GError **error)
{
  gboolean has[N_PART];
  enum weft_phase lost = WEFT_PHASE_FORWARD;

  for (e.part = 0; e.part < N_PART; e.part++)
    has[e.part] = paid[event_index (grid, e)];
  if (has[PART_FORWARD] && has[PART_INPUT_GRAD] && has[PART_WEIGHT_GRAD])
    return TRUE;
  if (has[PART_FORWARD])
    lost = has[PART_INPUT_GRAD]    ? WEFT_PHASE_WEIGHT_GRAD
           : has[PART_WEIGHT_GRAD] ? WEFT_PHASE_INPUT_GRAD
                                   : WEFT_PHASE_BACKWARD;
  return weft_bad_input (error, "%u%s%u is missing, wanted once on rank %u", e.stage,
                         weft_phase_words[lost], e.micro, e.stage % grid->n_ranks);
}

static gboolean
check_once (const weft_grid *grid, GError **error)
{
  g_autofree uint8_t *paid = g_new0 (uint8_t, (size_t) N_PART * n_stages (grid) * grid->n_micro);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    if (!count_parts (grid, rank, paid, error))
      return FALSE;
  for (uint32_t stage = 0; stage < n_stages (grid); stage++)
    for (uint32_t micro = 0; micro < grid->n_micro; micro++)
      if (!check_paid (grid, (struct event){ 0, stage, micro }, paid, error))
        return FALSE;
  return TRUE;
}

/* The event for which a stuck rank waits; FALSE when the rank is done. */
static gboolean
waits_for (const struct replay *r, uint32_t rank, struct event *event)
{
  struct event need[2];

  if (r->next[rank] == r->grid->n_cell[rank])
    return FALSE;
  uint32_t n = needs (r->grid, rank, &r->grid->cell[rank][r->next[rank]], need);
  while (n-- > 0)
    if (r->end[event_index (r->grid, need[n])] < 0)
      *event = need[n];
  return TRUE;
}

static const struct weft_cell *
event_cell (const weft_grid *grid, struct event e)
{
  uint32_t rank = e.stage % grid->n_ranks;
  const struct weft_cell *cell = grid->cell[rank];

  while (cell->micro != e.micro || cell_stage (grid, rank, cell) != e.stage ||
         !cell_pays (cell, e.part))
    cell++;
  return cell;
}

/* Names one wait of the circle that a stuck rank's waits lead into.  Needs alone form no circle, so
 * some rank of it has another cell to run before the one that is wanted. */
static gboolean
blame (const struct replay *r, uint32_t rank, GError **error)
{
  const weft_grid *grid = r->grid;
  const struct weft_cell *wanted = NULL, *before = NULL;
  uint32_t owner = rank;
  struct event e = { 0 };

  for (uint32_t hop = 0; hop < grid->n_ranks || wanted == before; hop++) {
    rank = owner;
    waits_for (r, rank, &e);
    owner = e.stage % grid->n_ranks;
    wanted = event_cell (grid, e);
    before = &grid->cell[owner][r->next[owner]];
  }
  g_autofree char *waiter = weft_cell_print (grid, rank, &grid->cell[rank][r->next[rank]]);
  g_autofree char *text = weft_cell_print (grid, owner, wanted);
  g_autofree char *blocker = weft_cell_print (grid, owner, before);
  return weft_bad_input (error, "%s never starts: it waits for %s, which rank %u runs after %s",
                         waiter, text, owner, blocker);
}

gboolean
weft_grid_check (const weft_grid *grid, GError **error)
{
  struct replay r = { .forward = 1, .backward = 1 };
  struct event e;
  gboolean good = TRUE;

  if (!check_once (grid, error))
    return FALSE;
  replay_init (&r, grid);
  run (&r);
  for (uint32_t rank = 0; rank < grid->n_ranks && good; rank++)
    if (waits_for (&r, rank, &e))
      good = blame (&r, rank, error);
  replay_clear (&r);
  return good;
}

/* Pictures: a forward is one slot and a whole backward two, so every time is a whole number. */

struct picture {
  const weft_grid *grid;
  double **start;
  double makespan;
};

static void
picture_init (struct picture *p, const weft_grid *grid)
{
  p->grid = grid;
  p->start = g_new (double *, grid->n_ranks);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    p->start[rank] = g_new (double, grid->n_cell[rank]);
  p->makespan = weft_grid_replay (grid, 1, 2, p->start);
}

static void
picture_clear (struct picture *p)
{
  for (uint32_t rank = 0; rank < p->grid->n_ranks; rank++)
    g_free (p->start[rank]);
  g_free (p->start);
}

static uint32_t
cell_slots (const struct weft_cell *cell)
{
  return cell->phase == WEFT_PHASE_BACKWARD ? 2 : 1;
}

static void
draw_row (const struct picture *p, uint32_t rank, uint32_t n_columns, GString *text)
{
  const struct weft_cell *cell = p->grid->cell[rank];
  const double *start = p->start[rank];
  uint32_t i = 0, n = p->grid->n_cell[rank];

  for (uint32_t column = 0; column < n_columns; column++) {
    double now = (column + 0.5) * p->makespan / n_columns;
    while (i < n && start[i] + cell_slots (&cell[i]) <= now)
      i++;
    gboolean busy = i < n && start[i] <= now;
    g_string_append_c (text, busy ? looks[cell[i].phase].glyph + cell[i].micro % 10 : '.');
  }
  g_string_append_c (text, '\n');
}

char *
weft_grid_ascii (const weft_grid *grid, uint32_t width)
{
  g_autofree char *last = g_strdup_printf ("%u ", grid->n_ranks - 1);
  uint32_t label = strlen (last), room = width > label ? width - label : 1;
  GString *text = g_string_new (NULL);
  struct picture p;

  picture_init (&p, grid);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    g_string_append_printf (text, "%*u ", (int) label - 1, rank);
    draw_row (&p, rank, MIN (room, (uint32_t) p.makespan), text);
  }
  picture_clear (&p);
  return g_string_free (text, FALSE);
}

/* SVG units, read as pixels at natural size. */
enum { LEFT = 56, TOP = 8, ROW = 26, BAR = 22, WIDEST = 1600, DIGIT = 7, KEY = 140 };

struct drawing {
  struct picture picture;
  uint32_t slot; /* width of one */
  GString *text;
};

static void
svg_bar (const struct drawing *d, uint32_t rank, uint32_t i)
{
  uint32_t width = cell_slots (&d->picture.grid->cell[rank][i]) * d->slot;
  uint32_t x = LEFT + (uint32_t) d->picture.start[rank][i] * d->slot;

  g_string_append_printf (d->text, "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%d\"/>\n", x,
                          TOP + rank * ROW, width - (d->slot > 2), BAR);
}

static void
svg_number (const struct drawing *d, uint32_t rank, uint32_t i)
{
  const struct weft_cell *cell = &d->picture.grid->cell[rank][i];
  uint32_t width = cell_slots (cell) * d->slot;
  uint32_t x = LEFT + (uint32_t) d->picture.start[rank][i] * d->slot + width / 2;
  g_autofree char *number = g_strdup_printf ("%u", cell->micro);

  if (strlen (number) * DIGIT < width)
    g_string_append_printf (d->text, "<text x=\"%u\" y=\"%u\">%s</text>\n", x,
                            TOP + rank * ROW + 15, number);
}

typedef void draw_cell (const struct drawing *d, uint32_t rank, uint32_t i);

/* Draws the cells of one phase, or of all (-1). */
static void
svg_cells (const struct drawing *d, int phase, draw_cell *draw)
{
  const weft_grid *grid = d->picture.grid;

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++)
      if (phase < 0 || grid->cell[rank][i].phase == phase)
        draw (d, rank, i);
}

static gboolean
grid_has (const weft_grid *grid, uint8_t phase)
{
  for (uint32_t i = 0; i < grid->n_cell[0]; i++)
    if (grid->cell[0][i].phase == phase)
      return TRUE;
  return FALSE;
}

/* The bars of each phase that the grid has, and its line in the key below. */
static void
svg_phases (const struct drawing *d)
{
  const weft_grid *grid = d->picture.grid;
  uint32_t x = LEFT, y = TOP + grid->n_ranks * ROW + 4;

  for (int phase = 0; phase < WEFT_N_PHASE; phase++) {
    if (!looks[phase].parts || !grid_has (grid, phase))
      continue;
    g_string_append_printf (d->text, "<g fill=\"%s\">\n", looks[phase].colour);
    svg_cells (d, phase, svg_bar);
    g_string_append_printf (d->text,
                            "<rect x=\"%u\" y=\"%u\" width=\"12\" height=\"12\"/></g>\n"
                            "<text x=\"%u\" y=\"%u\" fill=\"#777\">%s</text>\n",
                            x, y, x + 18, y + 11, looks[phase].name);
    x += KEY;
  }
}

/* The lane of each rank: its name, and a bar that shows through where it is idle. */
static void
svg_lanes (const struct drawing *d)
{
  for (uint32_t rank = 0; rank < d->picture.grid->n_ranks; rank++) {
    uint32_t y = TOP + rank * ROW;
    g_string_append_printf (d->text,
                            "<text x=\"4\" y=\"%u\" fill=\"#777\">rank %u</text>\n"
                            "<rect x=\"%d\" y=\"%u\" width=\"%u\" height=\"%d\" fill=\"#888\" "
                            "fill-opacity=\"0.15\"/>\n",
                            y + 15, rank, LEFT, y, (uint32_t) d->picture.makespan * d->slot, BAR);
  }
}

static void
svg_head (const struct drawing *d)
{
  const weft_grid *grid = d->picture.grid;
  uint32_t slots = d->picture.makespan, height = 2 * TOP + grid->n_ranks * ROW + 18;
  uint32_t width = LEFT + MAX (slots * d->slot, 4 * KEY) + TOP;

  g_string_append_printf (d->text,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
                          "viewBox=\"0 0 %u %u\" font-family=\"sans-serif\" font-size=\"12\">\n",
                          width, height, width, height);
  g_string_append_printf (d->text,
                          "<title>Pipeline schedule: %u ranks, %u stages, %u microbatches, %u slots"
                          "</title>\n",
                          grid->n_ranks, n_stages (grid), grid->n_micro, slots);
}

char *
weft_grid_svg (const weft_grid *grid)
{
  struct drawing d = { .text = g_string_new (NULL) };

  picture_init (&d.picture, grid);
  d.slot = CLAMP (WIDEST / (uint32_t) d.picture.makespan, 2, 20);
  svg_head (&d);
  svg_lanes (&d);
  svg_phases (&d);
  g_string_append (d.text, "<g fill=\"#111\" text-anchor=\"middle\">\n");
  svg_cells (&d, -1, svg_number);
  g_string_append (d.text, "</g>\n</svg>\n");
  picture_clear (&d.picture);
  return g_string_free (d.text, FALSE);
}
