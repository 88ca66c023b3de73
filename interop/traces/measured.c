#include "interop/traces/measured.h"
#include "core/base/error.h"
#include "interop/traces/axes.h"
#include <math.h>
#include <string.h>

static struct weft_trace_rank *
rank_at (const weft_trace *trace, guint i)
{
  return g_ptr_array_index (trace->rank, i);
}

static const struct weft_trace_kernel *
kernel_at (const struct weft_trace_rank *rank, guint i)
{
  return &g_array_index (rank->kernel, struct weft_trace_kernel, i);
}

/* ------------------------------------------------------------------------- windows */

static struct weft_measured_window
whole_window (const struct weft_trace_rank *rank)
{
  struct weft_measured_window w = { 0, kernel_at (rank, 0)->begin, kernel_at (rank, 0)->end };

  for (guint i = 0; i < rank->kernel->len; i++)
    w.end = MAX (w.end, kernel_at (rank, i)->end);
  return w;
}

/* The step of a trace of weft sim. It lasts from 0 to the last end of any rank, because all ranks
 * have one clock. */
static struct weft_measured_window
own_window (const weft_trace *trace)
{
  struct weft_measured_window w = { 0 };

  for (guint i = 0; i < trace->rank->len; i++)
    w.end = MAX (w.end, whole_window (rank_at (trace, i)).end);
  return w;
}

/* First begin and last end of the kernels that the host launched in a range; FALSE: there is
 * none. */
static gboolean
kernels_of_range (const struct weft_trace_rank *rank, const struct weft_trace_step *range,
                  struct weft_measured_window *w)
{
  *w = (struct weft_measured_window){ range->number, G_MAXINT64, G_MININT64 };
  for (guint i = 0; i < rank->kernel->len; i++) {
    const struct weft_trace_kernel *k = kernel_at (rank, i);
    int64_t at = k->launched == WEFT_TRACE_NONE ? k->begin : k->launched;
    if (at < range->begin || at >= range->end)
      continue;
    w->begin = MIN (w->begin, k->begin);
    w->end = MAX (w->end, k->end);
  }
  return w->begin < w->end;
}

/* The steps of a GPU, in order of time. The caller frees the array of struct
 * weft_measured_window. */
static GArray *
windows_of (const struct weft_trace_rank *rank)
{
  GArray *windows = g_array_new (FALSE, FALSE, sizeof (struct weft_measured_window));

  for (guint i = 0; i < rank->step->len; i++) {
    const struct weft_trace_step *s = &g_array_index (rank->step, struct weft_trace_step, i);
    struct weft_measured_window w,
        *last = windows->len
                    ? &g_array_index (windows, struct weft_measured_window, windows->len - 1)
                    : NULL;
    if ((last && last->number == s->number) || !kernels_of_range (rank, s, &w))
      continue;
    w.end = MAX (w.end, w.begin + (s->end - s->begin));
    if (last && last->number + 1 == s->number)
      last->end = MAX (w.begin, last->begin);
    g_array_append_val (windows, w);
  }
  return windows;
}

static const struct weft_measured_window *
window_numbered (const GArray *windows, int64_t number)
{
  for (guint i = 0; i < windows->len; i++) {
    const struct weft_measured_window *w = &g_array_index (windows, struct weft_measured_window, i);
    if (w->number == number)
      return w;
  }
  return NULL;
}

/* ------------------------------------------------------------------------ choosing */

/* A step that all ranks have, and its mean length over the ranks. */
struct common {
  int64_t number;
  double length;
};

static int
by_length (const void *a, const void *b)
{
  const struct common *x = a, *y = b;
  return (x->length > y->length) - (x->length < y->length);
}

/* The steps that all ranks have. The caller frees the array of struct common. */
static GArray *
common_steps (GArray *const *windows, guint n)
{
  GArray *common = g_array_new (FALSE, FALSE, sizeof (struct common));

  for (guint i = 0; i < windows[0]->len; i++) {
    struct common c = { g_array_index (windows[0], struct weft_measured_window, i).number, 0 };
    guint have = 0;
    for (guint rank = 0; rank < n; rank++) {
      const struct weft_measured_window *w = window_numbered (windows[rank], c.number);
      have += w != NULL;
      c.length += w ? (double) (w->end - w->begin) / n : 0;
    }
    if (have == n)
      g_array_append_val (common, c);
  }
  return common;
}

static char *
steps_text (const GArray *common)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < common->len && i < 12; i++)
    g_string_append_printf (text, "%s%" G_GINT64_FORMAT, i ? ", " : "",
                            g_array_index (common, struct common, i).number);
  if (common->len > 12)
    g_string_append_printf (text, " and %u more", common->len - 12);
  return g_string_free (text, FALSE);
}

static gboolean
no_steps (const weft_trace *trace, GError **error)
{
  return weft_bad_input (error,
                         "%s: found no steps that all its ranks have, wanted annotations like "
                         "ProfilerStep#3, or NVTX ranges like \"step 3\": give --step-name NAME, "
                         "--step all, or --step BEGIN:END in seconds",
                         trace->name);
}

/* Chooses one of the numbered steps: the step that the user named, or the one of median length. */
static gboolean
choose_number (const weft_trace *trace, GArray *common, const char *asked, int64_t *number,
               GError **error)
{
  if (common->len == 0)
    return no_steps (trace, error);
  g_autofree char *all = steps_text (common);
  if (!asked) {
    g_array_sort (common, by_length);
    *number = g_array_index (common, struct common, (common->len - 1) / 2).number;
    return TRUE;
  }
  char *end;
  *number = g_ascii_strtoll (asked, &end, 10);
  for (guint i = 0; *asked && !*end && i < common->len; i++)
    if (g_array_index (common, struct common, i).number == *number)
      return TRUE;
  return weft_bad_input (error,
                         "--step: found \"%s\", wanted one of the steps %s, or \"all\", or "
                         "seconds BEGIN:END",
                         asked, all);
}

/* Reads "0.5:1.5"; FALSE if the text is no window. */
static gboolean
read_seconds (const char *text, double *from, double *to)
{
  char *end;

  *from = g_ascii_strtod (text, &end);
  if (end == text || *end != ':')
    return FALSE;
  text = end + 1;
  *to = g_ascii_strtod (text, &end);
  return end != text && !*end && *from >= 0 && *from < *to && *to < 1e9;
}

/* Sets a window for each rank. The caller frees *chosen. */
static gboolean
choose_windows (const weft_trace *trace, const char *asked, struct weft_measured_window *chosen,
                char **text, GError **error)
{
  guint n = trace->rank->len;
  g_autoptr (GPtrArray) lists = g_ptr_array_new_with_free_func ((GDestroyNotify) g_array_unref);
  double from = 0, to = 0;
  gboolean some = asked && read_seconds (asked, &from, &to), own = rank_at (trace, 0)->own;
  int64_t number = 0;

  for (guint i = 0; i < n; i++) {
    chosen[i] = own ? own_window (trace) : whole_window (rank_at (trace, i));
    if (some)
      chosen[i] = (struct weft_measured_window){ 0, chosen[i].begin + (int64_t) (from * 1e9),
                                                 chosen[i].begin + (int64_t) (to * 1e9) };
    g_ptr_array_add (lists, windows_of (rank_at (trace, i)));
  }
  if (some || (asked && strcmp (asked, "all") == 0) || (!asked && own)) {
    *text = g_strdup (some ? asked : "the whole trace");
    return TRUE;
  }
  g_autoptr (GArray) common = common_steps ((GArray *const *) lists->pdata, n);
  g_autofree char *all = steps_text (common);
  if (!choose_number (trace, common, asked, &number, error))
    return FALSE;
  for (guint i = 0; i < n; i++)
    chosen[i] = *window_numbered (lists->pdata[i], number);
  *text = g_strdup_printf ("step %" G_GINT64_FORMAT "%s%s", number,
                           asked ? ", of " : ", of median length, of ", all);
  return TRUE;
}

/* ----------------------------------------------------------------------- the mean */

/* The activities of a rank that reach into a window, in seconds since its begin. */
static GArray *
activities_of (const struct weft_trace_rank *rank, const struct weft_measured_window *w)
{
  GArray *list = g_array_new (FALSE, FALSE, sizeof (struct weft_activity));

  for (guint i = 0; i < rank->kernel->len; i++) {
    const struct weft_trace_kernel *k = kernel_at (rank, i);
    if (k->end <= w->begin || k->begin >= w->end || k->end == k->begin ||
        k->axis == WEFT_LANE_HOST) /* in traces of weft sim: ops that run on the CPU */
      continue;
    const struct weft_activity a = {
      .begin = (double) (k->begin - w->begin) * 1e-9,
      .end = (double) (k->end - w->begin) * 1e-9,
      .launched = k->launched == WEFT_TRACE_NONE ? NAN : (double) (k->launched - w->begin) * 1e-9,
      .work = k->work,
      .axis = k->axis,
      .silent = k->silent,
    };
    g_array_append_val (list, a);
  }
  return list;
}

static void
add_unknown (weft_measured *m, const struct weft_trace_kernel *k, double weight)
{
  struct weft_measured_name one = { k->name, weight, weight * (double) (k->end - k->begin) * 1e-9 };

  for (guint i = 0; i < m->unknown->len; i++) {
    struct weft_measured_name *u = &g_array_index (m->unknown, struct weft_measured_name, i);
    if (u->name == k->name) {
      u->calls += one.calls;
      u->seconds += one.seconds;
      return;
    }
  }
  g_array_append_val (m->unknown, one);
}

static int
by_seconds (const void *a, const void *b)
{
  const struct weft_measured_name *x = a, *y = b;
  return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static void
note_kernels (weft_measured *m, uint32_t rank, double seconds)
{
  for (int i = 0; i < 2; i++)
    if (isnan (m->kernels_s[i]) || (i ? seconds > m->kernels_s[i] : seconds < m->kernels_s[i])) {
      m->kernels_s[i] = seconds;
      m->kernels_rank[i] = rank;
    }
}

static void
add_rank (weft_measured *m, const weft_plan *plan, struct weft_trace_rank *rank,
          const struct weft_measured_window *w, double weight)
{
  uint32_t role = weft_mesh_stage (&plan->mesh, (uint32_t) rank->rank);
  g_autoptr (GArray) list = activities_of (rank, w);
  struct weft_breakdown one = weft_breakdown_of (list, 0, (double) (w->end - w->begin) * 1e-9);

  note_kernels (m, (uint32_t) rank->rank, weft_breakdown_compute (&one));
  weft_breakdown_add (&m->mean, &one, weight);
  weft_breakdown_add_flops (&m->mean, plan, role, weight);
  for (guint i = 0; i < rank->kernel->len; i++) {
    const struct weft_trace_kernel *k = kernel_at (rank, i);
    if (k->work == WEFT_WORK_OTHER && k->begin >= w->begin && k->begin < w->end)
      add_unknown (m, k, weight);
  }
}

static gboolean
check_ranks (const weft_plan *plan, const weft_trace *trace, GError **error)
{
  for (guint i = 0; i < trace->rank->len; i++) {
    const struct weft_trace_rank *rank = rank_at (trace, i);
    if (rank->world && rank->world != plan->mesh.n_ranks)
      return weft_bad_input (error,
                             "%s: found a trace of a job with %" G_GINT64_FORMAT
                             " ranks, wanted %u, as in the job to compare with",
                             rank->file, rank->world, plan->mesh.n_ranks);
    if (rank->rank < 0 || rank->rank >= plan->mesh.n_ranks)
      return weft_bad_input (error,
                             "%s: found rank %" G_GINT64_FORMAT ", wanted a rank below %u, "
                             "the ranks of the job to compare with",
                             rank->file, rank->rank, plan->mesh.n_ranks);
    if (rank->kernel->len == 0)
      return weft_bad_input (error, "%s: found no kernels", rank->file);
  }
  return TRUE;
}

/* Adds a note if the name of a recorded GPU and the name of the cluster's GPU have no word in
 * common (such as "H100" in "NVIDIA H100 80GB HBM3"). */
static void
note_gpu (weft_measured *m, const weft_plan *plan, const weft_trace *trace)
{
  const char *wanted = g_quark_to_string ((GQuark) plan->job.cluster.f.gpu_name),
             *found = rank_at (trace, 0)->gpu;

  if (!found || !wanted)
    return;
  g_auto (GStrv) words = g_strsplit (found, " ", -1);
  for (char **word = words; *word; word++)
    if (strpbrk (*word, "0123456789") && strstr (wanted, *word))
      return;
  g_ptr_array_add (
      m->note, g_strdup_printf ("the trace is from %s, the job's cluster has %s", found, wanted));
}

weft_measured *
weft_measured_new (const weft_plan *plan, weft_trace *trace, const char *step, GError **error)
{
  guint n = trace->rank->len;
  g_autofree struct weft_measured_window *window = g_new0 (struct weft_measured_window, n);
  g_autofree uint32_t *rows = g_new0 (uint32_t, plan->n_roles);
  g_autoptr (weft_axes) axes = weft_axes_new (plan);
  uint32_t watched = 0;
  g_autofree char *text = NULL;

  if (!check_ranks (plan, trace, error) || !choose_windows (trace, step, window, &text, error))
    return NULL;
  weft_measured *m = g_new0 (weft_measured, 1);
  m->n_ranks = n;
  m->window = g_memdup2 (window, n * sizeof *window);
  m->kernels_s[0] = m->kernels_s[1] = NAN;
  m->roles = g_new0 (gboolean, plan->n_roles);
  m->step = g_steal_pointer (&text);
  m->unknown = g_array_new (FALSE, FALSE, sizeof (struct weft_measured_name));
  m->note = g_ptr_array_new_with_free_func (g_free);
  weft_axes_set_described (axes, trace);
  for (guint i = 0; i < n; i++)
    watched += rows[weft_mesh_stage (&plan->mesh, (uint32_t) rank_at (trace, i)->rank)]++ == 0;
  for (guint i = 0; i < n; i++) {
    struct weft_trace_rank *rank = rank_at (trace, i);
    uint32_t role = weft_mesh_stage (&plan->mesh, (uint32_t) rank->rank);
    double weight = 1.0 / rows[role] / watched;
    m->roles[role] = TRUE;
    m->counted_s +=
        weight * weft_axes_set_counted (axes, rank, role, window[i].begin, window[i].end);
    add_rank (m, plan, rank, &window[i], weight);
  }
  g_array_sort (m->unknown, by_seconds);
  note_gpu (m, plan, trace);
  return m;
}

void
weft_measured_free (weft_measured *m)
{
  g_free (m->roles);
  g_free (m->window);
  g_free (m->step);
  g_array_unref (m->unknown);
  g_ptr_array_unref (m->note);
  g_free (m);
}
