#include "cli/sweep_page.h"
#include "cli/cli.h"
#include "cli/figures/figures.h"
#include "cli/html.h"
#include "cli/timeline_page.h"
#include "charts/looks.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* Instants of a timeline are whole numbers: parts of its step. */
#define INSTANTS 1e6

struct weft_cli_sweep_page {
  const weft_variants *x;
  char *folder;
};

static char *
path_of (const weft_cli_sweep_page *page, uint32_t cell)
{
  g_autofree char *name = g_strdup_printf ("%u.json", cell);

  return g_build_filename (page->folder, name, NULL);
}

weft_cli_sweep_page *
weft_cli_sweep_page_new (const weft_variants *x, GError **error)
{
  if (x->n > WEFT_CLI_SWEEP_MOST) {
    weft_bad_input (error, "--html: found %u combinations, wanted at most %d", x->n,
                    WEFT_CLI_SWEEP_MOST);
    return NULL;
  }
  g_autofree char *folder = g_dir_make_tmp ("weft-sweep-XXXXXX", error);
  if (!folder)
    return NULL;
  weft_cli_sweep_page *page = g_new0 (weft_cli_sweep_page, 1);
  page->x = x;
  page->folder = g_steal_pointer (&folder);
  return page;
}

void
weft_cli_sweep_page_free (weft_cli_sweep_page *page)
{
  for (uint32_t cell = 0; cell < page->x->n; cell++) {
    g_autofree char *path = path_of (page, cell);
    g_unlink (path);
  }
  g_rmdir (page->folder);
  g_free (page->folder);
  g_free (page);
}

/* ------------------------------------------------------------- one combination */

static void
add_box (JsonBuilder *b, const struct weft_item *box, double seconds)
{
  json_builder_add_int_value (b, (gint64) box->y);
  json_builder_add_int_value (b, (gint64) round (box->x / seconds * INSTANTS));
  json_builder_add_int_value (b, (gint64) round (box->x2 / seconds * INSTANTS));
  json_builder_add_int_value (b, box->text ? g_ascii_strtoll (box->text, NULL, 10) : -1);
}

/* Adds the rows and the boxes of the timeline: for each series of its figure a list of row, begin,
 * end and microbatch. */
static void
add_timeline (JsonBuilder *b, const weft_report *r)
{
  g_autoptr (weft_figure) figure = weft_cli_figure_timeline (r);
  const struct weft_panel *panel = figure->panel->pdata[0];
  guint n = 0;

  weft_json_array (b, "rows");
  for (guint i = 0; panel->y.word && i < panel->y.word->len; i++)
    json_builder_add_string_value (b, panel->y.word->pdata[i]);
  json_builder_end_array (b);
  for (guint i = 0; i < panel->series->len; i++)
    n += ((const struct weft_series *) panel->series->pdata[i])->item->len;
  weft_json_int (b, "n_boxes", n);
  if (n > WEFT_CLI_SWEEP_BOXES)
    return;
  weft_json_array (b, "boxes");
  for (guint i = 0; i < panel->series->len; i++) {
    const GArray *item = ((const struct weft_series *) panel->series->pdata[i])->item;
    json_builder_begin_array (b);
    for (guint k = 0; k < item->len; k++)
      add_box (b, &g_array_index (item, struct weft_item, k), r->timeline->seconds);
    json_builder_end_array (b);
  }
  json_builder_end_array (b);
}

static void
add_memory (JsonBuilder *b, const weft_report *r)
{
  weft_json_array (b, "memory");
  for (uint32_t role = 0; role < r->n_roles; role++) {
    json_builder_begin_array (b);
    for (int part = 0; part < WEFT_N_REPORT_PART; part++)
      json_builder_add_int_value (b, (gint64) weft_report_part_bytes (&r->role[role], part));
    json_builder_end_array (b);
  }
  json_builder_end_array (b);
}

void
weft_cli_sweep_page_see (void *user, uint32_t cell, const weft_report *r)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autofree char *path = path_of (user, cell);

  json_builder_begin_object (b);
  weft_json_int (b, "capacity", (gint64) r->capacity_bytes);
  weft_json_int (b, "ops", (gint64) r->timeline->n_ops);
  weft_json_array (b, "parts");
  json_builder_add_double_value (b, r->overlap.compute_s);
  json_builder_add_double_value (b, r->overlap.exposed_communication_s);
  json_builder_add_double_value (b, r->overlap.bubble_s);
  json_builder_end_array (b);
  add_memory (b, r);
  add_timeline (b, r);
  json_builder_end_object (b);
  g_autoptr (JsonNode) root = json_builder_get_root (b);
  g_autofree char *text = weft_json_print (root, FALSE);
  /* a file that is missing is noticed when it is read */
  g_file_set_contents (path, text, -1, NULL);
}

/* -------------------------------------------------------------------------- head */

static void
add_lists (JsonBuilder *b, const weft_variants *x)
{
  weft_json_array (b, "lists");
  for (guint i = 0; i < x->list->len; i++) {
    const struct weft_variants_list *list = x->list->pdata[i];
    json_builder_begin_object (b);
    weft_json_text (b, "name", list->name);
    weft_json_array (b, "values");
    for (unsigned v = 0; v < list->n; v++)
      json_builder_add_string_value (b, list->value[v]);
    json_builder_end_array (b);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

static void
add_look (JsonBuilder *b, const char *word, unsigned look)
{
  json_builder_begin_object (b);
  weft_json_text (b, "word", word);
  weft_json_text (b, "colour", weft_look_css (look));
  json_builder_end_object (b);
}

/* Adds the series of a timeline, in the order of weft_cli_figure_timeline(), and the parts of
 * memory. */
static void
add_looks (JsonBuilder *b)
{
  weft_json_array (b, "series");
  for (int i = 0; i < WEFT_N_PHASE; i++)
    add_look (b, weft_phase_looks[i].legend, weft_phase_looks[i].look);
  add_look (b, "transfers", WEFT_CLI_TRANSFER_LOOK);
  json_builder_end_array (b);
  weft_json_array (b, "kinds");
  for (int i = 0; i < WEFT_N_REPORT_PART; i++)
    add_look (b, weft_report_parts[i].word, weft_report_parts[i].look);
  json_builder_end_array (b);
}

static void
add_cells (JsonBuilder *b, const weft_variants *x)
{
  weft_json_array (b, "cells");
  for (uint32_t i = 0; i < x->n; i++) {
    const struct weft_summary *cell = &x->cell[i];
    json_builder_begin_object (b);
    weft_json_text (b, "fate", weft_summary_fate_words[cell->fate]);
    for (unsigned k = 0; k < WEFT_N_SUMMARY_NUMBER; k++)
      if (weft_summary_has_numbers (cell))
        weft_json_real (b, weft_summary_number_words[k], cell->number[k]);
    if (*cell->reason)
      weft_json_text (b, "reason", cell->reason);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

static void
append_head (GString *out, const weft_variants *x)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_real (b, "instants", INSTANTS);
  weft_json_int (b, "most_boxes", WEFT_CLI_SWEEP_BOXES);
  weft_json_int (b, "most_bytes", WEFT_CLI_SWEEP_BYTES);
  add_lists (b, x);
  add_looks (b);
  add_cells (b, x);
  json_builder_end_object (b);
  weft_cli_page_json (out, "weft-sweep-head", b);
}

/* -------------------------------------------------------------------------- page */

/* A slider with a label and its value; the script draws the profile below it. */
static void
append_slider (GString *out, const struct weft_variants_list *list, unsigned i)
{
  g_string_append_printf (out, "<div class=\"slider\"><label for=\"weft-knob-%u\">", i);
  weft_cli_html_text (out, list->name);
  g_string_append_printf (out,
                          "</label> <output for=\"weft-knob-%u\"></output>\n<input type=\"range\" "
                          "id=\"weft-knob-%u\" min=\"0\" max=\"%u\" step=\"1\" value=\"0\">"
                          "<div class=\"profile\" aria-hidden=\"true\"></div></div>\n",
                          i, i, list->n - 1);
}

/* Appends the kept data of all combinations, as far as they fit. */
static gboolean
append_details (GString *out, const weft_cli_sweep_page *page, GError **error)
{
  g_autoptr (GString) all = g_string_new ("[");

  for (uint32_t cell = 0; cell < page->x->n; cell++) {
    g_autofree char *path = path_of (page, cell), *text = NULL;
    g_string_append (all, cell ? "," : "");
    if (!weft_summary_has_numbers (&page->x->cell[cell])) {
      g_string_append (all, "null");
      continue;
    }
    if (!g_file_get_contents (path, &text, NULL, error))
      return FALSE;
    char *boxes = all->len + strlen (text) > WEFT_CLI_SWEEP_BYTES ? strstr (text, ",\"boxes\":")
                                                                   : NULL;
    if (boxes)
      strcpy (boxes, "}");
    g_string_append (all, text);
  }
  g_string_append_c (all, ']');
  weft_cli_page_data (out, "weft-sweep-data", all->str, all->len);
  return TRUE;
}

static void
append_number (GString *out, double value, const char *unit)
{
  g_autofree char *text = weft_units_human (value, unit);

  g_string_append_printf (out, "<td>%s</td>", text);
}

static void
append_cell (GString *out, const struct weft_summary *cell)
{
  if (!weft_summary_has_numbers (cell)) {
    g_string_append (out, "<td colspan=\"5\" class=\"why\">");
    weft_cli_html_text (out, *cell->reason ? cell->reason : weft_summary_fate_words[cell->fate]);
    g_string_append (out, "</td>");
    return;
  }
  append_number (out, cell->step_s, "s");
  append_number (out, cell->tokens_per_s, "");
  g_string_append_printf (out, "<td>%.1f %%</td>", 100 * cell->mfu);
  append_number (out, cell->peak_bytes, "B");
  g_string_append_printf (out, "<td>%s</td>",
                          cell->fate == WEFT_SUMMARY_OK ? "" : weft_summary_fate_words[cell->fate]);
}

/* The table of all combinations, which a reader without scripts has instead of the sliders. */
static void
append_table (GString *out, const weft_variants *x)
{
  g_string_append (out, "<h2>All combinations</h2>\n<div class=\"wide\"><table "
                        "id=\"weft-all-cells\">\n<tr>");
  for (guint i = 0; i < x->list->len; i++) {
    g_string_append (out, "<th>");
    weft_cli_html_text (out, ((const struct weft_variants_list *) x->list->pdata[i])->name);
    g_string_append (out, "</th>");
  }
  g_string_append (out, "<th>step</th><th>tokens/s</th><th>MFU</th><th>memory</th><th></th>"
                        "</tr>\n");
  for (uint32_t cell = 0; cell < x->n; cell++) {
    g_string_append (out, "<tr>");
    for (guint i = 0; i < x->list->len; i++) {
      g_string_append (out, "<td>");
      weft_cli_html_text (out, weft_variants_value (x, cell, i));
      g_string_append (out, "</td>");
    }
    append_cell (out, &x->cell[cell]);
    g_string_append (out, "</tr>\n");
  }
  g_string_append (out, "</table></div>\n");
}

/* The settings outside the lists. The caller frees the text. */
static char *
settings_text (const weft_variants *x)
{
  g_autoptr (GString) text = g_string_new (NULL);

  g_string_printf (text, "%u combinations, executor %s", x->n, x->executor->name);
  for (unsigned i = 0; i < weft_settings_count (x->base); i++) {
    const struct weft_setting *s = weft_settings_at (x->base, i);
    g_string_append_printf (text, "%s %s = %s", i ? "," : ";", s->key, s->value);
  }
  return g_string_free (g_steal_pointer (&text), FALSE);
}

gboolean
weft_cli_sweep_page_write (const weft_cli_sweep_page *page, const char *path, GError **error)
{
  const weft_variants *x = page->x;
  g_autoptr (GString) out = g_string_new (NULL);
  g_autofree char *line = settings_text (x);

  weft_cli_html_begin (out, "A job with several settings", line);
  g_string_append (out, "<style>\n");
  weft_cli_page_part (out, "sweep.css");
  g_string_append (out, "</style>\n<form id=\"weft-sliders\" class=\"sliders\">\n");
  for (guint i = 0; i < x->list->len; i++)
    append_slider (out, x->list->pdata[i], i);
  g_string_append (out, "</form>\n");
  weft_cli_page_part (out, "sweep.html");
  append_table (out, x);
  append_head (out, x);
  if (!append_details (out, page, error))
    return FALSE;
  g_string_append (out, "<script>\n");
  weft_cli_page_part (out, "common.js");
  weft_cli_page_part (out, "sweep.js");
  g_string_append (out, "</script>\n");
  weft_cli_html_end (out);
  return weft_cli_write (path, out->str, error);
}
