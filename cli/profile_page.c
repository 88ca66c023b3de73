#include "cli/profile_page.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/report/report.h"
#include <math.h>

enum { P = WEFT_PREDICTED, M = WEFT_MEASURED, SIDES = WEFT_N_PROFILE };
enum { LABEL = 24, VALUE = 11, COUNT = 8, RATIO = 8 };

static const char *const side_words[] = { "predicted", "measured" };

/* Seconds below which a row of a table is left out. */
#define LEAST_SECONDS 1e-9

struct weft_profile
weft_profile_new (const weft_plan *plan, const weft_timeline *timeline, const weft_trace *trace,
                  const weft_measured *measured)
{
  struct weft_profile p = { plan, timeline, trace, measured };

  p.side[P] = weft_breakdown_of_timeline (plan, timeline, measured->roles);
  p.side[M] = measured->mean;
  for (int side = 0; side < SIDES; side++)
    p.fall[side] = weft_waterfall_new (&plan->job, &p.side[side]);
  return p;
}

static double
mfu (const struct weft_profile *p, int side)
{
  return p->fall[side].seconds[WEFT_TERM_PEAK] / p->side[side].seconds;
}

static double
all_exposed (const struct weft_breakdown *b)
{
  double sum = 0;

  for (int axis = 0; axis < WEFT_N_AXIS; axis++)
    sum += weft_breakdown_exposed (b, axis);
  return sum;
}

/* ---------------------------------------------------------------------------- text */

static void
append_seconds (GString *out, double seconds)
{
  g_autofree char *text = weft_units_human (seconds, "s");
  g_string_append_printf (out, "%*s", VALUE, text);
}

static void
append_ratio (GString *out, double a, double b)
{
  if (a > LEAST_SECONDS)
    g_string_append_printf (out, "%*.*f", RATIO, b / a < 100 ? 2 : 0, b / a);
  else
    g_string_append_printf (out, "%*s", RATIO, "-");
}

static void
print_head (const struct weft_profile *p, GString *out)
{
  g_autoptr (GString) job = g_string_new (NULL);

  weft_report_print_job (&p->plan->job, job);
  g_auto (GStrv) lines = g_strsplit (g_strchomp (job->str), "\n", -1);
  g_string_append_printf (out, "predicted  %s: executor %s%s%s\n", p->name[P],
                          p->timeline->executor, *p->timeline->engine ? " " : "",
                          p->timeline->engine);
  for (unsigned i = 0; lines[i]; i++)
    g_string_append_printf (out, "           %s\n", lines[i]);
  g_string_append_printf (out, "measured   %s: %s, %u of %u ranks\n           %s\n", p->name[M],
                          p->trace->tool, p->measured->n_ranks, p->plan->mesh.n_ranks,
                          p->measured->step);
  for (guint i = 0; i < p->measured->note->len; i++)
    g_string_append_printf (out, "           note: %s\n",
                            (const char *) p->measured->note->pdata[i]);
}

static void
step_line (GString *out, const char *label, double a, double b)
{
  g_string_append_printf (out, "%-*s", LABEL, label);
  append_seconds (out, a);
  append_seconds (out, b);
  append_ratio (out, a, b);
  g_string_append_c (out, '\n');
}

static void
print_step (const struct weft_profile *p, GString *out)
{
  const struct weft_breakdown *a = &p->side[P], *b = &p->side[M];

  g_string_append_printf (out, "\n%-*s%*s%*s%*s\n", LABEL, "", VALUE, side_words[P], VALUE,
                          side_words[M], RATIO, "ratio");
  step_line (out, "step time", a->seconds, b->seconds);
  g_string_append_printf (out, "%-*s%*.1f %%%*.1f %%\n", LABEL, "MFU", VALUE - 2, 100 * mfu (p, P),
                          VALUE - 2, 100 * mfu (p, M));
  step_line (out, "kernels", weft_breakdown_compute (a), weft_breakdown_compute (b));
  step_line (out, "exposed communication", all_exposed (a), all_exposed (b));
  step_line (out, "waits for the host", a->host_s, b->host_s);
  step_line (out, "idle", a->idle_s, b->idle_s);
}

static gboolean
has_cell (const struct weft_profile *p, int work, int axis)
{
  return p->side[P].cell[work][axis].busy_s > LEAST_SECONDS ||
         p->side[M].cell[work][axis].busy_s > LEAST_SECONDS;
}

/* The name of a row: "matmul", "all_reduce tp". The caller frees it. */
static char *
cell_name (int work, int axis)
{
  if (!weft_work_moves (work))
    return g_strdup (weft_work_words[work]);
  return g_strdup_printf ("%s %s", weft_work_words[work], weft_axis_word (axis));
}

static void
print_cell (const struct weft_profile *p, int work, int axis, GString *out)
{
  g_autofree char *name = cell_name (work, axis);

  g_string_append_printf (out, "%-*s", LABEL - 2, name);
  for (int side = 0; side < SIDES; side++) {
    const struct weft_breakdown_cell *c = &p->side[side].cell[work][axis];
    g_autofree char *busy = weft_units_human (c->busy_s, "s");
    g_autofree char *alone = weft_units_human (c->alone_s, "s");
    g_string_append_printf (out, "%9s%*.*f%9s", busy, COUNT - 1,
                            c->calls > 0 && c->calls < 1 ? 2 : 0, c->calls, alone);
  }
  append_ratio (out, p->side[P].cell[work][axis].busy_s, p->side[M].cell[work][axis].busy_s);
  g_string_append_c (out, '\n');
}

static void
print_classes (const struct weft_profile *p, GString *out)
{
  g_string_append_printf (out, "\n%-*s%25s%25s\n%-*s", LABEL - 2, "mean rank", side_words[P],
                          side_words[M], LABEL - 2, "");
  for (int side = 0; side < SIDES; side++)
    g_string_append_printf (out, "%9s%*s%9s", "time", COUNT - 1, "calls", "exposed");
  g_string_append_printf (out, "%*s\n", RATIO, "ratio");
  for (int work = 0; work < WEFT_N_WORK; work++)
    for (int axis = 0; axis < WEFT_N_AXIS; axis++)
      if (has_cell (p, work, axis))
        print_cell (p, work, axis, out);
  g_string_append (out,
                   "exposed: seconds of the step that nothing else explains; of a kernel, its\n"
                   "share of the time in which kernels run\n");
}

static gboolean
has_term (const struct weft_profile *p, unsigned term)
{
  return fabs (p->fall[P].seconds[term]) > LEAST_SECONDS ||
         fabs (p->fall[M].seconds[term]) > LEAST_SECONDS;
}

static void
print_waterfall (const struct weft_profile *p, GString *out)
{
  double sum[SIDES] = { 0 };

  g_string_append_printf (out, "\n%-*s%*s%*s%*s%*s%*s\n", LABEL, "where MFU is lost", VALUE,
                          side_words[P], COUNT, "MFU", VALUE, side_words[M], COUNT, "MFU", VALUE,
                          "difference");
  for (unsigned term = 0; term < WEFT_N_TERM; term++) {
    if (!has_term (p, term))
      continue;
    g_autofree char *name = weft_term_name (term);
    g_string_append_printf (out, "%-*s", LABEL, name);
    for (int side = 0; side < SIDES; side++) {
      sum[side] += p->fall[side].seconds[term];
      append_seconds (out, p->fall[side].seconds[term]);
      g_string_append_printf (out, "%*.1f %%", COUNT - 2,
                              100 * p->fall[side].seconds[WEFT_TERM_PEAK] / sum[side]);
    }
    append_seconds (out, p->fall[M].seconds[term] - p->fall[P].seconds[term]);
    g_string_append_c (out, '\n');
  }
  g_string_append_printf (out, "%-*s", LABEL, "step");
  for (int side = 0; side < SIDES; side++) {
    append_seconds (out, sum[side]);
    g_string_append_printf (out, "%*.1f %%", COUNT - 2, 100 * mfu (p, side));
  }
  append_seconds (out, sum[M] - sum[P]);
  g_string_append_c (out, '\n');
}

/* Names the terms in which the measured step lost most more than the predicted one. */
static void
print_reasons (const struct weft_profile *p, GString *out)
{
  enum { MOST = 3 };
  gboolean told[WEFT_N_TERM] = { FALSE };
  int n = 0;

  for (; n < MOST; n++) {
    int worst = -1;
    double most = 0.005 * p->side[P].seconds; /* differences below half a percent are no reason */
    for (int term = 0; term < WEFT_N_TERM; term++) {
      double more = p->fall[M].seconds[term] - p->fall[P].seconds[term];
      if (!told[term] && more > most) {
        most = more;
        worst = term;
      }
    }
    if (worst < 0)
      break;
    told[worst] = TRUE;
    g_autofree char *name = weft_term_name (worst), *more = weft_units_human (most, "s");
    g_string_append_printf (out, "%s  %s +%s\n", n ? "" : "\nslower than predicted by\n", name,
                            more);
  }
}

/* Ranks whose kernels take much longer than those of others make them wait. */
static void
print_ranks (const struct weft_profile *p, GString *out)
{
  const struct weft_measured *m = p->measured;

  if (m->n_ranks < 2)
    return;
  g_autofree char *least = weft_units_human (m->kernels_s[0], "s");
  g_autofree char *most = weft_units_human (m->kernels_s[1], "s");
  g_string_append_printf (out, "\nmeasured kernels: %s on rank %u to %s on rank %u\n", least,
                          m->kernels_rank[0], most, m->kernels_rank[1]);
}

static void
print_unknown (const struct weft_profile *p, GString *out)
{
  enum { MOST = 5 };
  const GArray *list = p->measured->unknown;

  if (p->measured->counted_s > LEAST_SECONDS) {
    g_autofree char *text = weft_units_human (p->measured->counted_s, "s");
    g_string_append_printf (out,
                            "\naxes of %s of communication follow from the numbers of calls,"
                            "\nbecause the trace does not describe its process groups\n",
                            text);
  }
  if (list->len == 0)
    return;
  g_string_append_printf (out, "\nother: kernels of unknown classes, %.1f %% of the step\n",
                          100 * p->side[M].cell[WEFT_WORK_OTHER][WEFT_LANE_GPU].alone_s /
                              p->side[M].seconds);
  for (guint i = 0; i < list->len && i < MOST; i++) {
    const struct weft_measured_name *u = &g_array_index (list, struct weft_measured_name, i);
    append_seconds (out, u->seconds);
    g_autofree char *name = g_utf8_substring (u->name, 0, MIN (55, g_utf8_strlen (u->name, -1)));
    g_string_append_printf (out, "%*.0f  %s\n", COUNT, u->calls, name);
  }
  if (list->len > MOST)
    g_string_append_printf (out, "  and %u other names\n", list->len - MOST);
}

void
weft_profile_print (const struct weft_profile *p, GString *out)
{
  print_head (p, out);
  print_step (p, out);
  print_classes (p, out);
  print_waterfall (p, out);
  print_reasons (p, out);
  print_ranks (p, out);
  print_unknown (p, out);
}

/* ---------------------------------------------------------------------------- JSON */

static void
add_side (const struct weft_profile *p, int side, JsonBuilder *b)
{
  const struct weft_breakdown *s = &p->side[side];

  weft_json_object (b, side_words[side]);
  weft_json_text (b, "name", p->name[side]);
  weft_json_real (b, "time_s", s->seconds);
  weft_json_real (b, "mfu", mfu (p, side));
  weft_json_real (b, "compute_s", weft_breakdown_compute (s));
  weft_json_real (b, "exposed_communication_s", all_exposed (s));
  weft_json_real (b, "host_wait_s", s->host_s);
  weft_json_real (b, "idle_s", s->idle_s);
  json_builder_end_object (b);
}

static void
add_cells (const struct weft_profile *p, JsonBuilder *b)
{
  weft_json_array (b, "classes");
  for (int work = 0; work < WEFT_N_WORK; work++)
    for (int axis = 0; axis < WEFT_N_AXIS; axis++) {
      if (!has_cell (p, work, axis))
        continue;
      json_builder_begin_object (b);
      weft_json_text (b, "class", weft_work_words[work]);
      if (!weft_work_moves (work))
        weft_json_null (b, "axis");
      else
        weft_json_text (b, "axis", axis == WEFT_AXIS_UNKNOWN ? "unknown" : weft_axis_word (axis));
      for (int side = 0; side < SIDES; side++) {
        const struct weft_breakdown_cell *c = &p->side[side].cell[work][axis];
        weft_json_object (b, side_words[side]);
        weft_json_real (b, "time_s", c->busy_s);
        weft_json_real (b, "calls", c->calls);
        weft_json_real (b, "exposed_s", c->alone_s);
        json_builder_end_object (b);
      }
      json_builder_end_object (b);
    }
  json_builder_end_array (b);
}

static void
add_waterfall (const struct weft_profile *p, JsonBuilder *b)
{
  weft_json_array (b, "waterfall");
  for (unsigned term = 0; term < WEFT_N_TERM; term++) {
    if (!has_term (p, term))
      continue;
    g_autofree char *name = weft_term_name (term);
    json_builder_begin_object (b);
    weft_json_text (b, "term", name);
    for (int side = 0; side < SIDES; side++) {
      g_autofree char *member = g_strconcat (side_words[side], "_s", NULL);
      weft_json_real (b, member, p->fall[side].seconds[term]);
    }
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

static void
add_unknown (const struct weft_profile *p, JsonBuilder *b)
{
  weft_json_array (b, "unknown_kernels");
  for (guint i = 0; i < p->measured->unknown->len; i++) {
    const struct weft_measured_name *u =
        &g_array_index (p->measured->unknown, struct weft_measured_name, i);
    json_builder_begin_object (b);
    weft_json_text (b, "name", u->name);
    weft_json_real (b, "time_s", u->seconds);
    weft_json_real (b, "calls", u->calls);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

void
weft_profile_to_json (const struct weft_profile *p, JsonBuilder *b)
{
  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.profile/1");
  weft_json_text (b, "tool", p->trace->tool);
  weft_json_int (b, "ranks", p->measured->n_ranks);
  weft_json_text (b, "step", p->measured->step);
  for (int side = 0; side < SIDES; side++)
    add_side (p, side, b);
  add_cells (p, b);
  add_waterfall (p, b);
  add_unknown (p, b);
  weft_json_real (b, "axes_by_calls_s", p->measured->counted_s);
  for (int i = 0; i < 2; i++) {
    weft_json_object (b, i ? "slowest_rank" : "fastest_rank");
    weft_json_int (b, "rank", p->measured->kernels_rank[i]);
    weft_json_real (b, "compute_s", p->measured->kernels_s[i]);
    json_builder_end_object (b);
  }
  weft_json_array (b, "notes");
  for (guint i = 0; i < p->measured->note->len; i++)
    json_builder_add_string_value (b, p->measured->note->pdata[i]);
  json_builder_end_array (b);
  json_builder_end_object (b);
}
