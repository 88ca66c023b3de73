#include "cli/html.h"
#include "cli/cli.h"
#include "cli/timeline_page.h"
#include "core/base/units.h"
#include <math.h>
#include <string.h>

/* Lengths of the picture in units of the viewBox of its SVG. */
enum { WIDTH = 1000, LEFT = 70, ROW = 22, LANE = 6, GAP = 8 };

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
    "svg{width:100%;height:auto}text{fill:var(--ink);font-size:12px}.n{fill:#14181f;font-size:9px;"
    "text-anchor:middle;pointer-events:none}\n"
    ".idle{fill:var(--line)}\n";

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
          weft_report_parts[part].colour);
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
                            weft_report_parts[part].colour, weft_report_parts[part].word);
  g_string_append (out, "</p>\n");
}

/* --------------------------------------------------------------------- timeline */

#define TRANSFER_COLOUR "#7d6bb5"

static double
x_of (const weft_report *r, double seconds)
{
  return LEFT + seconds / r->timeline->seconds * (WIDTH - LEFT);
}

/* Consecutive kernels of one phase and microbatch, drawn as one box. */
struct run {
  double begin, end;
  uint8_t phase;
  uint16_t micro;
};

static void
append_kernels (GString *out, const weft_report *r, const struct run *run, double y)
{
  double x = x_of (r, run->begin), width = x_of (r, run->end) - x;
  g_autofree char *time = weft_units_human (run->end - run->begin, "s");
  g_autofree char *micro =
      run->micro == WEFT_NO_MICRO ? g_strdup ("") : g_strdup_printf (" %u", run->micro);

  g_string_append_printf (out,
                          "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" fill=\"%s\">"
                          "<title>%s%s, %s</title></rect>\n",
                          x, y, width, ROW, weft_phase_looks[run->phase].colour,
                          weft_phase_looks[run->phase].legend, micro, time);
  if (*micro && width > 6.0 * strlen (micro))
    g_string_append_printf (out, "<text class=\"n\" x=\"%.2f\" y=\"%.0f\">%s</text>\n",
                            x + width / 2, y + 15, micro + 1);
}

static gboolean
continues (const struct run *run, const struct weft_op *op, double begin, double slack)
{
  return run->end >= 0 && run->phase == op->phase && run->micro == op->micro &&
         begin <= run->end + slack;
}

/* Draws the kernels of one row of the timeline. The kernels of one pass over a microbatch are one
 * box. */
static void
append_gpu (GString *out, const weft_report *r, uint32_t row, double y)
{
  const weft_program *p = r->plan->role[r->timeline->role[row]];
  const double slack = r->timeline->seconds / 2000;
  struct run run = { .end = -1 };

  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_GPU]; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_GPU][i];
    double begin = r->timeline->begin[row][op], end = r->timeline->end[row][op];
    if (!(end > begin))
      continue;
    if (!continues (&run, &p->op[op], begin, slack)) {
      if (run.end >= 0)
        append_kernels (out, r, &run, y);
      run = (struct run){ begin, end, p->op[op].phase, p->op[op].micro };
    }
    run.end = end;
  }
  if (run.end >= 0)
    append_kernels (out, r, &run, y);
}

static void
append_transfer (GString *out, const weft_report *r, const struct run *run, double y)
{
  double x = x_of (r, run->begin);

  g_string_append_printf (
      out,
      "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" fill=\"" TRANSFER_COLOUR "\"/>\n",
      x, y, fmax (0.3, x_of (r, run->end) - x), LANE - 2);
}

static void
append_lane (GString *out, const weft_report *r, uint32_t row, int lane, double y)
{
  const weft_program *p = r->plan->role[r->timeline->role[row]];
  const double slack = r->timeline->seconds / 2000;
  struct run run = { .end = -1 };

  g_string_append_printf (out, "<g><title>%s</title>\n", weft_lane_words[lane]);
  for (uint32_t i = 0; i < p->lane_n[lane]; i++) {
    uint32_t op = p->lane_ops[lane][i];
    double begin = r->timeline->begin[row][op], end = r->timeline->end[row][op];
    if (!(end > begin))
      continue;
    if (run.end < 0 || begin > run.end + slack) {
      if (run.end >= 0)
        append_transfer (out, r, &run, y);
      run.begin = begin;
    }
    run.end = fmax (run.end, end);
  }
  if (run.end >= 0)
    append_transfer (out, r, &run, y);
  g_string_append (out, "</g>\n");
}

/* Draws one stage: its kernels, and a thin line for each lane of communication.  Returns the height
 * of the stage in the picture. */
static double
append_stage (GString *out, const weft_report *r, uint32_t row, double y)
{
  const weft_program *p = r->plan->role[r->timeline->role[row]];
  double height = ROW + 2;

  g_string_append_printf (
      out,
      "<text x=\"0\" y=\"%.0f\">stage %u</text>\n<rect class=\"idle\" x=\"%d\" y=\"%.0f\""
      " width=\"%d\" height=\"%d\"/>\n",
      y + 15, r->timeline->role[row], LEFT, y, WIDTH - LEFT, ROW);
  append_gpu (out, r, row, y);
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    if (!weft_report_is_axis (lane) || !p->lane_n[lane])
      continue;
    append_lane (out, r, row, lane, y + height);
    height += LANE;
  }
  return height + GAP;
}

static void
append_timeline (GString *out, const weft_report *r)
{
  g_autoptr (GString) picture = g_string_new (NULL);
  g_autofree gboolean *drawn = g_new0 (gboolean, r->plan->n_roles);
  double y = 0;

  for (uint32_t row = 0; row < r->timeline->n; row++) {
    uint32_t role = r->timeline->role[row];
    if (!drawn[role])
      y += append_stage (picture, r, row, y);
    drawn[role] = TRUE;
  }
  g_string_append (out, "<h2>Timeline</h2>\n<p class=\"key\">");
  for (int phase = 0; phase < WEFT_N_PHASE; phase++)
    g_string_append_printf (out, "<span style=\"background:%s\"></span>%s",
                            weft_phase_looks[phase].colour, weft_phase_looks[phase].legend);
  g_string_append (out, "<span style=\"background:" TRANSFER_COLOUR "\"></span>transfers, a line "
                        "for each axis</p>\n");
  weft_cli_timeline_page (out, r);
  g_string_append_printf (out,
                          "<noscript>\n<p>One rank of each stage; numbers are microbatches.</p>\n"
                          "<div class=\"wide\"><svg viewBox=\"0 0 %d %.0f\" role=\"img\">\n"
                          "%s</svg></div>\n</noscript>\n",
                          WIDTH, y, picture->str);
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
weft_cli_html (const weft_report *r, const char *path, GError **error)
{
  g_autoptr (GString) out = g_string_new (NULL);

  append_head (out, r);
  append_numbers (out, r);
  if (r->timeline->seconds > 0)
    append_timeline (out, r);
  append_memory (out, r);
  append_axes (out, r);
  g_string_append (out, "</body>\n</html>\n");
  return weft_cli_write (path, out->str, error);
}
