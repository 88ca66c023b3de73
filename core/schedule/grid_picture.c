/* Pictures of grids as text. In a picture, a forward of a chunk takes one slot and a full backward
 * takes two, so all times are whole numbers. The cells of a pair are drawn one after the other. */
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
