#include "cli/critical_page.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/report/report.h"
#include <stdio.h>
#include <string.h>

static const weft_program *
program_at (const weft_plan *plan, const weft_timeline *timeline, uint32_t row)
{
  return plan->role[timeline->role[row]];
}

/* ------------------------------------------------------------------------ text */

static void
print_kind (const char *what, int width, uint32_t ops, double on_path, double without,
            double tenth_less, double step)
{
  g_autofree char *path = weft_units_human (on_path, "s"), *rest = weft_units_human (without, "s");

  printf ("  %-*s  %6u  %9s  %5.1f %%  %9s  %6.1f %%", width, what, ops, path,
          100 * on_path / step, rest, 100 * (1 - without / step));
  if (tenth_less > 0)
    printf ("  %6.2f %%\n", 100 * (1 - tenth_less / step));
  else
    printf ("\n");
}

/* Kinds that save less than this share of the step are only counted. */
#define LEAST_SHARE 0.001

/* Prints the stages that the path crosses, with the time that it spends on each: "stage 0 212 ms,
 * stage 1 ...". */
static void
print_stages (const weft_critical *c, const weft_plan *plan, const weft_timeline *timeline)
{
  g_autofree double *seconds = g_new0 (double, plan->n_roles);
  uint32_t changes = 0, last = G_MAXUINT32;

  if (plan->n_roles < 2)
    return;
  for (guint i = 0; i < c->path->len; i++) {
    const struct weft_critical_op *at = &g_array_index (c->path, struct weft_critical_op, i);
    uint32_t role = timeline->role[at->row];
    seconds[role] += at->end - at->begin;
    changes += i > 0 && role != last;
    last = role;
  }
  g_autoptr (GString) text = g_string_new (NULL);
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    g_autofree char *time = weft_units_human (seconds[role], "s");
    g_string_append_printf (text, "%sstage %u %s", role ? ", " : "", role, time);
  }
  g_string_append_printf (text, "; it changes its stage %u times", changes);
  printf ("  by stage: ");
  weft_cli_print_wrapped (text->str, 12, weft_cli_columns ());
}

void
weft_cli_critical_print (const weft_critical *c, const weft_plan *plan,
                         const weft_timeline *timeline)
{
  g_autofree char *step = weft_units_human (c->step_s, "s");
  int width = (int) strlen ("launches");

  for (guint i = 0; i < c->kind->len; i++) {
    const char *what = g_array_index (c->kind, struct weft_critical_kind, i).what;
    width = MAX (width, (int) strlen (what));
  }
  printf ("critical path: %u of %" G_GUINT64_FORMAT " ops, step of %s\n", c->path->len,
          timeline->n_ops, step);
  print_stages (c, plan, timeline);
  printf ("\n  %-*s  %6s  %9s  %7s  %9s  %8s  %8s\n", width, "", "ops", "on path", "share",
          "step", "", "a tenth");
  printf ("  %-*s  %6s  %9s  %7s  %9s  %8s  %8s\n", width, "kind", "", "", "", "without", "saves",
          "less");
  uint32_t small = 0;
  for (guint i = 0; i < c->kind->len; i++) {
    const struct weft_critical_kind *k = &g_array_index (c->kind, struct weft_critical_kind, i);
    if (k->without_s > c->step_s * (1 - LEAST_SHARE))
      small++;
    else
      print_kind (k->what, width, k->ops, k->on_path_s, k->without_s, k->tenth_less_s, c->step_s);
  }
  if (small)
    printf ("  %u kinds save less than %.1f %% each\n", small, 100 * LEAST_SHARE);
  if (c->launch_s > c->step_s * LEAST_SHARE)
    print_kind ("launches", width, 0, c->launch_s, c->without_launch_s, 0, c->step_s);
  printf ("\n");
  weft_cli_print_wrapped (
      "step without: if all ops of this kind, on all ranks, took no time; saves: the share of the "
      "step that this saves; a tenth less: the share that is saved if they take 10 % less. Other "
      "ops keep their seconds.",
      2, weft_cli_columns ());
}

/* ------------------------------------------------------------------------ HTML */

static void
append_kind (GString *out, const struct weft_critical_kind *kind, double step)
{
  g_autofree char *path = weft_units_human (kind->on_path_s, "s");
  g_autofree char *rest = weft_units_human (kind->without_s, "s");

  g_string_append_printf (out,
                          "<tr><td>%s</td><td>%u</td><td>%s</td><td>%.1f %%</td><td>%s</td>"
                          "<td>%.1f %%</td>",
                          kind->what, kind->ops, path, 100 * kind->on_path_s / step, rest,
                          100 * (1 - kind->without_s / step));
  if (kind->tenth_less_s > 0)
    g_string_append_printf (out, "<td>%.2f %%</td></tr>\n",
                            100 * (1 - kind->tenth_less_s / step));
  else
    g_string_append (out, "<td></td></tr>\n");
}

void
weft_cli_critical_html (GString *out, const weft_critical *c)
{
  const struct weft_critical_kind launches = { (char *) "launches", 0, c->launch_s,
                                               c->without_launch_s, 0 };

  g_string_append (out, "<h2>What would shorten the step</h2>\n<div class=\"wide\"><table>\n"
                        "<tr><th>kind of op</th><th>ops on the critical path</th><th>time</th>"
                        "<th>share of the step</th><th>step without</th><th>saves</th>"
                        "<th>a tenth less saves</th></tr>\n");
  for (guint i = 0; i < c->kind->len; i++) {
    const struct weft_critical_kind *k = &g_array_index (c->kind, struct weft_critical_kind, i);
    if (k->without_s <= c->step_s * (1 - LEAST_SHARE))
      append_kind (out, k, c->step_s);
  }
  if (c->launch_s > c->step_s * LEAST_SHARE)
    append_kind (out, &launches, c->step_s);
  g_string_append (out, "</table></div>\n<p>Step without: if all ops of this kind, on all ranks, "
                        "took no time. Other ops keep their seconds. The same numbers as "
                        "<code>weft explain --critical-path</code>.</p>\n");
}

/* ------------------------------------------------------------------------ JSON */

static void
add_kind (JsonBuilder *b, const struct weft_critical_kind *kind)
{
  json_builder_begin_object (b);
  weft_json_text (b, "what", kind->what);
  weft_json_int (b, "ops", kind->ops);
  weft_json_real (b, "on_path_s", kind->on_path_s);
  weft_json_real (b, "without_s", kind->without_s);
  weft_json_real (b, "tenth_less_s", kind->tenth_less_s);
  json_builder_end_object (b);
}

static void
add_op (JsonBuilder *b, const struct weft_critical_op *at, const weft_plan *plan,
        const weft_timeline *timeline)
{
  const weft_program *p = program_at (plan, timeline, at->row);
  g_autofree char *label = weft_op_label (p, at->op);

  json_builder_begin_object (b);
  weft_json_int (b, "rank", timeline->rank[at->row]);
  weft_json_int (b, "op", at->op);
  weft_json_text (b, "kind", weft_op_info[p->op[at->op].kind].word);
  weft_json_text (b, "lane", weft_lane_words[p->op[at->op].lane]);
  weft_json_text (b, "label", label);
  weft_json_real (b, "begin_s", at->begin);
  weft_json_real (b, "end_s", at->end);
  json_builder_end_object (b);
}

void
weft_cli_critical_print_json (const weft_critical *c, const weft_plan *plan,
                              const weft_timeline *timeline)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.critical_path/1");
  json_builder_set_member_name (b, "job");
  weft_report_build_job (&plan->job, b);
  weft_json_real (b, "step_s", c->step_s);
  weft_json_real (b, "launch_s", c->launch_s);
  weft_json_real (b, "without_launch_s", c->without_launch_s);
  weft_json_array (b, "kinds");
  for (guint i = 0; i < c->kind->len; i++)
    add_kind (b, &g_array_index (c->kind, struct weft_critical_kind, i));
  json_builder_end_array (b);
  weft_json_array (b, "path");
  for (guint i = 0; i < c->path->len; i++)
    add_op (b, &g_array_index (c->path, struct weft_critical_op, i), plan, timeline);
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}
