/* Pictures of grids. In a picture, a forward of a chunk takes one slot and a full backward takes
 * two, so all times are whole numbers. The cells of a pair are drawn one after the other. */
#include "core/schedule/order.h"
#include <string.h>

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
  p->makespan = weft_grid_replay (grid, (struct weft_cell_times){ 1, 1, 1 }, p->start);
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

static char
cell_glyph (const struct weft_cell *cell)
{
  return weft_cell_kinds[cell->phase].glyph + cell->micro % 10;
}

/* Draws the row of one chunk of a rank. The row is blank while the rank runs another chunk. */
static void
draw_row (const struct picture *p, uint32_t place, uint32_t n_columns, GString *text)
{
  uint32_t rank = place / p->grid->n_chunks, i = 0, n = p->grid->n_cell[rank];
  const struct weft_cell *cell = p->grid->cell[rank];
  const double *start = p->start[rank];

  for (uint32_t column = 0; column < n_columns; column++) {
    double now = (column + 0.5) * p->makespan / n_columns;
    while (i < n && start[i] + cell_slots (&cell[i]) <= now)
      i++;
    char glyph = i == n || start[i] > now                     ? '.'
                 : cell[i].chunk != place % p->grid->n_chunks ? ' '
                                                              : cell_glyph (&cell[i]);
    g_string_append_c (text, glyph);
  }
  g_string_append_c (text, '\n');
}

static uint32_t
n_digits (uint32_t n)
{
  return n > 9 ? 1 + n_digits (n / 10) : 1;
}

/* Draws the label of a row: "RANK ", or "RANK:STAGE " if a rank has several stages. */
static void
draw_label (const weft_grid *grid, uint32_t place, GString *text)
{
  g_string_append_printf (text, "%*u", n_digits (grid->n_ranks - 1), place / grid->n_chunks);
  if (grid->n_chunks > 1)
    g_string_append_printf (text, ":%-*u", n_digits (grid->n_stages - 1), grid->stage[place]);
  g_string_append_c (text, ' ');
}

static uint32_t
label_width (const weft_grid *grid)
{
  return n_digits (grid->n_ranks - 1) + 1 +
         (grid->n_chunks > 1 ? 1 + n_digits (grid->n_stages - 1) : 0);
}

char *
weft_grid_ascii (const weft_grid *grid, uint32_t width)
{
  uint32_t label = label_width (grid), room = width > label ? width - label : 1;
  GString *text = g_string_new (NULL);
  struct picture p;

  picture_init (&p, grid);
  for (uint32_t place = 0; place < weft_grid_places (grid); place++) {
    draw_label (grid, place, text);
    draw_row (&p, place, MIN (room, (uint32_t) p.makespan), text);
  }
  picture_clear (&p);
  return g_string_free (text, FALSE);
}

/* Lengths in SVG units, which are pixels at the picture's natural size. */
enum {
  LEFT = 56,
  TOP = 8,
  ROW = 26,
  BAR = 22,
  WIDEST = 1600,
  DIGIT = 7,
  KEY = 140,
  N_KEY = 5,
  PALEST = 55
};

struct drawing {
  struct picture picture;
  uint32_t slot; /* width of one slot in the picture */
  GString *text;
};

/* Mixes a colour "#rrggbb" with white, which keeps dark text readable. */
static uint32_t
paler (const char *colour, uint32_t percent)
{
  uint32_t mixed = 0, value = g_ascii_strtoull (colour + 1, NULL, 16);

  for (int shift = 16; shift >= 0; shift -= 8) {
    uint32_t part = value >> shift & 0xff;
    mixed |= (part + (0xff - part) * percent / 100) << shift;
  }
  return mixed;
}

/* Draws the bar of a cell. Bars of later chunks are paler, with up to PALEST percent of white. */
static void
svg_bar (const struct drawing *d, uint32_t rank, uint32_t i)
{
  const struct weft_cell *cell = &d->picture.grid->cell[rank][i];
  uint32_t width = cell_slots (cell) * d->slot, last = d->picture.grid->n_chunks - 1;
  uint32_t x = LEFT + (uint32_t) d->picture.start[rank][i] * d->slot;

  g_string_append_printf (d->text, "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%d\"", x,
                          TOP + rank * ROW, width - (d->slot > 2), BAR);
  if (cell->chunk)
    g_string_append_printf (
        d->text, " fill=\"#%06x\"",
        paler (weft_phase_looks[cell->phase].colour, PALEST * cell->chunk / last));
  g_string_append (d->text, "/>\n");
}

/* Draws a line under the two cells of a pair. */
static void
svg_pair (const struct drawing *d, uint32_t rank, uint32_t i)
{
  const struct weft_cell *cell = &d->picture.grid->cell[rank][i];
  const double *start = &d->picture.start[rank][i];

  if (cell->paired)
    g_string_append_printf (d->text, "<path d=\"M%u %u H%u\"/>\n",
                            LEFT + (uint32_t) start[0] * d->slot + 1, TOP + rank * ROW + BAR + 1,
                            LEFT + ((uint32_t) start[1] + cell_slots (&cell[1])) * d->slot - 2);
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

/* Draws the cells of one phase; phase -1: of all phases. */
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

/* Draws the bars of each phase, and explains the colour of each phase below the grid. */
static void
svg_phases (const struct drawing *d)
{
  const weft_grid *grid = d->picture.grid;
  uint32_t x = LEFT, y = TOP + grid->n_ranks * ROW + 4;

  for (int phase = 0; phase < WEFT_N_PHASE; phase++) {
    if (!weft_cell_kinds[phase].works || !grid_has (grid, phase))
      continue;
    g_string_append_printf (d->text, "<g fill=\"%s\">\n", weft_phase_looks[phase].colour);
    svg_cells (d, phase, svg_bar);
    g_string_append_printf (d->text,
                            "<rect x=\"%u\" y=\"%u\" width=\"12\" height=\"12\"/></g>\n"
                            "<text x=\"%u\" y=\"%u\" fill=\"#777\">%s</text>\n",
                            x, y, x + 18, y + 11, weft_phase_looks[phase].legend);
    x += KEY;
  }
  if (grid->n_chunks > 1)
    g_string_append_printf (
        d->text, "<text x=\"%u\" y=\"%u\" fill=\"#777\">paler: later chunks</text>\n", x, y + 11);
}

/* Draws the label of each rank, and a grey bar behind its cells, which is visible while the rank is
 * idle. */
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
  uint32_t width = LEFT + MAX (slots * d->slot, N_KEY * KEY) + TOP;

  g_string_append_printf (d->text,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
                          "viewBox=\"0 0 %u %u\" font-family=\"sans-serif\" font-size=\"12\">\n",
                          width, height, width, height);
  g_string_append_printf (d->text,
                          "<title>Pipeline schedule: %u ranks, %u stages, %u microbatches, %u slots"
                          "</title>\n",
                          grid->n_ranks, grid->n_stages, grid->n_micro, slots);
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
  g_string_append (d.text, "<g stroke=\"#777\" stroke-width=\"2\">\n");
  svg_cells (&d, -1, svg_pair);
  g_string_append (d.text, "</g>\n<g fill=\"#111\" text-anchor=\"middle\">\n");
  svg_cells (&d, -1, svg_number);
  g_string_append (d.text, "</g>\n</svg>\n");
  picture_clear (&d.picture);
  return g_string_free (d.text, FALSE);
}
