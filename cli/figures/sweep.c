#include "cli/figures/figures.h"
#include <math.h>

static const struct weft_variants_list *
list_at (const weft_variants *x, unsigned i)
{
  return x->list->pdata[i];
}

/* The values of one line: "pp 2, mbs 4"; NULL if there is only one list. The caller frees it. */
static char *
name_of (const weft_variants *x, uint32_t line)
{
  g_autoptr (GString) name = g_string_new (NULL);

  for (unsigned i = 1; i < x->list->len; i++)
    g_string_append_printf (name, "%s%s %s", i > 1 ? ", " : "", list_at (x, i)->name,
                            weft_variants_value (x, line, i));
  return name->len ? g_string_free (g_steal_pointer (&name), FALSE) : NULL;
}

weft_figure *
weft_cli_figure_sweep (const weft_variants *x)
{
  const struct weft_variants_list *first = list_at (x, 0);
  weft_figure *figure = weft_figure_new ("Tokens per second of a job with several settings");
  struct weft_panel *panel = weft_figure_panel (figure, NULL);
  uint32_t n_lines = x->n / first->n;

  panel->width = 520;
  panel->height = 340;
  panel->y.low = 0;
  weft_chart_axis_name (&panel->x, first->name, "");
  weft_chart_axis_name (&panel->y, "tokens/s", "");
  for (uint32_t value = 0; value < first->n; value++)
    weft_chart_axis_word (&panel->x, first->value[value], 1);
  for (uint32_t line = 0; line < n_lines; line++) {
    g_autofree char *name = name_of (x, line);
    struct weft_series *series = weft_panel_series (panel, WEFT_SHAPE_POINTS, name);
    series->line = TRUE;
    for (uint32_t value = 0; value < first->n; value++) {
      const struct weft_summary *cell = &x->cell[value * n_lines + line];
      if (weft_summary_has_numbers (cell))
        weft_series_add (series, (struct weft_item){ .x = value,
                                                     .y = cell->tokens_per_s,
                                                     .hollow = cell->fate != WEFT_SUMMARY_OK });
      if (cell->fate == WEFT_SUMMARY_TOO_LARGE && !panel->title)
        panel->title = g_strdup ("a hollow marker does not fit in memory");
    }
  }
  return figure;
}
