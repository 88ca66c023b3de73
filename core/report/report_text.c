/* The report as text with aligned columns and units, in the width of the terminal. */
#include "core/report/report.h"
#include "core/base/units.h"
#include <math.h>
#include <string.h>

/* Launch waits are printed if their fraction of the step exceeds this value. */
#define NOTABLE 1e-3

enum { LABEL = 20, VALUE = 12, INDENT = 11, LEAST_COLUMNS = 60, MOST_COLUMNS = 100 };

static int
clamp_columns (struct weft_report_style style)
{
  return CLAMP (style.columns, LEAST_COLUMNS, MOST_COLUMNS);
}

/* Appends one character; writes an escape sequence only when the colour changes. */
static void
put_mark (GString *out, char mark, enum weft_ink ink, enum weft_ink *now)
{
  if (ink != *now)
    g_string_append_printf (out, "\033[%dm", ink);
  *now = ink;
  g_string_append_c (out, mark);
}

static void
end_marks (GString *out, enum weft_ink now)
{
  if (now != WEFT_INK_NONE)
    g_string_append (out, "\033[0m");
}

/* ------------------------------------------------------------------------- job */

void
weft_report_print_where (const struct weft_job *job, GString *out)
{
  const char *model = g_quark_to_string ((GQuark) job->model.name);

  g_string_append_printf (
      out, "%s on %u x %s (%s), stack %s, %s\n", model && *model ? model : "model",
      job->cluster.n_gpus, g_quark_to_string ((GQuark) job->cluster.f.gpu_name),
      g_quark_to_string (job->cluster.topology), g_quark_to_string ((GQuark) job->stack.name),
      weft_precision_words[job->train.precision]);
}

void
weft_report_print_job (const struct weft_job *job, GString *out)
{
  const union weft_strategy *s = &job->strategy;

  weft_report_print_where (job, out);
  g_string_append_printf (
      out,
      "tensor %" G_GINT64_FORMAT ", context %" G_GINT64_FORMAT ", pipeline %" G_GINT64_FORMAT
      ", data %" G_GINT64_FORMAT "%s; %" G_GINT64_FORMAT " sequence%s of %" G_GINT64_FORMAT
      " tokens, microbatches %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT "\n",
      s->tensor_model_parallel_size, s->context_parallel_size, s->pipeline_model_parallel_size,
      weft_job_dp (job),
      s->use_tp_pp_dp_mapping && s->pipeline_model_parallel_size > 1 ? ", stages inside" : "",
      job->train.global_batch_size, job->train.global_batch_size == 1 ? "" : "s",
      job->model.seq_length, weft_job_microbatches (job), job->train.micro_batch_size);
}

/* --------------------------------------------------------------------- numbers */

static void
line (GString *out, const char *label, double value, const char *unit, const char *rest)
{
  g_autofree char *text = weft_units_human (value, unit);
  g_string_append_printf (out, "%-*s%*s%s%s\n", LABEL, label, VALUE, text, *rest ? "   " : "",
                          rest);
}

static void
line_share (GString *out, const char *label, double seconds, double step)
{
  g_autofree char *share = g_strdup_printf ("%5.1f %%", step > 0 ? 100 * seconds / step : 0.0);
  line (out, label, seconds, "s", share);
}

static void
print_iteration (const weft_report *r, GString *out)
{
  const struct weft_report_iteration *it = &r->iteration;
  g_autofree char *whole = weft_units_human (it->tokens_per_s, "tokens/s on all GPUs");
  g_autofree char *mfu = g_strdup_printf (
      "MFU %.1f %%  (%s attention)", 100 * it->mfu,
      weft_flops_convention_words[r->plan->job.train.flops_convention]);
  g_autofree char *hfu = g_strdup_printf ("HFU %.1f %%", 100 * it->hfu);

  line (out, "step time", it->time_s, "s", "");
  line (out, "tokens/s per GPU", it->tokens_per_s_per_gpu, "", whole);
  line (out, "model FLOP/s per GPU", it->model_tflops_per_gpu * 1e12, "", mfu);
  line (out, "hardware FLOP/s", it->hardware_tflops_per_gpu * 1e12, "", hfu);
}

static void
print_host_bound (double seconds, double step, GString *out)
{
  g_autofree char *rest =
      g_strdup_printf ("%5.1f %%  of the step, kernels wait for launches", 100 * seconds / step);

  line (out, "host-bound", seconds, "s", rest);
}

static void
print_overlap (const weft_report *r, GString *out)
{
  const struct weft_report_overlap *o = &r->overlap;
  double step = r->iteration.time_s;

  line_share (out, "compute", o->compute_s, step);
  line_share (out, "exposed transfers", o->exposed_communication_s, step);
  line_share (out, "idle (bubble)", o->bubble_s, step);
  if (o->launch_wait_s > NOTABLE * step)
    print_host_bound (o->launch_wait_s, step, out);
}

/* Prints the work before the first step.  broadcast_params() is called at most once, by users whose
 * replicas start from different weights. */
static void
print_startup (const weft_report *r, GString *out)
{
  const struct weft_report_startup *s = &r->startup;
  gboolean on_host = r->plan->job.strategy.use_cpu_initialization;
  g_autofree char *filled = weft_units_human ((double) s->fill_bytes, "B");
  g_autofree char *sent = weft_units_human ((double) s->bytes, "B");
  g_autofree char *first =
      g_strdup_printf ("%s of weights%s", filled, on_host ? ", made on the host and copied" : "");
  g_autofree char *then =
      g_strdup_printf ("%" G_GUINT64_FORMAT " tensors, %s, for replicas with different weights",
                       s->broadcasts, sent);

  if (s->fills || s->broadcasts)
    g_string_append (out, "\nbefore the first step\n");
  if (s->fills)
    line (out, "  initialisation", s->initialisation_s, "s", first);
  if (s->broadcasts)
    line (out, "  broadcast_params", s->broadcast_params_s, "s", then);
}

static void
print_axis (const char *name, double busy_s, double exposed_s, double payload, GString *out)
{
  g_autofree char *busy = weft_units_human (busy_s, "s"),
                  *exposed = weft_units_human (exposed_s, "s"),
                  *bytes = weft_units_human (payload, "B");

  g_string_append_printf (out, "  %-*s%*s%*s%*s\n", LABEL - 2, name, VALUE, busy, VALUE, exposed,
                          VALUE, bytes);
}

/* Prints the column heads of the communication table, and the percentage of transfer time that is
 * overlapped. The percentage is in the line of the heads if it fits, otherwise in the line
 * below. */
static void
print_axis_heads (const weft_report *r, struct weft_report_style style, GString *out)
{
  g_autofree char *share = g_strdup_printf ("%.1f %% of transfer time is overlapped",
                                            100 * r->overlap.overlap_fraction);
  gboolean beside = LABEL + 3 * VALUE + 3 + (int) strlen (share) <= style.columns;

  g_string_append_printf (out, "\n%-*s%*s%*s%*s%s%s\n", LABEL, "transfers", VALUE, "busy", VALUE,
                          "exposed", VALUE, "payload", beside ? "   " : "\n  ", share);
}

/* Prints the communication time of each axis, then the total. In the total, times that overlap
 * count once. */
static void
print_axes (const weft_report *r, struct weft_report_style style, GString *out)
{
  double bytes = 0;
  int n = 0;

  if (r->overlap.communication_s <= 0)
    return;
  print_axis_heads (r, style, out);
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    const struct weft_report_axis *axis = &r->axis[lane];
    if (axis->busy_s <= 0)
      continue;
    print_axis (weft_lane_words[lane], axis->busy_s, axis->exposed_s, axis->bytes, out);
    bytes += axis->bytes;
    n++;
  }
  if (n > 1)
    print_axis ("together", r->overlap.communication_s, r->overlap.exposed_communication_s, bytes,
                out);
}

/* ---------------------------------------------------------------------- memory */

/* Draws the memory of a role as a bar in which `width` characters stand for `scale` bytes. */
static void
print_bar (const struct weft_report_role *row, double scale, int width, gboolean colour,
           GString *out)
{
  enum weft_ink now = WEFT_INK_NONE;
  double sum = 0;
  int drawn = 0;

  for (int part = 0; part < WEFT_N_REPORT_PART; part++) {
    sum += weft_report_part_bytes (row, part);
    for (; drawn < (int) lround (sum / scale * width); drawn++)
      put_mark (out, weft_report_parts[part].mark,
                colour ? weft_report_parts[part].ink : WEFT_INK_NONE, &now);
  }
  end_marks (out, now);
  for (; drawn < width; drawn++)
    g_string_append_c (out, '.');
}

/* Whether the memory table has a column for a part of memory. TRUE: some role has bytes of this
 * part. */
static gboolean
is_column (const weft_report *r, int part)
{
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    if (weft_report_part_bytes (&r->role[role], part))
      return TRUE;
  return FALSE;
}

/* The last column of the memory table: the op at which memory is at its peak. */
enum { PEAK = WEFT_N_REPORT_PART };

static int
column_width (const weft_report *r, int part)
{
  size_t longest = strlen ("peak at");

  if (part < PEAK)
    return MAX (8, (int) strlen (weft_report_parts[part].word)) + 2;
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    longest = MAX (longest, strlen (r->role[role].peak_label));
  return (int) longest + 2;
}

/* The number of the first column after `first` that does not fit the terminal. At least column
 * `first` counts as fitting. */
static int
columns_end (const weft_report *r, int first, struct weft_report_style style)
{
  int used = INDENT, part;

  for (part = first; part <= PEAK; part++) {
    if (part < PEAK && !is_column (r, part))
      continue;
    used += column_width (r, part);
    if (used > style.columns && used > INDENT + column_width (r, part))
      break;
  }
  return part;
}

/* The columns of the memory table that are printed: `first` to `end` - 1. */
struct columns {
  int first, end;
};

/* Prints the names of the parts of memory, and below each name the character that stands for the
 * part in the bars. */
static void
print_heads (const weft_report *r, struct columns shown, GString *out)
{
  g_string_append_printf (out, "%*s", INDENT, "");
  for (int part = shown.first; part < MIN (shown.end, PEAK); part++)
    if (is_column (r, part))
      g_string_append_printf (out, "%*s", column_width (r, part), weft_report_parts[part].word);
  g_string_append_printf (out, "%s\n%*s", shown.end > PEAK ? "  peak at" : "", INDENT, "");
  for (int part = shown.first; part < MIN (shown.end, PEAK); part++)
    if (is_column (r, part))
      g_string_append_printf (out, "%*c", column_width (r, part), weft_report_parts[part].mark);
  g_string_append_c (out, '\n');
}

static void
print_parts (const weft_report *r, uint32_t role, struct columns shown, GString *out)
{
  const struct weft_report_role *row = &r->role[role];

  g_string_append_printf (out, "  stage %-*u", INDENT - 8, role);
  for (int part = shown.first; part < MIN (shown.end, PEAK); part++) {
    g_autofree char *bytes = weft_units_human (weft_report_part_bytes (row, part), "B");
    if (is_column (r, part))
      g_string_append_printf (out, "%*s", column_width (r, part), bytes);
  }
  if (shown.end > PEAK)
    g_string_append_printf (out, "  %s", row->peak_label);
  g_string_append_c (out, '\n');
}

/* Prints the memory by kind as a table. Columns that do not fit the terminal are printed as a
 * second table below. */
static void
print_kinds (const weft_report *r, struct weft_report_style style, GString *out)
{
  for (struct columns shown = { 0, 0 }; shown.end <= PEAK; shown.first = shown.end) {
    shown.end = columns_end (r, shown.first, style);
    print_heads (r, shown, out);
    for (uint32_t role = 0; role < r->plan->n_roles; role++)
      print_parts (r, role, shown, out);
  }
}

static void
print_role_bar (const weft_report *r, uint32_t role, struct weft_report_style style, GString *out)
{
  g_autofree char *bytes = weft_units_human (r->role[role].peak_bytes, "B");

  g_string_append_printf (out, "  stage %-*u%9s  ", INDENT - 8, role, bytes);
  print_bar (&r->role[role], MAX (r->capacity_bytes, r->peak_bytes),
             clamp_columns (style) - INDENT - 11, style.colour, out);
  g_string_append_c (out, '\n');
}

/* Prints the bytes of the pool that is registered with NCCL. */
static void
print_registered (const weft_report *r, uint32_t role, GString *out)
{
  g_autofree char *bytes = weft_units_human (r->role[role].registered_bytes, "B");

  if (r->role[role].registered_bytes)
    g_string_append_printf (out, "  stage %-*u%9s  of it registered with NCCL\n", INDENT - 8, role,
                            bytes);
}

/* Prints the freed blocks that a caching allocator does not return to the driver. */
static void
print_cached (const weft_report *r, uint32_t role, GString *out)
{
  g_autofree char *bytes = weft_units_human (r->role[role].cached_bytes, "B");

  if (r->role[role].cached_bytes)
    g_string_append_printf (out, "  stage %-*u%9s  more that the allocator keeps while it can\n",
                            INDENT - 8, role, bytes);
}

/* Prints the ops that wait for one kind of op: their number, the kind, and the seconds if there is
 * a timeline. */
static void
print_stall (const weft_report *r, const struct weft_memory_stall *w, GString *out)
{
  g_autofree char *held = weft_units_human (w->held_s, "s");

  g_string_append_printf (out, "%u for %s %s", w->ops, weft_lane_words[w->lane],
                          weft_memory_stall_word (w));
  if (r->timeline)
    g_string_append_printf (out, " (%s)", g_strstrip (held));
}

/* Prints how much communication overlap is lost because ops wait for memory. */
static void
print_stalls (const weft_report *r, uint32_t role, GString *out)
{
  const struct weft_memory_stalls *stalls = &r->role[role].stalls;
  g_autofree char *held = weft_units_human (stalls->held_s, "s");

  if (!stalls->n_op)
    return;
  g_string_append_printf (out, "  stage %-*u%9u  ops wait for memory, %u of them kernels",
                          INDENT - 8, role, stalls->n_op, stalls->n_kernel);
  if (r->timeline)
    g_string_append_printf (out, ", for %s in all", g_strstrip (held));
  for (guint i = 0; i < stalls->cause->len; i++) {
    g_string_append (out, i ? ", " : ": ");
    print_stall (r, &g_array_index (stalls->cause, struct weft_memory_stall, i), out);
  }
  g_string_append_c (out, '\n');
}

/* Prints the memory that initialisation needs before the first step. */
static void
print_init (const weft_report *r, uint32_t role, GString *out)
{
  uint64_t bytes = r->role[role].init_bytes;
  g_autofree char *text = weft_units_human (bytes, "B");

  if (bytes)
    g_string_append_printf (
        out, "  stage %-*u%9s  during initialisation, %s\n", INDENT - 8, role, text,
        r->plan->job.strategy.init_fsdp_with_meta_device ? "unit by unit" : "from a whole module");
}

/* Prints the host memory that the plan uses, if any: bytes per node, bytes per rank, and bytes by
 * kind. */
static void
print_host (const weft_report *r, GString *out)
{
  g_autofree char *node = weft_units_human (r->host_bytes, "B"),
                  *capacity = weft_units_human (r->host_capacity_bytes, "B");

  if (r->host_bytes == 0)
    return;
  g_string_append_printf (out, "%-*s%*s of %s per node: %s\n", LABEL, "host memory", VALUE, node,
                          capacity,
                          r->host_bytes <= r->host_capacity_bytes ? "fits" : "DOES NOT FIT");
  for (uint32_t role = 0; role < r->plan->n_roles; role++) {
    const struct weft_report_role *row = &r->role[role];
    g_autofree char *rank = weft_units_human (row->host_bytes, "B");
    g_string_append_printf (out, "  stage %-*u%9s per rank:", INDENT - 8, role, rank);
    for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++) {
      g_autofree char *bytes = weft_units_human (row->host_by_kind[kind], "B");
      if (row->host_by_kind[kind])
        g_string_append_printf (out, "  %s %s", weft_buf_kind_words[kind], bytes);
    }
    g_string_append_c (out, '\n');
  }
}

/* Prints whether the plan fits in GPU memory; if not, also its bytes without padding. In a plan
 * that does not fit, ops do not wait for memory, so it has more padding than it needs. */
static void
print_verdict (const weft_report *r, GString *out)
{
  g_autofree char *least = weft_units_human (weft_plan_least_bytes (r->plan), "B");

  if (r->peak_bytes <= r->capacity_bytes)
    g_string_append (out, "fits\n");
  else
    g_string_append_printf (out, "DOES NOT FIT (%s without padding)\n", least);
}

void
weft_report_print_memory (const weft_report *r, struct weft_report_style style, GString *out)
{
  g_autofree char *capacity = weft_units_human (r->capacity_bytes, "B");
  g_autofree char *peak = weft_units_human (r->peak_bytes, "B");

  g_string_append_printf (out, "%-*s%*s of %s: ", LABEL, "memory", VALUE, peak, capacity);
  print_verdict (r, out);
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    print_role_bar (r, role, style, out);
  print_kinds (r, style, out);
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    print_registered (r, role, out);
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    print_cached (r, role, out);
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    print_stalls (r, role, out);
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    print_init (r, role, out);
  print_host (r, out);
}

/* -------------------------------------------------------------------- pipeline */

/* The character that stands for a phase: microbatch m has character `first` + m % `period`; with
 * `period` 0 all microbatches have character `first`. */
static const struct {
  char first, period;
  enum weft_ink ink;
} looks[WEFT_N_PHASE] = {
  [WEFT_PHASE_FORWARD] = { '0', 10, WEFT_INK_CYAN },
  [WEFT_PHASE_BACKWARD] = { 'a', 26, WEFT_INK_GREEN },
  [WEFT_PHASE_INPUT_GRAD] = { 'a', 26, WEFT_INK_GREEN },
  [WEFT_PHASE_WEIGHT_GRAD] = { 'A', 26, WEFT_INK_MAGENTA },
  [WEFT_PHASE_RECOMPUTE] = { 'a', 26, WEFT_INK_GREEN },
  [WEFT_PHASE_REDUCE] = { '#', 0, WEFT_INK_YELLOW },
  [WEFT_PHASE_FINALIZE] = { '#', 0, WEFT_INK_YELLOW },
  [WEFT_PHASE_OPTIMIZER] = { '#', 0, WEFT_INK_YELLOW },
};

/* Position, in the ops of a lane, of the first op that ends after `now`. */
static uint32_t
seek (const weft_timeline *t, const weft_program *p, uint32_t row, int lane, double now)
{
  uint32_t low = 0, high = p->lane_n[lane];

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (t->end[row][p->lane_ops[lane][middle]] > now)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/* The op that runs on a lane at time `now`; WEFT_NO_OP if none runs. */
static uint32_t
running (const weft_timeline *t, const weft_program *p, uint32_t row, int lane, double now)
{
  uint32_t place = seek (t, p, row, lane, now);
  if (place == p->lane_n[lane])
    return WEFT_NO_OP;
  uint32_t op = p->lane_ops[lane][place];
  return t->begin[row][op] <= now ? op : WEFT_NO_OP;
}

static gboolean
is_sending (const weft_timeline *t, const weft_program *p, uint32_t row, double now)
{
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (weft_report_is_axis (lane) && running (t, p, row, lane, now) != WEFT_NO_OP)
      return TRUE;
  return FALSE;
}

static char
mark_at (const weft_report *r, uint32_t row, double now, enum weft_ink *ink)
{
  const weft_program *p = r->plan->role[r->timeline->role[row]];
  uint32_t op = running (r->timeline, p, row, WEFT_LANE_GPU, now);
  gboolean sends = op == WEFT_NO_OP && is_sending (r->timeline, p, row, now);

  *ink = sends ? WEFT_INK_RED : WEFT_INK_GREY;
  if (op == WEFT_NO_OP)
    return sends ? '~' : '.';
  const struct weft_op *at = &p->op[op];
  gboolean bound = at->micro != WEFT_NO_MICRO && looks[at->phase].period;
  *ink = bound ? looks[at->phase].ink : WEFT_INK_YELLOW;
  return bound ? looks[at->phase].first + at->micro % looks[at->phase].period : '#';
}

static int
row_of_role (const weft_timeline *t, uint32_t role)
{
  for (uint32_t row = 0; row < t->n; row++)
    if (t->role[row] == role)
      return row;
  return -1;
}

static void
print_row (const weft_report *r, uint32_t row, int width, gboolean colour, GString *out)
{
  enum weft_ink now = WEFT_INK_NONE, ink;

  for (int i = 0; i < width; i++) {
    char mark = mark_at (r, row, (i + 0.5) / width * r->timeline->seconds, &ink);
    put_mark (out, mark, colour ? ink : WEFT_INK_NONE, &now);
  }
  end_marks (out, now);
  g_string_append_c (out, '\n');
}

void
weft_report_print_pipeline (const weft_report *r, struct weft_report_style style, GString *out)
{
  const int width = clamp_columns (style) - INDENT;
  g_autofree char *column = weft_units_human (r->timeline->seconds / width, "s");

  g_string_append_printf (out,
                          "timeline, one column is %s: a digit is the forward pass of that"
                          " microbatch,\na letter the backward pass, # the update, ~ a wait for"
                          " communication, . idle\n",
                          column);
  for (uint32_t role = 0; role < r->plan->n_roles; role++) {
    int row = row_of_role (r->timeline, role);
    if (row < 0)
      continue;
    g_string_append_printf (out, "  stage %-*u", INDENT - 8, role);
    print_row (r, row, width, style.colour, out);
  }
}

static void
print_engine (const weft_timeline *t, GString *out)
{
  g_autofree char *wall = weft_units_human (t->wall_seconds, "s");

  g_string_append_printf (
      out, "\nexecutor %s%s%s; observed ranks: %u; %" G_GUINT64_FORMAT " ops in %s\n", t->executor,
      *t->engine ? ", SimGrid " : "", t->engine, t->n, t->n_ops, wall);
}

void
weft_report_print (const weft_report *r, struct weft_report_style style, GString *out)
{
  weft_report_print_job (&r->plan->job, out);
  g_string_append_c (out, '\n');
  print_iteration (r, out);
  print_overlap (r, out);
  print_axes (r, style, out);
  print_startup (r, out);
  g_string_append_c (out, '\n');
  weft_report_print_memory (r, style, out);
  g_string_append_c (out, '\n');
  weft_report_print_pipeline (r, style, out);
  print_engine (r->timeline, out);
}
