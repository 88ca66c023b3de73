#include "train/measure.h"
#include "train/comm_bench.h"
#include "train/state.h"

#define WARM_UP 2
#define COMM_STEPS 5
#define LR 1e-4 /* a small learning rate, so that weights stay near their initial values */

/* One row of the cost table while it is measured. `sum` and `n`: total seconds and number of those
 * ops of the current plan that belong to the row. */
struct row {
  struct weft_measurement m;
  /* double: for each measured plan with ops of this row, the mean time of these ops in seconds */
  GArray *seconds;
  double sum;
  uint32_t n;
};

struct weft_measure {
  const struct weft_exec_ops *ops;
  GArray *row; /* struct row */
};

static void
row_clear (gpointer row)
{
  g_array_unref (((struct row *) row)->seconds);
}

weft_measure *
weft_measure_new (const struct weft_exec_ops *ops)
{
  weft_measure *m = g_new0 (weft_measure, 1);

  g_assert (ops->flags & WEFT_EXEC_TIMES && ops->flags & WEFT_EXEC_NUMBERS);
  m->ops = ops;
  m->row = g_array_new (FALSE, FALSE, sizeof (struct row));
  g_array_set_clear_func (m->row, row_clear);
  return m;
}

void
weft_measure_free (weft_measure *m)
{
  g_array_unref (m->row);
  g_free (m);
}

/* ---------------------------------------------------------------------- rows */

static struct row *
row_at (const weft_measure *m, guint i)
{
  return &g_array_index (m->row, struct row, i);
}

static gint
compare_keys (const struct weft_measurement *a, const struct weft_measurement *b)
{
  const uint32_t one[] = { a->kind, a->shape.dtype, a->shape.out_dtype, a->ranks };
  const uint32_t two[] = { b->kind, b->shape.dtype, b->shape.out_dtype, b->ranks };

  for (unsigned i = 0; i < G_N_ELEMENTS (one); i++)
    if (one[i] != two[i])
      return one[i] < two[i] ? -1 : 1;
  for (unsigned i = 0; i < G_N_ELEMENTS (a->shape.dim); i++)
    if (a->shape.dim[i] != b->shape.dim[i])
      return a->shape.dim[i] < b->shape.dim[i] ? -1 : 1;
  return 0;
}

static uint32_t
find_row (weft_measure *m, const struct weft_measurement *key)
{
  struct row row = { .m = *key };

  for (guint i = 0; i < m->row->len; i++)
    if (compare_keys (&row_at (m, i)->m, key) == 0)
      return i;
  row.seconds = g_array_new (FALSE, FALSE, sizeof (double));
  g_array_append_val (m->row, row);
  return m->row->len - 1;
}

static void
note (weft_measure *m, const struct weft_measurement *key, double seconds)
{
  struct row *row = row_at (m, find_row (m, key));

  row->sum += seconds;
  row->n++;
}

static void
close_plan (weft_measure *m)
{
  for (guint i = 0; i < m->row->len; i++) {
    struct row *row = row_at (m, i);
    double mean = row->n ? row->sum / row->n : 0;
    if (row->n)
      g_array_append_val (row->seconds, mean);
    row->sum = row->n = 0;
  }
}

static gint
compare_doubles (gconstpointer a, gconstpointer b)
{
  double x = *(const double *) a, y = *(const double *) b;
  return x < y ? -1 : x > y;
}

static double
median (GArray *seconds)
{
  g_array_sort (seconds, compare_doubles);
  guint n = seconds->len;
  return 0.5 *
         (g_array_index (seconds, double, (n - 1) / 2) + g_array_index (seconds, double, n / 2));
}

static gint
compare_rows (gconstpointer a, gconstpointer b)
{
  return compare_keys (a, b);
}

GArray *
weft_measure_rows (const weft_measure *m)
{
  GArray *rows = g_array_new (FALSE, FALSE, sizeof (struct weft_measurement));

  for (guint i = 0; i < m->row->len; i++) {
    struct weft_measurement out = row_at (m, i)->m;
    if (row_at (m, i)->seconds->len == 0)
      continue;
    out.seconds = median (row_at (m, i)->seconds);
    g_array_append_val (rows, out);
  }
  g_array_sort (rows, compare_rows);
  return rows;
}

/* ------------------------------------------------------------------ timelines */

/* The measured steps of one plan, without warm-up steps. */
struct steps {
  const weft_plan *plan;
  GPtrArray *timeline;
  double recording; /* seconds that the recording of times adds to each op */
};

static double
median_over_steps (const struct steps *s, uint32_t row, uint32_t op, GArray *scratch)
{
  g_array_set_size (scratch, 0);
  for (guint i = 0; i < s->timeline->len; i++) {
    const weft_timeline *t = s->timeline->pdata[i];
    double took = t->end[row][op] - t->begin[row][op];
    g_array_append_val (scratch, took);
  }
  return median (scratch);
}

/* Seconds that the executor needs between two consecutive ops of the lane `gpu`: the median of all
 * gaps. Only few ops wait for another lane, so their gaps do not change the median. */
static double
gap_between (const struct steps *s, uint32_t row, GArray *scratch)
{
  const weft_timeline *t = s->timeline->pdata[s->timeline->len / 2];
  const weft_program *p = s->plan->role[t->role[row]];

  g_array_set_size (scratch, 0);
  for (uint32_t i = 0; i + 1 < p->lane_n[WEFT_LANE_GPU]; i++) {
    const uint32_t *op = &p->lane_ops[WEFT_LANE_GPU][i];
    double gap = t->begin[row][op[1]] - t->end[row][op[0]];
    g_array_append_val (scratch, gap);
  }
  return scratch->len ? median (scratch) : 0;
}

/* Sets the key of the cost table row to which an op belongs. FALSE: the op is not measured. */
typedef gboolean (*key_of) (const weft_plan *plan, const weft_program *p, uint32_t op,
                            struct weft_measurement *key);

/* Adds the times of one rank's ops to the rows. The overhead of recording is an average, so
 * subtracting it never lowers the time of an op below half of the measured time. */
static void
note_row (weft_measure *m, const struct steps *s, uint32_t row, key_of of)
{
  const weft_program *p = s->plan->role[((weft_timeline *) s->timeline->pdata[0])->role[row]];
  g_autoptr (GArray) scratch = g_array_new (FALSE, FALSE, sizeof (double));
  double gap = gap_between (s, row, scratch) - s->recording;
  struct weft_measurement key = { 0 };

  for (uint32_t op = 0; op < p->n_op; op++) {
    if (!of (s->plan, p, op, &key))
      continue;
    double took = median_over_steps (s, row, op, scratch);
    if (weft_op_info[key.kind].class == WEFT_CLASS_COMPUTE)
      took = MAX (took + gap, 0.5 * took);
    note (m, &key, took);
  }
}

static void
note_steps (weft_measure *m, const struct steps *s, key_of of)
{
  const weft_timeline *first = s->timeline->pdata[0];

  for (uint32_t row = 0; row < first->n; row++)
    note_row (m, s, row, of);
  close_plan (m);
}

/* How the steps of a plan are measured. */
struct trial {
  struct weft_control control;
  void (*fill) (weft_exec *x); /* fills the buffers of the executor before the first step */
  uint32_t least;              /* smallest number of steps to measure */
  double seconds;              /* smallest total time of all measured steps in seconds */
  key_of of;
};

/* Runs warm-up steps, then at least trial->least steps, until the steps have taken trial->seconds
 * in total. */
static gboolean
run_steps (weft_exec *x, struct trial *trial, GPtrArray *timeline, GError **error)
{
  uint64_t *step = &trial->control.step;
  double spent = 0;

  for (*step = 1; *step <= WARM_UP + trial->least || spent < trial->seconds; ++*step) {
    weft_timeline *t = weft_exec_step (x, error);
    if (!t)
      return FALSE;
    spent += MAX (t->seconds, t->wall_seconds);
    if (*step > WARM_UP)
      g_ptr_array_add (timeline, t);
    else
      weft_timeline_free (t);
  }
  return TRUE;
}

static GPtrArray *
time_plan (weft_measure *m, const weft_plan *plan, struct trial *trial, gboolean times,
           GError **error)
{
  const struct weft_exec_options options = { .control = &trial->control,
                                             .times = times,
                                             .total = !times };
  g_autoptr (GPtrArray) timeline =
      g_ptr_array_new_with_free_func ((GDestroyNotify) weft_timeline_free);
  weft_exec *x = m->ops->open (plan, &options, error);

  if (!x)
    return NULL;
  trial->fill (x);
  gboolean ok = run_steps (x, trial, timeline, error);
  m->ops->close (x);
  return ok ? g_steal_pointer (&timeline) : NULL;
}

static double
step_seconds (const GPtrArray *timeline)
{
  g_autoptr (GArray) seconds = g_array_new (FALSE, FALSE, sizeof (double));

  for (guint i = 0; i < timeline->len; i++)
    g_array_append_val (seconds, ((weft_timeline *) timeline->pdata[i])->seconds);
  return median (seconds);
}

/* Sets s->recording, the time that recording adds to an op: the time that recording adds to a step,
 * divided by the number of kernels of the rank with the most kernels. */
static gboolean
find_recording (weft_measure *m, struct steps *s, struct trial *trial, GError **error)
{
  g_autoptr (GPtrArray) alone = time_plan (m, s->plan, trial, FALSE, error);
  uint32_t n = 1;

  if (!alone)
    return FALSE;
  for (uint32_t role = 0; role < s->plan->n_roles; role++)
    n = MAX (n, s->plan->role[role]->lane_n[WEFT_LANE_GPU]);
  s->recording = MAX (step_seconds (s->timeline) - step_seconds (alone), 0) / n;
  return TRUE;
}

static gboolean
measure_plan (weft_measure *m, const weft_plan *plan, struct trial *trial, GError **error)
{
  g_autoptr (GPtrArray) timeline = time_plan (m, plan, trial, TRUE, error);
  struct steps steps = { plan, timeline, 0 };

  if (!timeline || (m->ops->flags & WEFT_EXEC_STAMPS && !find_recording (m, &steps, trial, error)))
    return FALSE;
  note_steps (m, &steps, trial->of);
  return TRUE;
}

/* -------------------------------------------------------------------- kernels */

static int32_t *
random_tokens (const struct weft_job *job)
{
  uint64_t n = (uint64_t) (job->train.global_batch_size * (job->model.seq_length + 1));
  int32_t *tokens = g_new (int32_t, n);
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);

  for (uint64_t i = 0; i < n; i++)
    tokens[i] = g_rand_int_range (rand, 0, (gint32) job->model.vocab_size);
  return tokens;
}

static gboolean
kernel_key (const weft_plan *plan, const weft_program *p, uint32_t op, struct weft_measurement *key)
{
  *key = (struct weft_measurement){ .kind = p->op[op].kind,
                                    .ranks = plan->mesh.n_ranks,
                                    .shape = *weft_op_shape (p, op) };
  return weft_op_info[key->kind].class == WEFT_CLASS_COMPUTE && key->kind != WEFT_OP_RELEASE;
}

static void
fill_weights (weft_exec *x)
{
  g_autoptr (weft_state) state = weft_state_new (x);
  weft_state_init (state, 1);
}

gboolean
weft_measure_steps (weft_measure *m, const weft_plan *plan, uint32_t least, double seconds,
                    GError **error)
{
  g_autofree int32_t *tokens = random_tokens (&plan->job);
  struct trial trial = { .control = { .lr = LR,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .epsilon = 1e-8,
                                      .weight_decay = 0.1,
                                      .loss_scale = 1,
                                      .clip_grad = plan->job.train.clip_grad,
                                      .tokens = tokens },
                         .fill = fill_weights,
                         .least = least,
                         .seconds = seconds,
                         .of = kernel_key };

  return measure_plan (m, plan, &trial, error);
}

/* -------------------------------------------------------------- communication */

/* Sets the key of a communication op. The time of a send is that of its receive: a send is complete
 * when the next stage has the data. */
static gboolean
comm_key (const weft_plan *plan, const weft_program *p, uint32_t op, struct weft_measurement *key)
{
  gboolean received = p->op[op].kind == WEFT_OP_RECV;

  *key = (struct weft_measurement){
    .kind = received ? WEFT_OP_SEND : p->op[op].kind,
    .ranks = received ? 2 : weft_mesh_group_size (&plan->mesh, p->op[op].group),
    .shape = *weft_op_shape (p, op)
  };
  if (weft_op_info[key->kind].class == WEFT_CLASS_COPY)
    key->ranks = 1;
  return p->op[op].kind != WEFT_OP_SEND && p->op[op].micro > 0;
}

static gboolean
run_comm (weft_measure *m, const weft_plan *plan, GError **error)
{
  struct trial trial = { .fill = weft_comm_bench_fill, .least = COMM_STEPS, .of = comm_key };

  return measure_plan (m, plan, &trial, error);
}

gboolean
weft_measure_comm (weft_measure *m, const weft_plan *plan, GError **error)
{
  g_autoptr (weft_plan) bench = weft_comm_bench_of_plan (plan, error);

  return bench && run_comm (m, bench, error);
}

gboolean
weft_measure_host_copies (weft_measure *m, const struct weft_job *job, GError **error)
{
  g_autoptr (weft_plan) copies = weft_comm_bench_of_host (job, error);

  return copies && run_comm (m, copies, error);
}

gboolean
weft_measure_comm_sizes (weft_measure *m, const struct weft_job *job, uint32_t ranks,
                         GError **error)
{
  g_autoptr (weft_plan) groups = weft_comm_bench_of_group (job, ranks, error);

  if (!groups || !run_comm (m, groups, error))
    return FALSE;
  if (ranks != 2)
    return TRUE;
  g_autoptr (weft_plan) stages = weft_comm_bench_of_stages (job, error);
  return stages && run_comm (m, stages, error);
}
