#include "exec_gpu/exec_gpu.h"
#include "core/base/error.h"
#include "core/job/collectives.h"
#include "exec_gpu/arena.h"
#include "exec_gpu/collectives.h"
#include "exec_gpu/comms.h"
#include "exec_gpu/counted.h"
#include "exec_gpu/issue.h"
#include "exec_gpu/machine.h"
#include "exec_gpu/order.h"
#include "exec_gpu/reserved.h"
#include "exec_gpu/staging.h"
#include "exec_gpu/step.h"
#include "exec_gpu/traced.h"
#include "kernels/team.h"
#include "launch/rendezvous.h"
#include <string.h>

/* ------------------------------------------------------------------------ closing */

static void
free_join (gpointer data)
{
  struct weft_gpu_join *join = data;

  g_free ((void *) (uintptr_t) join->term);
  g_free (join);
}

static void
free_exchange (gpointer data)
{
  struct weft_gpu_exchange *x = data;

  g_free ((void *) (uintptr_t) x->from);
  g_free ((void *) (uintptr_t) x->send);
  g_free ((void *) (uintptr_t) x->to);
  g_free (x);
}

static void
clear_score (struct gpu_script *s)
{
  g_array_unref (s->call);
  g_array_unref (s->kernel);
  g_array_unref (s->host);
  g_array_unref (s->copy);
  g_array_unref (s->collective);
  g_array_unref (s->transfer);
  g_ptr_array_unref (s->join);
  g_ptr_array_unref (s->exchange);
  g_ptr_array_unref (s->counted);
}

static void
clear_rank (struct gpu_rank *r)
{
  if (r->here) {
    gpu_staging_close (r);
    gpu_arena_close (r);
  }
  gpu_order_close (r);
  weft_team_free (r->team);
  weft_bind_clear (&r->bind);
  g_free (r->issued);
}

void
weft_exec_gpu_close (weft_exec *x)
{
  struct gpu_machine *m = (struct gpu_machine *) x;

  if (!m)
    return;
  gpu_step_close (m);
  gpu_comms_close (m);
  for (uint32_t i = 0; i < m->event->len; i++)
    GPU_CALL (m, event_close, g_ptr_array_index (m->event, i));
  for (uint32_t i = 0; i < m->n_script; i++)
    clear_score (&m->script[i]);
  for (uint32_t row = 0; row < m->n; row++)
    clear_rank (&m->rank[row]);
  g_ptr_array_unref (m->event);
  g_ptr_array_unref (m->comm);
  g_array_unref (m->stamp);
  g_array_unref (m->scaled);
  g_array_unref (m->window);
  g_free (m->rank);
  g_free (m->script);
  g_free (m->base.metrics);
  g_free (m->base.allocated);
  g_free (m->base.allocated_host);
  g_free (m->base.away);
  weft_actors_free (m->base.actors);
  pthread_mutex_destroy (&m->lock);
  pthread_cond_destroy (&m->changed);
  g_free (m);
}

/* ------------------------------------------------------------------------ opening */

static void
make_score (struct gpu_machine *m, uint32_t i)
{
  m->script[i] = (struct gpu_script){
    .m = m,
    .row = m->first + i,
    .call = g_array_new (FALSE, FALSE, sizeof (struct gpu_call)),
    .kernel = g_array_new (FALSE, FALSE, sizeof (struct weft_kernel)),
    .host = g_array_new (FALSE, FALSE, sizeof (struct gpu_host_work)),
    .copy = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_copy)),
    .collective = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_collective)),
    .transfer = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_transfer)),
    .join = g_ptr_array_new_with_free_func (free_join),
    .exchange = g_ptr_array_new_with_free_func (free_exchange),
    .counted = g_ptr_array_new_with_free_func (gpu_counted_free)
  };
}

/* Whether a rank is the first one of its stage. All ranks of a stage have the same launches. */
static gboolean
leads (const struct gpu_machine *m, uint32_t row)
{
  const struct weft_mesh *mesh = &m->base.plan->mesh;
  return row == weft_mesh_stage_rank (mesh, weft_mesh_stage (mesh, row), 0);
}

static void
make_rank (struct gpu_machine *m, uint32_t row)
{
  struct gpu_rank *r = &m->rank[row];

  r->m = m;
  r->row = row;
  r->rank = m->base.actors->rank[row];
  r->p = m->base.plan->role[m->base.actors->role[row]];
  r->here = row >= m->first && row < m->first + m->n_here;
  r->device = m->shared ? 0 : row - m->first;
  r->origin = !m->shared || row == 0;
  r->issued = r->here ? g_new0 (uint8_t, r->p->n_op + 1) : NULL;
  if (r->here || leads (m, row))
    weft_bind_init (&r->bind, m->base.plan, r->rank);
}

/* Finds the ranks that this process runs. All processes run equally many ranks, in order: process 0
 * runs the first ranks. */
static void
find_rows (struct gpu_machine *m)
{
  m->n_here = m->n;
  if (!m->options.peers)
    return;
  const struct weft_rendezvous_place *place = weft_rendezvous_place (m->options.peers);
  m->n_here = m->n / place->n;
  m->first = m->n_here * place->process;
  m->base.peers = m->options.peers;
  m->base.away = g_new (uint8_t, m->n);
  for (uint32_t row = 0; row < m->n; row++)
    m->base.away[row] = row < m->first || row >= m->first + m->n_here;
}

static struct gpu_machine *
make_machine (const struct weft_exec_ops *ops, const struct weft_gpu_calls *calls,
              const weft_plan *plan, const struct weft_exec_options *options,
              const union weft_gpu_options *own)
{
  struct gpu_machine *m = g_new0 (struct gpu_machine, 1);

  m->base.ops = ops;
  m->base.plan = plan;
  m->base.actors = weft_actors_new (&plan->fabric, &plan->mesh, FALSE);
  m->options = *options;
  m->own = *own;
  m->base.deadline = own->deadline;
  m->calls = calls;
  m->n = m->base.actors->n;
  m->shared = m->n > 1 && own->ranks_per_gpu > 1;
  find_rows (m);
  m->n_script = m->shared ? 1 : m->n_here;
  m->rank = g_new0 (struct gpu_rank, m->n);
  m->script = g_new0 (struct gpu_script, m->n_script);
  m->base.metrics = g_new0 (struct weft_metrics, m->n);
  m->base.allocated = g_new0 (uint64_t, m->n);
  m->base.allocated_host = g_new0 (uint64_t, m->n);
  m->event = g_ptr_array_new ();
  m->comm = g_ptr_array_new ();
  m->stamp = g_array_new (FALSE, FALSE, sizeof (struct gpu_stamp));
  m->scaled = g_array_new (FALSE, FALSE, sizeof (struct gpu_scaled));
  m->window = g_array_new (FALSE, FALSE, sizeof (struct gpu_window));
  pthread_mutex_init (&m->lock, NULL);
  pthread_cond_init (&m->changed, NULL);
  for (uint32_t i = 0; i < m->n_script; i++)
    make_score (m, i);
  for (uint32_t row = 0; row < m->n; row++)
    make_rank (m, row);
  return m;
}

/* Refuses options that this executor does not support for the job. */
static gboolean
check_options (const union weft_gpu_options *own, const struct weft_rendezvous *peers,
               uint32_t ranks, GError **error)
{
  uint32_t together = MAX ((uint32_t) own->ranks_per_gpu, 1);

  if (own->stress && together != ranks)
    return weft_bad_input (error,
                           "--stress: found one GPU per rank, wanted --ranks-per-gpu %u: "
                           "all GPUs must run collectives in the same order",
                           ranks);
  if (peers && ranks % weft_rendezvous_place (peers)->n != 0)
    return weft_bad_input (error,
                           "found %u processes and %u ranks, wanted the same number of ranks in "
                           "each process",
                           weft_rendezvous_place (peers)->n, ranks);
  if (peers && together > 1)
    return weft_bad_input (error,
                           "--ranks-per-gpu: found %u in one of %u processes, wanted 1: ranks that "
                           "share a GPU must be in one process",
                           together, weft_rendezvous_place (peers)->n);
  if (together > 1 && together != ranks)
    return weft_bad_input (error,
                           "--ranks-per-gpu: found %u, wanted 1 (one GPU per rank) or %u (all "
                           "ranks on one GPU)",
                           together, ranks);
  return together <= WEFT_GPU_MOST_SHARED ||
         weft_bad_input (error, "--ranks-per-gpu: found %u, wanted at most %u", together,
                         WEFT_GPU_MOST_SHARED);
}

static uint32_t
local_process (const struct gpu_machine *m)
{
  return weft_rendezvous_place (m->options.peers)->local;
}

/* Chooses the GPUs of this process. If the process sees exactly as many GPUs as it has ranks, it
 * uses all of them. Else it sees all GPUs of the machine, and skips those of the processes with
 * lower numbers on this machine. */
static void
choose_devices (struct gpu_machine *m, uint32_t found)
{
  if (!m->options.peers)
    return;
  uint32_t before = found == m->n_here ? 0 : local_process (m) * m->n_here;

  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    m->rank[row].device = before + row - m->first;
}

static gboolean
check_devices (struct gpu_machine *m, GError **error)
{
  uint32_t wanted = m->shared ? 1 : m->n_here, found = 0;

  if (!gpu_ok (m, GPU_CALL (m, devices, &found), error, "the GPUs of this machine"))
    return FALSE;
  choose_devices (m, found);
  wanted = MAX (wanted, m->rank[m->first + m->n_here - 1].device + 1);
  if (m->options.peers)
    return found >= wanted ||
           weft_bad_input (error,
                           "rank %u: found %u GPU%s, wanted %u for processes 0 to %u of this "
                           "machine, or %u if only this process sees them",
                           m->rank[m->first].rank, found, found == 1 ? "" : "s", wanted,
                           local_process (m), m->n_here);
  return found >= wanted ||
         weft_bad_input (error,
                         "found %u GPU%s, wanted %u, one per rank; --ranks-per-gpu %u puts all "
                         "ranks on one",
                         found, found == 1 ? "" : "s", wanted, m->n);
}

/* Refuses canonical order if the device's kernels do not support it: loss and norm would be integer
 * words of exact sums (core/base/exact.h), not floats. */
static gboolean
check_sums (const struct gpu_machine *m, GError **error)
{
  if (m->calls->canonical || m->base.plan->job.train.reduction_order != WEFT_ORDER_CANONICAL)
    return TRUE;
  return weft_bad_input (error,
                         "reduction_order: found canonical, wanted fast: GPU kernels sum in an "
                         "order of their own");
}

static gboolean
check_kernels (const struct gpu_machine *m, const weft_program *p, GError **error)
{
  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_op_kind kind = p->op[op].kind;
    if (weft_op_info[kind].class == WEFT_CLASS_COMPUTE && weft_kernels[kind].cpu &&
        p->op[op].lane != WEFT_LANE_HOST && !m->calls->has_kernel (m->calls->self, kind))
      return weft_bad_input (error, "the %s executor has no kernel for %s (op %u of role %u)",
                             m->base.ops->name, weft_op_words[kind], op, p->role);
  }
  return TRUE;
}

/* Opens the threads for CPU kernels. The ranks of a machine share its processors equally. */
static gboolean
open_team (struct gpu_rank *r, GError **error)
{
  const struct gpu_machine *m = r->m;
  uint32_t here = MIN (m->n, (uint32_t) m->base.plan->fabric.cluster->f.node_gpus);
  uint32_t n = m->own.threads ? (uint32_t) m->own.threads : g_get_num_processors () / MAX (here, 1);

  if (r->p->lane_n[WEFT_LANE_HOST] == 0 || n <= 1)
    return TRUE;
  r->team = weft_team_new (n, error);
  return r->team != NULL;
}

static gboolean
open_rank (struct gpu_rank *r, GError **error)
{
  const struct weft_memory *memory = &r->m->base.plan->memory[r->p->role];

  if (!gpu_arena_open (r, error) || !open_team (r, error))
    return FALSE;
  gpu_order_open (r);
  r->m->base.allocated[r->row] =
      memory->planned[WEFT_POOL_DEVICE] + memory->planned[WEFT_POOL_SYMMETRIC];
  r->m->base.allocated_host[r->row] = memory->planned[WEFT_POOL_HOST];
  return TRUE;
}

/* Opens the ranks of this process. Of the ranks of other processes, opens the first rank of each
 * stage, without memory: its launches determine the order in which collectives are issued. */
static gboolean
open_ranks (struct gpu_machine *m, GError **error)
{
  for (uint32_t row = 0; row < m->n; row++) {
    struct gpu_rank *r = &m->rank[row];
    if (r->here && !open_rank (r, error))
      return FALSE;
    if (!r->here && leads (m, row)) {
      gpu_arena_open_addresses (r);
      gpu_order_open (r);
    }
  }
  return TRUE;
}

/* Chooses the algorithms of kernels by measurement when the executor opens, so that the first step
 * does not measure. */
static gboolean
prepare_kernels (struct gpu_machine *m, GError **error)
{
  for (uint32_t i = 0; i < m->n_script && m->calls->prepare; i++) {
    const struct gpu_script *s = &m->script[i];
    struct gpu_rank *r = &m->rank[s->row];
    if (!gpu_choose (r, error) ||
        !gpu_ok (m,
                 GPU_CALL (m, prepare, (const struct weft_kernel *) (void *) s->kernel->data,
                           s->kernel->len, &r->scratch[WEFT_LANE_GPU], r->stream[WEFT_LANE_GPU]),
                 error, "rank %u: algorithms of its kernels", r->rank))
      return FALSE;
  }
  return TRUE;
}

/* Starts to trace kernels. If tracing is not possible, times come from events, and the timeline has
 * a remark that says so. */
static void
open_trace (struct gpu_machine *m)
{
  const char *said = m->options.times && m->own.traced ? gpu_traced_open (m) : NULL;

  m->traced = m->options.times && m->own.traced && !said;
  if (said) {
    g_autofree char *text = g_strdup_printf ("op times are measured with events: %s", said);
    /* interned, because timelines keep this string after the executor is closed */
    m->remark = g_intern_string (text);
  }
}

static gboolean
open_machine (struct gpu_machine *m, GError **error)
{
  const weft_plan *plan = m->base.plan;

  if (!weft_bind_check (plan, m->base.ops->name, error) ||
      !weft_exec_check_size (plan, m->base.actors, error) || !check_devices (m, error) ||
      !check_sums (m, error))
    return FALSE;
  for (uint32_t role = 0; role < plan->n_roles; role++)
    if (!check_kernels (m, plan->role[role], error) ||
        !gpu_collective_check (m, plan->role[role], error))
      return FALSE;
  open_trace (m);
  return gpu_reserved_measure (m, WEFT_RESERVED_CONTEXT, error) && open_ranks (m, error) &&
         gpu_reserved_measure (m, WEFT_RESERVED_SCRATCH, error) && gpu_comms_open (m, error) &&
         gpu_reserved_measure (m, WEFT_RESERVED_COMMUNICATORS, error) && gpu_issue_all (m, error) &&
         prepare_kernels (m, error) && gpu_reserved_measure (m, WEFT_RESERVED_PRODUCTS, error) &&
         gpu_step_open (m, error);
}

weft_exec *
weft_exec_gpu_open (const struct weft_exec_ops *ops, const struct weft_gpu_calls *calls,
                    const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  union weft_gpu_options own;

  weft_own_options_read (&options->own, ops->options, own.at);
  if (weft_job_has_algorithms (&plan->job)) {
    weft_bad_input (error, "collective_algorithm_files: found files, wanted none on GPUs: the "
                           "collective library of executor %s runs its own algorithms",
                    ops->name);
    return NULL;
  }
  if (!check_options (&own, options->peers, plan->mesh.n_ranks, error))
    return NULL;
  struct gpu_machine *m = make_machine (ops, calls, plan, options, &own);
  m->base.fresh = !options->memory;
  if (open_machine (m, error))
    return &m->base;
  m->broken = TRUE;
  weft_exec_gpu_close (&m->base);
  return NULL;
}

/* ----------------------------------------------------------------------- contract */

/* Does nothing: the call lists already contain all waits. */
gboolean
weft_exec_gpu_wait (weft_exec *x, uint32_t row, enum weft_lane lane, uint32_t op, GError **error)
{
  (void) x, (void) row, (void) lane, (void) op, (void) error;
  return TRUE;
}

gboolean
weft_exec_gpu_issue (weft_exec *x, uint32_t row, uint32_t op, GError **error)
{
  (void) error;
  ((struct gpu_machine *) x)->rank[row].issued[op] = TRUE;
  return TRUE;
}

gboolean
weft_exec_gpu_run (weft_exec *x, GError **error)
{
  return gpu_step_run ((struct gpu_machine *) x, error);
}

static gboolean
fill_times (struct gpu_machine *m, weft_timeline *t, GError **error)
{
  for (uint32_t i = 0; i < m->stamp->len; i++) {
    const struct gpu_stamp *stamp = &g_array_index (m->stamp, struct gpu_stamp, i);
    const struct gpu_rank *r = &m->rank[stamp->row];
    weft_gpu_event *start = gpu_script_of (m, r)->zero;
    if (!r->issued[stamp->op])
      continue;
    if (!gpu_ok (m, GPU_CALL (m, elapsed, start, stamp->begin, &t->begin[r->row][stamp->op]), error,
                 "times of rank %u", r->rank) ||
        !gpu_ok (m, GPU_CALL (m, elapsed, start, stamp->end, &t->end[r->row][stamp->op]), error,
                 "times of rank %u", r->rank))
      return FALSE;
  }
  return TRUE;
}

/* The duration of the step in seconds: the longest duration of all ranks. */
static gboolean
fill_total (struct gpu_machine *m, weft_timeline *t, GError **error)
{
  double took;

  for (uint32_t i = 0; i < m->n_script; i++) {
    const struct gpu_rank *r = &m->rank[m->script[i].row];
    if (!gpu_ok (m, GPU_CALL (m, elapsed, m->script[i].zero, r->tail, &took), error,
                 "the time of a step of rank %u", r->rank))
      return FALSE;
    t->seconds = MAX (t->seconds, took);
  }
  return TRUE;
}

static gboolean
read_metrics (struct gpu_machine *m, GError **error)
{
  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    if (!gpu_arena_read (&m->rank[row], &m->base.metrics[row], error))
      return FALSE;
  return TRUE;
}

weft_timeline *
weft_exec_gpu_drain (weft_exec *x, GError **error)
{
  struct gpu_machine *m = (struct gpu_machine *) x;
  gint64 start = g_get_monotonic_time ();
  g_autoptr (weft_timeline) t = weft_timeline_new (x->plan, x->actors, x->ops->name);
  gboolean ok = gpu_step_run (m, error) && gpu_step_wait (m, error) &&
                (m->traced ? gpu_traced_fill : fill_times) (m, t, error) &&
                read_metrics (m, error) &&
                (m->steps > 1 || gpu_reserved_measure (m, WEFT_RESERVED_STEP, error));

  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    memset (m->rank[row].issued, 0, m->rank[row].p->n_op);
  if (!ok)
    return NULL;
  t->wall_seconds = 1e-6 * (double) (g_get_monotonic_time () - start);
  weft_timeline_finish (t, x->plan);
  gpu_reserved_report (m, t);
  t->remark = m->remark;
  if (m->options.total && !m->options.times && !fill_total (m, t, error))
    return NULL;
  return g_steal_pointer (&t);
}

/* Copies between host memory and a buffer, between two steps. Device memory is copied on the stream
 * of lane gpu, host memory directly. */
static void
move (struct gpu_rank *r, uint32_t buf, const struct weft_gpu_copy *copy)
{
  GError *error = NULL;
  weft_gpu_stream *stream = r->stream[WEFT_LANE_GPU];

  if (r->p->buf[weft_buf_owner (r->p, buf)].pool == WEFT_POOL_HOST) {
    memcpy (copy->to, copy->from, copy->bytes);
    return;
  }
  if (!gpu_choose (r, &error) ||
      !gpu_ok (r->m, GPU_CALL (r->m, copy, copy, stream), &error, "rank %u", r->rank) ||
      !gpu_ok (r->m, GPU_CALL (r->m, finish, stream), &error, "rank %u", r->rank)) {
    g_warning ("%s", error->message); /* after this error, the next step fails */
    g_clear_error (&error);
  }
}

void
weft_exec_gpu_read (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n,
                    void *out)
{
  struct gpu_rank *r = &((struct gpu_machine *) x)->rank[row];

  if (!r->here) {
    memset (out, 0, n);
    return;
  }
  const struct weft_gpu_copy copy = { WEFT_GPU_TO_HOST, out, weft_bind_at (&r->bind, buf) + offset,
                                      n };
  move (r, buf, &copy);
}

void
weft_exec_gpu_write (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n,
                     const void *in)
{
  struct gpu_rank *r = &((struct gpu_machine *) x)->rank[row];

  if (!r->here)
    return;
  const struct weft_gpu_copy copy = { WEFT_GPU_TO_DEVICE, weft_bind_at (&r->bind, buf) + offset, in,
                                      n };
  if (in != copy.to && !gpu_staging_copy (r, copy.to, in, n))
    move (r, buf, &copy);
}

void *
weft_exec_gpu_staging (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n)
{
  struct gpu_rank *r = &((struct gpu_machine *) x)->rank[row];

  if (!r->here || n > WEFT_EXEC_STAGING)
    return NULL;
  return r->p->buf[weft_buf_owner (r->p, buf)].pool == WEFT_POOL_HOST
             ? weft_bind_at (&r->bind, buf) + offset
             : gpu_staging_take (r);
}

char *
weft_exec_gpu_name (const struct weft_gpu_calls *calls)
{
  struct weft_gpu_device device;

  return g_strdup (calls->describe (calls->self, 0, &device) ? "an unknown GPU" : device.name);
}
