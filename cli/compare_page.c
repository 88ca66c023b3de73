#include "cli/compare_page.h"
#include "cli/cli.h"
#include "cli/html.h"
#include "cli/timeline_page.h"
#include "core/base/units.h"
#include <math.h>

enum { A = WEFT_COMPARE_A, B = WEFT_COMPARE_B, SIDES = WEFT_N_COMPARE };
static const char letters[] = "AB";

/* -------------------------------------------------------------------------- cells */

static void
append_cell (GString *out, const char *text)
{
  g_string_append (out, "<td>");
  weft_cli_html_text (out, text);
  g_string_append (out, "</td>");
}

static void
append_number (GString *out, double value, const char *unit)
{
  g_autofree char *text = *unit == '%' ? g_strdup_printf ("%.1f %%", 100 * value)
                                       : weft_units_human (value, unit);
  append_cell (out, text);
}

/* A, B, their difference and their ratio. The difference of two shares is in percentage points.
 * Differences of rounding are 0. */
static void
append_pair (GString *out, const double *value, const char *unit)
{
  double most = fmax (fabs (value[A]), fabs (value[B])), more = value[B] - value[A];
  g_autofree char *ratio = *unit == '%' ? g_strdup ("") : weft_compare_ratio (value[A], value[B]);

  append_number (out, value[A], unit);
  append_number (out, value[B], unit);
  append_number (out, fabs (more) > WEFT_COMPARE_ROUNDING * most ? more : 0, unit);
  append_cell (out, ratio);
}

static void
append_heads (GString *out, const char *what, const char *rest)
{
  g_string_append_printf (out,
                          "<div class=\"wide\"><table>\n<tr><th>%s</th><th>A</th><th>B</th>"
                          "<th>B &minus; A</th><th>B/A</th>%s</tr>\n",
                          what, rest);
}

/* ------------------------------------------------------------------------- tables */

static void
append_settings (GString *out, const weft_compare *c)
{
  g_string_append (out, "<h2>Settings that differ</h2>\n");
  if (c->setting->len == 0) {
    g_string_append (out, "<p>None: the same job.</p>\n");
    return;
  }
  g_string_append (out, "<div class=\"wide\"><table>\n<tr><th></th><th>A</th><th>B</th></tr>\n");
  for (guint i = 0; i < c->setting->len; i++) {
    const struct weft_compare_setting *s =
        &g_array_index (c->setting, struct weft_compare_setting, i);
    g_autofree char *a = weft_compare_setting_text (s, A), *b = weft_compare_setting_text (s, B);
    g_string_append (out, "<tr>");
    append_cell (out, s->name);
    append_cell (out, a);
    append_cell (out, b);
    g_string_append (out, "</tr>\n");
  }
  g_string_append (out, "</table></div>\n");
}

static void
append_step (GString *out, const weft_compare *c)
{
  g_autoptr (GArray) lines = weft_compare_lines (c);

  g_string_append (out, "<h2>Step</h2>\n");
  append_heads (out, "", "");
  for (guint i = 0; i < lines->len; i++) {
    const struct weft_compare_line *line = &g_array_index (lines, struct weft_compare_line, i);
    g_string_append_printf (out, "<tr><td>%s</td>", line->word);
    append_pair (out, line->value, line->unit);
    g_string_append (out, "</tr>\n");
  }
  g_string_append (out, "</table></div>\n");
}

static void
append_sum (GString *out, const struct weft_compare_sum *sum)
{
  g_autofree char *name = weft_compare_sum_name (sum);

  g_string_append (out, sum->label ? "<tr class=\"label\">" : "<tr>");
  append_cell (out, name);
  append_pair (out, sum->seconds, "s");
  append_number (out, sum->wait[A], "s");
  append_number (out, sum->wait[B], "s");
  g_string_append (out, "</tr>\n");
}

static void
append_kinds (GString *out, const weft_compare *c)
{
  g_string_append (out, "<h2>Ops by kind</h2>\n<p>Seconds of the mean rank. ");
  if (c->mismatch)
    g_string_append (out, "The programs differ, so each side is summed separately: ");
  else
    g_string_append_printf (out, "The same program: %" G_GUINT64_FORMAT " ops joined.",
                            c->n_joined);
  weft_cli_html_text (out, c->mismatch ? c->mismatch : "");
  g_string_append (out, "</p>\n");
  append_heads (out, "kind of op", "<th>waits A</th><th>waits B</th>");
  for (guint i = 0; i < c->sum->len; i++)
    if (weft_compare_lists (c, i))
      append_sum (out, &g_array_index (c->sum, struct weft_compare_sum, i));
  g_string_append (out, "</table></div>\n");
}

/* --------------------------------------------------------------- pictures of both */

/* The name of a side and the sizes of its job, as HTML. The caller frees the text. */
static char *
side_title (const weft_compare *c, int side)
{
  const struct weft_compare_side *s = &c->side[side];
  g_auto (GStrv) lines = weft_cli_html_job (&s->plan->job);
  g_autoptr (GString) text = g_string_new (NULL);

  g_string_append_printf (text, "<b>%c</b> ", letters[side]);
  weft_cli_html_text (text, s->name);
  g_string_append_printf (text, ": executor %s; ", s->timeline->executor);
  weft_cli_html_text (text, lines[0]);
  g_string_append (text, "; ");
  weft_cli_html_text (text, lines[1]);
  return g_string_free (g_steal_pointer (&text), FALSE);
}

static void
append_timelines (GString *out, const weft_compare *c)
{
  g_autofree char *a = side_title (c, A), *b = side_title (c, B);
  const struct weft_cli_timeline_job jobs[] = { { c->report[A], NULL, a },
                                                { c->report[B], NULL, b } };

  g_string_append (out, "<h2>Timelines</h2>\n");
  weft_cli_html_passes (out);
  weft_cli_timeline_page (out, jobs, SIDES, c->mismatch == NULL);
  g_string_append_printf (out, "<p>Both begin at 0 s. %s</p>\n",
                          c->mismatch ? "The programs differ, so a selected op has no partner."
                                      : "An op that is selected in one is selected in both.");
}

static void
append_memory (GString *out, const weft_compare *c)
{
  double most = 0;

  for (int side = 0; side < SIDES; side++)
    most = fmax (most, (double) MAX (c->report[side]->peak_bytes, c->report[side]->capacity_bytes));
  g_string_append (out, "<h2>Memory</h2>\n<div class=\"pair\">\n");
  for (int side = 0; side < SIDES; side++) {
    g_autofree char *peak = weft_units_human ((double) c->report[side]->peak_bytes, "B");
    g_autofree char *room = weft_units_human ((double) c->report[side]->capacity_bytes, "B");
    g_string_append_printf (out, "<div><p>%c: %s of %s: %s.</p>\n", letters[side], peak, room,
                            c->report[side]->fits ? "fits" : "does not fit");
    weft_cli_html_memory (out, c->report[side], most);
    g_string_append (out, "</div>\n");
  }
  g_string_append (out, "</div>\n");
  weft_cli_html_parts (out);
}

gboolean
weft_cli_compare_html (const weft_compare *c, const char *path, GError **error)
{
  g_autoptr (GString) out = g_string_new (NULL);
  const char *a = c->side[A].name, *b = c->side[B].name;
  g_autofree char *heading = g_strdup_printf ("%s against %s", a, b);
  g_autofree char *line = g_strdup_printf ("A is %s, B is %s.", a, b);

  weft_cli_html_begin (out, heading, line);
  append_step (out, c);
  append_timelines (out, c);
  append_settings (out, c);
  append_kinds (out, c);
  append_memory (out, c);
  weft_cli_html_end (out);
  return weft_cli_write (path, out->str, error);
}
