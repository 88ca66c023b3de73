/* A comparison as text: the two sides, the settings that differ, the step, ops by kind, and the
 * single ops that differ most. */
#include "core/report/compare.h"
#include "core/base/units.h"
#include <math.h>
#include <string.h>

enum { A = WEFT_COMPARE_A, B = WEFT_COMPARE_B, SIDES = WEFT_N_COMPARE };
enum { LABEL = 24, VALUE = 11, RATIO = 9, COUNT = 9, RANK = 7 };

/* Widths of the columns of a table that has a row per kind of op, or per op. */
struct widths {
  int label, value;
  gboolean waits; /* whether the columns of waits fit the terminal */
};

/* Chooses column widths such that a table fits the terminal. Value columns become narrower first;
 * then the columns of waits are left out. The table has a label column, `n` value columns and other
 * columns that take `others` characters; `longest` is the length of the longest label. */
static struct widths
widths_of (int columns, int others, int n, int longest)
{
  struct widths w = { .label = LABEL, .value = VALUE, .waits = TRUE };

  if (LABEL + others + n * w.value > columns)
    w.value = VALUE - 2;
  if (LABEL + others + n * w.value > columns) {
    w.waits = FALSE;
    n -= SIDES;
  }
  w.label = CLAMP (longest, LABEL, MAX (LABEL, columns - others - n * w.value));
  return w;
}

/* Appends a label to a line; a label that is longer than its column is put in a line of its own. */
static void
append_label (GString *out, const char *label, const struct widths *w)
{
  gboolean alone = (int) g_utf8_strlen (label, -1) > w->label;

  g_string_append_printf (out, alone ? "%s\n%*s" : "%s%*s", label,
                          alone ? w->label : w->label - (int) g_utf8_strlen (label, -1), "");
}

static const char letters[] = "AB";

char *
weft_compare_ratio (double a, double b)
{
  if (!(a > 0))
    return g_strdup ("-");
  return g_strdup_printf (b / a < 1000 ? "%.3f" : "%.3g", b / a);
}

static void
append_number (GString *out, double value, const char *unit, int width)
{
  g_autofree char *text = weft_units_human (value, unit);
  g_string_append_printf (out, "%*s", width, text);
}

static void
append_pair (GString *out, const double *value, const char *unit, int width)
{
  g_autofree char *ratio = weft_compare_ratio (value[A], value[B]);

  append_number (out, value[A], unit, width);
  append_number (out, value[B], unit, width);
  g_string_append_printf (out, "%*s", RATIO, ratio);
}

/* ------------------------------------------------------------------------- sides */

static void
print_side (const weft_compare *c, int side, GString *out)
{
  const struct weft_compare_side *s = &c->side[side];
  const weft_timeline *t = s->timeline;
  g_autoptr (GString) job = g_string_new (NULL);

  if (side == B && c->setting->len == 0)
    g_string_append (job, "the same job");
  else
    weft_report_print_job (&s->plan->job, job);
  g_string_append_printf (out, "%c  %s: executor %s%s%s, %u of %u ranks observed%s\n",
                          letters[side], s->name, t->executor, *t->engine ? " " : "", t->engine,
                          t->n, s->plan->mesh.n_ranks,
                          t->folded ? ", each representing its class" : "");
  g_auto (GStrv) lines = g_strsplit (g_strchomp (job->str), "\n", -1);
  for (unsigned i = 0; lines[i]; i++)
    g_string_append_printf (out, "   %s\n", lines[i]);
}

char *
weft_compare_setting_text (const struct weft_compare_setting *s, int side)
{
  double value[SIDES];

  if (!s->unit || !*s->unit || !weft_units_parse (s->text[A], "", &value[A], NULL) ||
      !weft_units_parse (s->text[B], "", &value[B], NULL))
    return g_strdup (s->text[side]);
  g_autofree char *a = weft_units_human (value[A], s->unit);
  g_autofree char *b = weft_units_human (value[B], s->unit);
  if (strcmp (a, b) == 0)
    return g_strdup_printf ("%s %s", s->text[side], s->unit);
  return g_strdup (side == A ? a : b);
}

static void
print_settings (const weft_compare *c, GString *out)
{
  if (c->setting->len == 0)
    return;
  g_string_append (out, "\nsettings that differ\n");
  for (unsigned i = 0; i < c->setting->len; i++) {
    const struct weft_compare_setting *s =
        &g_array_index (c->setting, struct weft_compare_setting, i);
    g_autofree char *a = weft_compare_setting_text (s, A), *b = weft_compare_setting_text (s, B);
    g_string_append_printf (out, "  %s: %s -> %s\n", s->name, a, b);
  }
}

/* -------------------------------------------------------------------------- step */

GArray *
weft_compare_lines (const weft_compare *c)
{
  const weft_report *a = c->report[A], *b = c->report[B];
  const struct weft_report_overlap *p = &a->overlap, *q = &b->overlap;
  const struct weft_compare_line lines[] = {
    { "step time", "s", { c->side[A].timeline->seconds, c->side[B].timeline->seconds } },
    { "compute", "s", { p->compute_s, q->compute_s } },
    { "transfers", "s", { p->communication_s, q->communication_s } },
    { "exposed transfers", "s", { p->exposed_communication_s, q->exposed_communication_s } },
    { "hidden transfers", "%", { p->overlap_fraction, q->overlap_fraction } },
    { "idle (bubble)", "s", { p->bubble_s, q->bubble_s } },
    { "idle, of the step", "%", { p->bubble_fraction, q->bubble_fraction } },
    { "memory peak", "B", { (double) a->peak_bytes, (double) b->peak_bytes } },
  };
  GArray *all = g_array_new (FALSE, FALSE, sizeof *lines);

  return g_array_append_vals (all, lines, G_N_ELEMENTS (lines));
}

static void
print_line (const struct weft_compare_line *line, GString *out)
{
  g_string_append_printf (out, "%-*s", LABEL, line->word);
  if (*line->unit == '%')
    g_string_append_printf (out, "%*.1f %%%*.1f %%", VALUE - 2, 100 * line->value[A], VALUE - 2,
                            100 * line->value[B]);
  else
    append_pair (out, line->value, line->unit, VALUE);
  g_string_append_c (out, '\n');
}

static void
print_step (const weft_compare *c, GString *out)
{
  g_autoptr (GArray) lines = weft_compare_lines (c);

  g_string_append_printf (out, "\n%-*s%*s%*s%*s\n", LABEL, "", VALUE, "A", VALUE, "B", RATIO,
                          "B/A");
  for (guint i = 0; i < lines->len; i++)
    print_line (&g_array_index (lines, struct weft_compare_line, i), out);
}

/* ------------------------------------------------------------------------ memory */

/* Prints the GPU memory of libraries: by name if an executor measured it, otherwise the sum that
 * the stack file predicts. */
static void
print_reserved (const weft_compare *c, int side, GString *out)
{
  const weft_timeline *t = c->side[side].timeline;
  uint64_t predicted = weft_plan_reserved_bytes (c->side[side].plan, 0);
  g_autofree char *all =
      weft_units_human ((double) (t->knows_reserved ? weft_timeline_reserved (t) : predicted), "B");

  g_string_append_printf (out, "  %c  %s %s", letters[side], all,
                          t->knows_reserved ? "measured:" : "predicted");
  for (int i = 0; i < WEFT_N_RESERVED && t->knows_reserved; i++) {
    g_autofree char *bytes = weft_units_human ((double) t->reserved[i], "B");
    g_string_append_printf (out, "%s %s %s", i ? "," : "", weft_reserved_words[i], bytes);
  }
  g_string_append_c (out, '\n');
}

static void
print_memory (const weft_compare *c, GString *out)
{
  if (!c->side[A].timeline->knows_reserved && !c->side[B].timeline->knows_reserved)
    return;
  g_string_append (out, "\nreserved by libraries on the first GPU\n");
  for (int side = 0; side < SIDES; side++)
    print_reserved (c, side, out);
}

/* ------------------------------------------------------------------------- kinds */

static void
print_joined (const weft_compare *c, GString *out)
{
  if (c->mismatch) {
    g_string_append_printf (out,
                            "\ndifferent programs: %s;\nno op is joined, each side is summed "
                            "separately\n",
                            c->mismatch);
    return;
  }
  g_string_append_printf (out, "\nthe same program: %" G_GUINT64_FORMAT " ops joined on %u ranks",
                          c->n_joined, c->n_ranks[A]);
  for (int side = 0; side < SIDES; side++)
    if (c->n_only[side])
      g_string_append_printf (out, "; %" G_GUINT64_FORMAT " ran only in %c", c->n_only[side],
                              letters[side]);
  g_string_append_c (out, '\n');
}

char *
weft_compare_sum_name (const struct weft_compare_sum *sum)
{
  const char *kind = weft_op_info[sum->kind].word;

  if (sum->label)
    return g_strdup (sum->label);
  if (sum->group == WEFT_GROUP_NONE)
    return g_strdup (kind);
  return g_strdup_printf ("%s, %s", kind, weft_group_word (sum->group));
}

static char *
sum_text (const struct weft_compare_sum *sum)
{
  g_autofree char *name = weft_compare_sum_name (sum);

  return g_strconcat (sum->label ? "    " : "  ", name, NULL);
}

static const struct weft_compare_sum *
sum_at (const weft_compare *c, unsigned i)
{
  return i < c->sum->len ? &g_array_index (c->sum, struct weft_compare_sum, i) : NULL;
}

gboolean
weft_compare_lists (const weft_compare *c, unsigned i)
{
  const struct weft_compare_sum *sum = sum_at (c, i), *next = sum_at (c, i + 1);
  gboolean timed =
      sum->seconds[A] > 0 || sum->seconds[B] > 0 || sum->wait[A] > 0 || sum->wait[B] > 0;
  return timed && (!sum->label || sum_at (c, i - 1)->label || (next && next->label));
}

static void
print_count (const weft_compare *c, const struct weft_compare_sum *sum, GString *out)
{
  for (int side = 0; side < (c->mismatch ? SIDES : 1); side++)
    g_string_append_printf (out, "%*" G_GUINT64_FORMAT, COUNT, sum->n[side]);
}

static int
longest_sum (const weft_compare *c)
{
  int longest = 0;

  for (unsigned i = 0; i < c->sum->len; i++) {
    g_autofree char *label = sum_text (sum_at (c, i));
    if (weft_compare_lists (c, i))
      longest = MAX (longest, (int) g_utf8_strlen (label, -1));
  }
  return longest;
}

static void
print_sum_heads (const weft_compare *c, const struct widths *w, GString *out)
{
  g_string_append_printf (out, "%-*s%*s", w->label, "seconds, mean rank", COUNT,
                          c->mismatch ? "ops A" : "ops");
  if (c->mismatch)
    g_string_append_printf (out, "%*s", COUNT, "ops B");
  g_string_append_printf (out, "%*s%*s%*s", w->value, "A", w->value, "B", RATIO, "B/A");
  if (w->waits)
    g_string_append_printf (out, "%*s%*s", w->value, "waits A", w->value, "waits B");
  g_string_append_c (out, '\n');
}

static void
print_sums (const weft_compare *c, int columns, GString *out)
{
  const int counts = (c->mismatch ? SIDES : 1) * COUNT;
  const struct widths w = widths_of (columns, counts + RATIO, 2 * SIDES, longest_sum (c));

  print_sum_heads (c, &w, out);
  for (unsigned i = 0; i < c->sum->len; i++) {
    const struct weft_compare_sum *sum = sum_at (c, i);
    g_autofree char *label = sum_text (sum);
    if (!weft_compare_lists (c, i))
      continue;
    append_label (out, label, &w);
    print_count (c, sum, out);
    append_pair (out, sum->seconds, "s", w.value);
    for (int side = 0; side < (w.waits ? SIDES : 0); side++)
      append_number (out, sum->wait[side], "s", w.value);
    g_string_append_c (out, '\n');
  }
}

/* ------------------------------------------------------------------------- worst */

static char *
op_text (const weft_compare *c, const struct weft_compare_op *op)
{
  const weft_program *p = c->side[A].plan->role[op->role];
  g_autofree char *label = weft_op_label (p, op->op);

  return g_strdup_printf ("  %s %s", weft_op_info[p->op[op->op].kind].word, label);
}

static int
longest_op (const weft_compare *c)
{
  int longest = 0;

  for (unsigned i = 0; i < c->worst->len; i++) {
    g_autofree char *text = op_text (c, &g_array_index (c->worst, struct weft_compare_op, i));
    longest = MAX (longest, (int) g_utf8_strlen (text, -1));
  }
  return longest;
}

static void
print_worst (const weft_compare *c, int columns, GString *out)
{
  const struct widths w = widths_of (columns, RANK + COUNT + RATIO, SIDES + 1, longest_op (c));

  if (c->worst->len == 0)
    return;
  g_string_append_printf (out, "\n%-*s%*s%*s%*s%*s%*s%*s\n", w.label, "largest differences", RANK,
                          "rank", COUNT, "op", w.value, "A", w.value, "B", RATIO, "B/A", w.value,
                          "B - A");
  for (unsigned i = 0; i < c->worst->len; i++) {
    const struct weft_compare_op *op = &g_array_index (c->worst, struct weft_compare_op, i);
    g_autofree char *text = op_text (c, op);
    append_label (out, text, &w);
    g_string_append_printf (out, "%*u%*u", RANK, op->rank, COUNT, op->op);
    append_pair (out, op->seconds, "s", w.value);
    append_number (out, op->seconds[B] - op->seconds[A], "s", w.value);
    g_string_append_c (out, '\n');
  }
}

void
weft_compare_print (const weft_compare *c, int columns, GString *out)
{
  for (int side = 0; side < SIDES; side++)
    print_side (c, side, out);
  print_settings (c, out);
  print_step (c, out);
  print_memory (c, out);
  print_joined (c, out);
  print_sums (c, columns, out);
  print_worst (c, columns, out);
}
