#include "cli/html.h"
#include "charts/looks.h"
#include "cli/cli.h"
#include "cli/critical_page.h"
#include "cli/figures/figures.h"
#include "cli/timeline_page.h"
#include "core/base/units.h"

static const char style[] =
    ":root{--ink:#1c2430;--soft:#667085;--line:#d5dae2;--paper:#ffffff}\n"
    "@media (prefers-color-scheme:dark){:root{--ink:#e3e7ee;--soft:#98a2b3;--line:#39414f;"
    "--paper:#14181f}}\n"
    "body{margin:2rem auto;max-width:66rem;padding:0 1rem;font:15px/1.5 system-ui,sans-serif;"
    "color:var(--ink);background:var(--paper)}\n"
    "h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 "
    ".5rem}p{color:var(--soft);margin:0}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
    "td,th{padding:.2rem .8rem .2rem 0;text-align:right;border-bottom:1px solid var(--line);"
    "font-weight:normal}\n"
    "td:first-child,th:first-child{text-align:left}th{color:var(--soft)}\n"
    ".wide{overflow-x:auto}.bar{display:flex;height:1.1rem;background:var(--line);margin:.15rem 0 "
    ".5rem}\n"
    ".key span{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 1rem}\n"
    ".wide svg{max-width:100%;height:auto}\n";

/* ------------------------------------------------------------------------ parts */

static void
append_escaped (GString *out, const char *text)
{
  g_autofree char *safe = g_markup_escape_text (text, -1);
  g_string_append (out, safe);
}

static void
append_row (GString *out, const char *label, const char *value, const char *rest)
{
  g_string_append_printf (out, "<tr><td>%s</td><td>%s</td><td>%s</td></tr>\n", label, value, rest);
}

static void
append_quantity (GString *out, const char *label, double value, const char *unit, const char *rest)
{
  g_autofree char *text = weft_units_human (value, unit);
  append_row (out, label, text, rest);
}

static void
append_share (GString *out, const char *label, double seconds, double step)
{
  g_autofree char *share = g_strdup_printf ("%.1f %%", step > 0 ? 100 * seconds / step : 0.0);
  append_quantity (out, label, seconds, "s", share);
}

static void
append_numbers (GString *out, const weft_report *r)
{
  const struct weft_report_iteration *it = &r->iteration;
  g_autofree char *mfu = g_strdup_printf ("MFU %.1f %%", 100 * it->mfu);
  g_autofree char *hfu = g_strdup_printf ("HFU %.1f %%", 100 * it->hfu);

  g_string_append (out, "<h2>Step</h2>\n<table>\n");
  append_quantity (out, "step time", it->time_s, "s", "");
  append_quantity (out, "tokens each second, all GPUs", it->tokens_per_s, "", "");
  append_quantity (out, "tokens each second, one GPU", it->tokens_per_s_per_gpu, "", "");
  append_quantity (out, "model FLOPs, one GPU", it->model_tflops_per_gpu * 1e12, "FLOP/s", mfu);
  append_quantity (out, "hardware FLOPs, one GPU", it->hardware_tflops_per_gpu * 1e12, "FLOP/s",
                   hfu);
  append_share (out, "compute", r->overlap.compute_s, it->time_s);
  append_share (out, "exposed transfers", r->overlap.exposed_communication_s, it->time_s);
  append_share (out, "idle (bubble)", r->overlap.bubble_s, it->time_s);
  g_string_append (out, "</table>\n");
}

static void
append_axes (GString *out, const weft_report *r)
{
  g_string_append_printf (
      out,
      "<h2>Transfers</h2>\n<p>%.1f %% of their time overlaps with kernels.</p>\n<table>\n"
      "<tr><th>axis</th><th>busy</th><th>exposed</th><th>payload</th></tr>\n",
      100 * r->overlap.overlap_fraction);
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    const struct weft_report_axis *axis = &r->axis[lane];
    if (axis->busy_s <= 0)
      continue;
    g_autofree char *busy = weft_units_human (axis->busy_s, "s");
    g_autofree char *exposed = weft_units_human (axis->exposed_s, "s");
    g_autofree char *bytes = weft_units_human (axis->bytes, "B");
    g_string_append_printf (out, "<tr><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n",
                            weft_lane_words[lane], busy, exposed, bytes);
  }
  g_string_append (out, "</table>\n");
}

/* ----------------------------------------------------------------------- memory */

static void
append_bar (GString *out, const weft_report *r, uint32_t role)
{
  const struct weft_report_role *row = &r->role[role];
  g_autofree char *peak = weft_units_human (row->peak_bytes, "B");
  g_autofree char *label = weft_op_label (r->plan->role[role], row->peak_op);
  double whole = MAX (r->capacity_bytes, r->peak_bytes);

  g_string_append_printf (out, "<div>stage %u: %s, most at ", role, peak);
  append_escaped (out, label);
  g_string_append (out, "</div>\n<div class=\"bar\">");
  for (int part = 0; part < WEFT_N_REPORT_PART; part++) {
    g_autofree char *bytes = weft_units_human (weft_report_part_bytes (row, part), "B");
    if (weft_report_part_bytes (row, part))
      g_string_append_printf (
          out, "<span title=\"%s %s\" style=\"width:%.4f%%;background:%s\"></span>",
          weft_report_parts[part].word, bytes, 100 * weft_report_part_bytes (row, part) / whole,
          weft_look_css (weft_report_parts[part].look));
  }
  g_string_append (out, "</div>\n");
}

static void
append_memory (GString *out, const weft_report *r)
{
  g_autofree char *peak = weft_units_human (r->peak_bytes, "B");
  g_autofree char *capacity = weft_units_human (r->capacity_bytes, "B");

  g_string_append_printf (out, "<h2>Memory</h2>\n<p>%s of %s: %s.</p>\n", peak, capacity,
                          r->fits ? "fits" : "does not fit");
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    append_bar (out, r, role);
  g_string_append (out, "<p class=\"key\">");
  for (int part = 0; part < WEFT_N_REPORT_PART; part++)
    g_string_append_printf (out, "<span style=\"background:%s\"></span>%s",
                            weft_look_css (weft_report_parts[part].look),
                            weft_report_parts[part].word);
  g_string_append (out, "</p>\n");
}

/* ---------------------------------------------------------------------- figures */

static void
append_figure (GString *out, const char *title, weft_figure *figure)
{
  g_autofree char *svg = weft_figure_inline (figure, FALSE);

  if (title)
    g_string_append_printf (out, "<h2>%s</h2>\n", title);
  g_string_append_printf (out, "<div class=\"wide\">%s</div>\n", svg);
  weft_figure_free (figure);
}

static void
append_timeline (GString *out, const weft_report *r, const weft_critical *critical)
{
  g_string_append (out, "<h2>Timeline</h2>\n<p class=\"key\">");
  for (int phase = 0; phase < WEFT_N_PHASE; phase++)
    if (phase != WEFT_PHASE_FINALIZE) /* has the look of the reduction before it */
      g_string_append_printf (out, "<span style=\"background:%s\"></span>%s",
                              weft_look_css (weft_phase_looks[phase].look),
                              weft_phase_looks[phase].legend);
  g_string_append_printf (out, "<span style=\"background:%s\"></span>transfers</p>\n",
                          weft_look_css (WEFT_CLI_TRANSFER_LOOK));
  weft_cli_timeline_page (out, r, critical);
  g_string_append (out, "<noscript>\n<p>One rank of each stage; numbers are microbatches.</p>\n");
  append_figure (out, NULL, weft_cli_figure_timeline (r));
  g_string_append (out, "</noscript>\n");
}

/* ------------------------------------------------------------------------- page */

static void
append_head (GString *out, const weft_report *r)
{
  g_autoptr (GString) job = g_string_new (NULL);

  weft_report_print_job (&r->plan->job, job);
  g_auto (GStrv) lines = g_strsplit (job->str, "\n", -1);
  g_string_append (out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                        "<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
  append_escaped (out, lines[0]);
  g_string_append_printf (out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", style);
  append_escaped (out, lines[0]);
  g_string_append (out, "</h1>\n<p>");
  append_escaped (out, lines[1]);
  g_string_append (out, "</p>\n");
}

gboolean
weft_cli_html (const weft_report *r, const weft_critical *critical, const char *path,
               GError **error)
{
  g_autoptr (GString) out = g_string_new (NULL);

  append_head (out, r);
  append_numbers (out, r);
  if (r->timeline->seconds > 0)
    append_timeline (out, r, critical);
  if (critical)
    weft_cli_critical_html (out, critical);
  append_memory (out, r);
  append_axes (out, r);
  if (r->timeline->seconds > 0)
    append_figure (out, "Roofline", weft_cli_figure_roofline (r));
  g_string_append (out, "</body>\n</html>\n");
  return weft_cli_write (path, out->str, error);
}
