#include "train/trainer.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/report/report.h"
#include "launch/rendezvous.h"
#include "launch/signals.h"
#include "train/checkpoint.h"
#include "train/hugging_face.h"
#include "train/memory_check.h"
#include "train/peft.h"
#include "train/sampler.h"
#include "train/processes.h"
#include <math.h>
#include <string.h>

#define NOT_SAVED UINT64_MAX

struct trainer {
  const weft_plan *plan;
  const struct weft_trainer_options *options;
  const struct weft_trainer_sink *sink;

  weft_tokens *tokens;
  struct weft_sampler sampler;
  /* the global batch of the current step, which control.tokens points to */
  int32_t *batch;
  /* the global batch of the next step; only valid if has_next is set */
  int32_t *next;
  gboolean has_next;
  /* why the global batch of the next step could not be read, or NULL */
  GError *unread;
  struct weft_control control; /* parameters of the next step, read by the executor */
  weft_exec *x;
  weft_state *state;
  weft_checkpoint_lock *lock; /* lock of the checkpoint directory, or NULL */

  struct weft_progress progress;
  uint64_t saved;      /* step of the newest checkpoint in the checkpoint directory */
  uint32_t bad_in_row; /* number of consecutive bad steps (WEFT_TRAINER_MOST_SKIPS) */
  gboolean ruined;     /* the newest step updated weights from a loss that is not finite */
  uint64_t ran;        /* number of steps that this run has done */
  double final_loss;   /* loss of the newest step; NaN if this run did no step */
  double eval_loss;    /* loss of the newest evaluation; 0 if no evaluation was run */
  weft_timeline *timeline; /* times of the newest step */
  struct weft_trainer_loading loading;
  const struct weft_signals *signals;
  int signal;                 /* number of the signal that this process received, or 0 */
  gboolean interrupted;
  /* a process has lost its token data or, in a job of several processes, received a signal; all
   * processes have the same value */
  gboolean stop;
  enum weft_data_change data; /* the newest change of the token file that was found */
};

static struct weft_rendezvous *
peers_of (const struct trainer *t)
{
  return t->options->exec.peers;
}

static void
trainer_clear (struct trainer *t)
{
  g_clear_pointer (&t->timeline, weft_timeline_free);
  g_clear_pointer (&t->state, weft_state_free);
  if (t->x)
    t->x->ops->close (t->x);
  g_clear_pointer (&t->lock, weft_checkpoint_lock_free);
  g_clear_pointer (&t->tokens, weft_tokens_free);
  g_clear_error (&t->unread);
  g_free (t->next);
  g_free (t->batch);
}
typedef struct trainer trainer;
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (trainer, trainer_clear)

G_GNUC_PRINTF (2, 3)
static void
say (const struct trainer *t, const char *format, ...)
{
  va_list args;

  va_start (args, format);
  g_autofree char *message = g_strdup_vprintf (format, args);
  va_end (args);
  t->sink->say (t->sink->user, message);
}

static uint32_t
batch_size (const struct trainer *t)
{
  return (uint32_t) t->plan->job.train.global_batch_size;
}

/* Number of ids in a global batch: seq_length + 1 per sequence. */
static gsize
batch_ids (const struct trainer *t)
{
  return (gsize) batch_size (t) * (t->sampler.seq_length + 1);
}

static double
batch_tokens (const struct trainer *t)
{
  return (double) batch_size (t) * (double) t->plan->job.model.seq_length;
}

/* --------------------------------------------------------------------- signals */

/* Whether a watched signal has arrived. Consumes the signal. */
static gboolean
was_signalled (struct trainer *t)
{
  int signal = weft_signals_poll (t->signals);

  t->signal = signal ? signal : t->signal;
  return signal != 0;
}

/* bytes of memory from which on a run prints the amount before it allocates the memory */
#define MUCH_MEMORY 2e9
/* Microseconds between messages while weights are made or loaded. */
enum { LOADING_EVERY = 10 * G_USEC_PER_SEC };

struct weft_trainer_loading
weft_trainer_loading_start (gint64 now)
{
  return (struct weft_trainer_loading){ { LOADING_EVERY, now }, now };
}

char *
weft_trainer_loading_text (struct weft_trainer_loading *loading, uint32_t ranks, gint64 now)
{
  if (!weft_pace_due (&loading->pace, now))
    return NULL;
  return g_strdup_printf ("making or loading the weights of %u ranks for %.0f s", ranks,
                          (double) (now - loading->start) / G_USEC_PER_SEC);
}

/* In a job of one process: whether to stop loading weights (weft_state_watch()). Several processes
 * merge their signals after loading. The function also prints how long loading has taken. */
static gboolean
stops_loading (void *user)
{
  struct trainer *t = user;
  g_autofree char *text = weft_trainer_loading_text (&t->loading, t->plan->mesh.n_ranks,
                                                     g_get_monotonic_time ());

  if (text)
    say (t, "%s", text);
  if (peers_of (t))
    return FALSE;
  t->interrupted |= was_signalled (t);
  return t->interrupted;
}

/* --------------------------------------------------------------------- opening */

static gboolean
open_data (struct trainer *t, GError **error)
{
  const struct weft_trainer_options *o = t->options;
  const union weft_model *model = &t->plan->job.model;

  if (!(t->tokens = weft_tokens_open (o->data, model->vocab_size, error)) ||
      !weft_sampler_init (&t->sampler, t->tokens, (uint32_t) model->seq_length, o->eval_share,
                          o->seed, o->shuffle, error))
    return FALSE;
  t->batch = g_new (int32_t, batch_ids (t));
  t->next = g_new (int32_t, batch_ids (t));
  say (t, "%s: %s, %" G_GUINT64_FORMAT " tokens, %" G_GUINT64_FORMAT " sequence%s to train on%s",
       o->data, weft_tokens_format (t->tokens), weft_tokens_count (t->tokens), t->sampler.n_train,
       t->sampler.n_train == 1 ? "" : "s", t->sampler.n_eval ? ", the others to evaluate" : "");
  return TRUE;
}

/* Locks the checkpoint directory for the whole run. */
static gboolean
open_save (struct trainer *t, GError **error)
{
  const char *dir = t->options->save;

  return !dir || (t->lock = weft_checkpoint_lock_new (dir, peers_of (t), error));
}

/* Prints how much memory the run allocates on this machine, if the amount may surprise the user. */
static void
tell_memory (const struct trainer *t, const struct weft_exec_ops *ops)
{
  double bytes = weft_memory_total (t->plan);

  if (!(ops->flags & WEFT_EXEC_HOST) || bytes < MUCH_MEMORY)
    return;
  g_autofree char *text = weft_units_human (bytes, "B");
  say (t, "allocating up to %s for %u ranks on this machine", g_strstrip (text),
       t->plan->mesh.n_ranks);
}

static gboolean
open_executor (struct trainer *t, const struct weft_exec_ops *ops, GError **error)
{
  const struct weft_trainer_options *o = t->options;
  struct weft_exec_options options = o->exec;

  t->control = (struct weft_control){ .beta1 = o->beta1,
                                      .beta2 = o->beta2,
                                      .epsilon = o->epsilon,
                                      .weight_decay = o->weight_decay,
                                      .clip_grad = t->plan->job.train.clip_grad,
                                      .tokens = t->batch };
  options.control = &t->control;
  tell_memory (t, ops);
  t->loading = weft_trainer_loading_start (g_get_monotonic_time ());
  if (!(t->x = ops->open (t->plan, &options, error)))
    return FALSE;
  t->state = weft_state_new (t->x);
  weft_state_watch (t->state, stops_loading, t);
  return weft_processes_gather_allocated (t->x, error);
}

/* A resumed run must use the seed of the first run: data order and initial weights depend on it. */
static gboolean
check_seed (const struct trainer *t, GError **error)
{
  const struct weft_trainer_options *o = t->options;

  if (!o->seed_given || o->seed == t->progress.seed)
    return TRUE;
  return weft_bad_input (error,
                         "seed: found %" G_GUINT64_FORMAT ", wanted %" G_GUINT64_FORMAT
                         ", which %s was trained with, or none",
                         o->seed, t->progress.seed, o->load);
}

/* Each process chose the newest checkpoint by itself; all must have chosen the same step. */
static gboolean
check_step (const struct trainer *t, GError **error)
{
  g_autofree char *found =
      g_strdup_printf ("%s after step %" G_GUINT64_FORMAT, t->options->load, t->progress.step);
  return weft_processes_check_same (peers_of (t), "the checkpoint", found, error);
}

/* Compares the token file with its mark and fingerprint in the checkpoint, and prints the
 * differences. A checkpoint of schema 1 has only the fingerprint. */
static void
compare_data (struct trainer *t)
{
  const struct weft_data_mark *old = &t->progress.data_file;
  const char *data = t->options->data, *load = t->options->load;
  struct weft_data_mark now = weft_data_file_mark (weft_tokens_file (t->tokens));
  uint64_t fingerprint = weft_tokens_fingerprint (t->tokens);
  gboolean differs = t->progress.data && fingerprint != t->progress.data;

  if (old->bytes && old->bytes != now.bytes)
    say (t,
         "warning: %s is not the data that %s was trained on: found %" G_GUINT64_FORMAT
         " bytes, wanted %" G_GUINT64_FORMAT,
         data, load, now.bytes, old->bytes);
  else if (old->bytes && (old->head != now.head || old->tail != now.tail))
    say (t, "warning: %s is not the data that %s was trained on: its %s differs", data, load,
         old->head != now.head ? "beginning" : "end");
  else if (differs)
    say (t, "warning: %s is not the data that %s was trained on", data, load);
  else if (old->bytes && old->modified != now.modified)
    say (t,
         "warning: %s was written or copied after %s began: its size, its ends and samples of its "
         "tokens are the same, other tokens may not be",
         data, load);
  t->progress.data = fingerprint;
  t->progress.data_file = now;
}

static gboolean
resume (struct trainer *t, GError **error)
{
  const struct weft_trainer_options *o = t->options;
  g_autofree char *notes = NULL;

  if (!weft_checkpoint_load (t->state, &t->plan->job, o->load, &t->progress, &notes, error) ||
      !check_seed (t, error) || !check_step (t, error))
    return FALSE;
  if (notes)
    say (t, "%s", notes);
  say (t, "resumed from %s after step %" G_GUINT64_FORMAT, o->load, t->progress.step);
  compare_data (t);
  t->progress.loss_scale = weft_loss_scale_resume (&t->progress.loss_scale, &t->plan->job);
  t->sampler.seed = t->progress.seed;
  if (g_strcmp0 (o->load, o->save) == 0)
    t->saved = t->progress.step;
  return TRUE;
}

static gboolean
import (struct trainer *t, GError **error)
{
  const char *path = t->options->init_safetensors;
  g_autofree char *unused = NULL;

  if (!weft_hf_import (t->state, &t->plan->job.model, path, &unused, error))
    return FALSE;
  say (t, "weights from %s", path);
  if (unused)
    say (t, "warning: tensors of %s that this model does not use: %s", path, unused);
  return TRUE;
}

/* Warns that a new run saves into a folder that already holds checkpoints. */
static void
warn_used_folder (const struct trainer *t)
{
  const char *dir = t->options->save;
  g_autofree char *newest = dir ? weft_checkpoint_newest (dir) : NULL;

  if (newest)
    say (t, "warning: %s holds checkpoints of another run; use --load to resume it", newest);
}

static gboolean
fill_weights (struct trainer *t, GError **error)
{
  t->saved = NOT_SAVED;
  if (t->options->load)
    return resume (t, error);
  t->progress.seed = t->options->seed;
  t->progress.data = weft_tokens_fingerprint (t->tokens);
  t->progress.data_file = weft_data_file_mark (weft_tokens_file (t->tokens));
  t->progress.loss_scale = weft_loss_scale_start (&t->plan->job);
  warn_used_folder (t);
  if (!t->plan->job.strategy.perform_initialization && !t->options->init_safetensors)
    return weft_bad_input (error, "perform_initialization = false: found neither --load nor "
                                  "--init-safetensors, wanted weights from one of them");
  weft_state_init (t->state, t->progress.seed);
  if (t->interrupted)
    return FALSE;
  if (t->options->init_adapter &&
      !weft_peft_import (t->state, &t->plan->job, t->options->init_adapter, error))
    return FALSE;
  return t->options->init_safetensors ? import (t, error) : weft_state_quantise (t->state, error);
}

/* ---------------------------------------------------------------------- saving */

/* Saves a checkpoint unless this step is already saved. Weights that are not finite are not saved:
 * deleting old checkpoints would then leave only bad ones. */
static gboolean
save (struct trainer *t, GError **error)
{
  const struct weft_trainer_options *o = t->options;

  if (!o->save || t->saved == t->progress.step)
    return TRUE;
  if (t->ruined) {
    say (t, "not saved after step %" G_GUINT64_FORMAT ": the loss is %g, and so are weights",
         t->progress.step, t->final_loss);
    return TRUE;
  }
  if (!weft_checkpoint_save_held (t->state, &t->plan->job, &t->progress, t->lock, o->keep, error))
    return FALSE;
  t->saved = t->progress.step;
  return TRUE;
}

/* Saves the weights learned so far after an unreadable token of the first batch or of an
 * evaluation. A job of several processes does not save: all processes would have to save together,
 * but the other processes may have read their tokens and continue. Always returns FALSE. */
static gboolean
save_before_failing (struct trainer *t)
{
  g_autoptr (GError) unsaved = NULL;

  if (!peers_of (t) && t->progress.step > 0 && !save (t, &unsaved))
    say (t, "not saved after step %" G_GUINT64_FORMAT ": %s", t->progress.step, unsaved->message);
  return FALSE;
}

/* ----------------------------------------------------------------------- steps */

static uint64_t
most_allocated (const struct trainer *t)
{
  uint64_t most = 0;
  for (uint32_t row = 0; row < t->x->actors->n; row++)
    most = MAX (most, t->x->allocated[row]);
  return most;
}

static void
report_step (const struct trainer *t, const struct weft_metrics *m, double seconds)
{
  const struct weft_job *job = &t->plan->job;
  double tokens_per_s = batch_tokens (t) / seconds;
  double peak = weft_report_printed_peak (job) * t->plan->mesh.n_ranks;
  struct weft_trainer_line line = {
    .step = t->progress.step,
    .steps = t->options->steps,
    .loss = m->loss,
    .mtp_loss = m->mtp_loss,
    .grad_norm = m->grad_norm,
    .lr = t->control.lr,
    .seconds = seconds,
    .tokens_per_s = tokens_per_s,
    .mfu = tokens_per_s * weft_job_flops_per_token (job) / peak,
    .peak_bytes = most_allocated (t),
    .loss_scale = t->control.loss_scale,
    .skipped = m->skipped,
  };

  t->sink->line (t->sink->user, &line);
}

/* Prints a message for the knob check_for_large_grads; the run continues. */
static void
report_large (const struct trainer *t, uint32_t buckets)
{
  if (buckets == 0)
    return;
  g_autofree char *message = g_strdup_printf ("step %" G_GUINT64_FORMAT
                                              ": unexpectedly large gradients in %u buckets of all "
                                              "ranks (check_for_large_grads)",
                                              t->progress.step, buckets);
  t->sink->say (t->sink->user, message);
}

/* Counts consecutive bad steps and fails after WEFT_TRAINER_MOST_SKIPS of them. `answered`: whether
 * the loss scale could still fall; a skipped step is not bad then. */
static gboolean
check_progress (struct trainer *t, const struct weft_metrics *m, gboolean answered, GError **error)
{
  gboolean bad = (m->skipped && !answered) || !isfinite (m->loss);

  t->bad_in_row = bad ? t->bad_in_row + 1 : m->skipped ? t->bad_in_row : 0;
  t->ruined = !m->skipped && !isfinite (m->loss);
  if (t->bad_in_row < WEFT_TRAINER_MOST_SKIPS)
    return TRUE;
  return weft_run_error (error,
                         "step %" G_GUINT64_FORMAT ": loss or gradient were not finite %d times in "
                         "a row (loss %g); a lower learning rate may help",
                         t->progress.step, WEFT_TRAINER_MOST_SKIPS, m->loss);
}

/* Whether the token file has become shorter since it was opened. If so, all processes save a
 * checkpoint and stop after this step, because the next step might not find its tokens. Prints a
 * warning if another program has written to the file without shortening it. */
static gboolean
has_lost_data (struct trainer *t)
{
  enum weft_data_change change = weft_data_file_change (weft_tokens_file (t->tokens));

  if (change == WEFT_DATA_WRITTEN && t->data == WEFT_DATA_SAME)
    say (t, "warning: %s was written while it was read, after step %" G_GUINT64_FORMAT,
         t->options->data, t->progress.step);
  t->data = MAX (t->data, change);
  return t->data == WEFT_DATA_SHORTER;
}

/* Merges the metrics of the newest step or evaluation over all processes. If any process received a
 * signal or has lost its data, sets t->stop in all of them. `seconds`: time limit for the other
 * processes; 0: none. */
static gboolean
agree (struct trainer *t, const char *what, double seconds, struct weft_metrics *out,
       GError **error)
{
  g_autofree char *key = g_strdup_printf ("%s %" G_GUINT64_FORMAT, what, t->progress.step);
  gboolean lost = has_lost_data (t) || t->unread;
  gboolean asked = lost || (peers_of (t) && was_signalled (t));
  struct weft_processes_step merged = { .seconds = seconds };

  if (!weft_processes_merge_step (t->x, key, asked, &merged, error))
    return FALSE;
  *out = merged.metrics;
  t->stop |= merged.stop;
  return TRUE;
}

static gboolean
read_next (struct trainer *t, GError **error)
{
  t->has_next =
      weft_sampler_train (&t->sampler, t->progress.position, batch_size (t), t->next, error);
  return t->has_next;
}

/* Runs one step, and reads the tokens of the next one: if a process cannot read them, all processes
 * know it when they merge their metrics. The step number of Adam's bias correction does not count
 * skipped steps; that of the learning rate schedule does. */
static gboolean
run_step (struct trainer *t, GError **error)
{
  if (!t->has_next && !read_next (t, error))
    return save_before_failing (t);
  memcpy (t->batch, t->next, batch_ids (t) * sizeof *t->batch);
  t->has_next = FALSE;
  t->control.seed = t->progress.seed;
  t->control.step = t->progress.step + 1 - t->progress.skipped;
  t->control.lr = weft_trainer_lr (t->options, t->progress.step + 1);
  t->control.loss_scale = t->progress.loss_scale.scale;
  t->control.forward_only = FALSE;
  g_clear_pointer (&t->timeline, weft_timeline_free);
  gint64 start = g_get_monotonic_time ();
  if (!(t->timeline = weft_exec_step (t->x, error)))
    return FALSE;
  double seconds = (double) MAX (g_get_monotonic_time () - start, 1) * 1e-6;
  struct weft_metrics metrics, *m = &metrics;
  t->progress.step++;
  t->progress.position += batch_size (t);
  if (t->progress.step < t->options->steps)
    read_next (t, &t->unread);
  if (!agree (t, "step", t->x->deadline, m, error))
    return FALSE;
  t->ran++;
  t->progress.skipped += m->skipped != FALSE;
  t->final_loss = m->loss;
  report_step (t, m, seconds);
  report_large (t, m->large);
  gboolean answered = weft_loss_scale_can_fall (&t->progress.loss_scale, &t->plan->job);
  weft_loss_scale_update (&t->progress.loss_scale, &t->plan->job, m->skipped);
  return check_progress (t, m, answered, error);
}

static gboolean
evaluate_batch (struct trainer *t, uint64_t batch, double *loss, GError **error)
{
  if (!weft_sampler_eval (&t->sampler, batch * batch_size (t), batch_size (t), t->batch, error))
    return save_before_failing (t);
  g_autoptr (weft_timeline) timeline = weft_exec_step (t->x, error);
  struct weft_metrics metrics;
  if (!timeline || !agree (t, "evaluation after step", t->x->deadline, &metrics, error))
    return FALSE;
  *loss = metrics.loss;
  return TRUE;
}

/* Every evaluation reads the same sequences, none of them twice, unless one global batch has more
 * sequences than the evaluation split. */
static gboolean
evaluate (struct trainer *t, GError **error)
{
  uint64_t whole = MAX (t->sampler.n_eval / batch_size (t), 1);
  uint64_t n = MIN (t->options->eval_batches, whole);
  double sum = 0, loss = 0;

  t->control.forward_only = TRUE;
  for (uint64_t i = 0; i < n; i++) {
    if (!evaluate_batch (t, i, &loss, error))
      return FALSE;
    sum += loss;
  }
  t->eval_loss = sum / (double) n;
  struct weft_trainer_line line = { .step = t->progress.step,
                                    .steps = t->options->steps,
                                    .loss = t->eval_loss,
                                    .evaluated = TRUE };
  t->sink->line (t->sink->user, &line);
  return TRUE;
}

/* ------------------------------------------------------------------------ loop */

static gboolean
is_due (const struct trainer *t, uint64_t interval)
{
  return interval && t->progress.step % interval == 0;
}

static gboolean
write_tensors (struct trainer *t, enum weft_state_kind kind, const char *path, GError **error)
{
  return !path || weft_hf_export (t->state, &t->plan->job.model, kind, path, error);
}

/* Evaluation, checkpoint and gradient dump after a step. An evaluation step does not overwrite
 * weights, optimizer state or gradients. */
static gboolean
after_step (struct trainer *t, gboolean first, GError **error)
{
  const struct weft_trainer_options *o = t->options;
  gboolean last = t->progress.step == o->steps;

  if (first && !write_tensors (t, WEFT_STATE_GRAD, o->dump_gradients, error))
    return FALSE;
  if (!t->stop && o->eval_batches && o->eval_interval && (last || is_due (t, o->eval_interval)) &&
      !evaluate (t, error))
    return FALSE;
  return !is_due (t, o->save_interval) || save (t, error);
}

/* Whether the run must stop, because of a signal or because token data was lost. A single process
 * polls for signals here. Several processes merge their signals in agree(), so that all stop after
 * the same step. */
static gboolean
must_stop (struct trainer *t)
{
  return t->stop || (!peers_of (t) && was_signalled (t));
}

static gboolean
loop (struct trainer *t, GError **error)
{
  const uint64_t first = t->progress.step + 1;
  struct weft_metrics none;

  /* no time limit, because some processes may need much longer than others to load */
  if (!agree (t, "the state after step", 0, &none, error))
    return FALSE;

  if (t->progress.step >= t->options->steps)
    say (t,
         "nothing left to train: %" G_GUINT64_FORMAT " steps are done, steps = %" G_GUINT64_FORMAT,
         t->progress.step, t->options->steps);
  while (t->progress.step < t->options->steps) {
    if ((t->interrupted = must_stop (t)))
      return TRUE;
    if (!run_step (t, error) || !after_step (t, t->progress.step == first, error))
      return FALSE;
  }
  return TRUE;
}

/* Fails if the newest loss is not finite: the run has no result then, even if it has done all its
 * steps. */
static gboolean
check_loss (const struct trainer *t, GError **error)
{
  gboolean lost = t->ran > 0 && !isfinite (t->final_loss);

  if (!lost && isfinite (t->eval_loss))
    return TRUE;
  return weft_run_error (error, "step %" G_GUINT64_FORMAT ": the %s is %g; wanted a finite number",
                         t->progress.step, lost ? "loss" : "loss of the evaluation",
                         lost ? t->final_loss : t->eval_loss);
}

/* Fails if the run stopped because tokens could not be read, or the token file became shorter. */
static gboolean
check_data (struct trainer *t, GError **error)
{
  const struct weft_trainer_options *o = t->options;

  if (!t->interrupted || (!t->unread && t->data != WEFT_DATA_SHORTER))
    return TRUE;
  if (t->data != WEFT_DATA_SHORTER) {
    g_propagate_error (error, g_steal_pointer (&t->unread));
    return FALSE;
  }
  return weft_run_error (error,
                         "%s became shorter than the %" G_GUINT64_FORMAT
                         " bytes that it had when it was opened; stopped after step "
                         "%" G_GUINT64_FORMAT "%s%s",
                         o->data, weft_data_file_bytes (weft_tokens_file (t->tokens)),
                         t->progress.step, t->saved == t->progress.step ? ", saved in " : "",
                         t->saved == t->progress.step ? o->save : "");
}

/* Saves a last checkpoint and, unless the run was interrupted, exports the weights, even if the
 * checkpoint could not be written. */
static gboolean
finish (struct trainer *t, GError **error)
{
  const struct weft_trainer_options *o = t->options;
  gboolean saved = save (t, error);

  if (!check_loss (t, saved ? error : NULL) || !check_data (t, saved ? error : NULL))
    return FALSE;
  if (t->interrupted) {
    if (saved)
      say (t, "interrupted after step %" G_GUINT64_FORMAT " by %s%s%s", t->progress.step,
           weft_signals_name (t->signal),
           o->save ? "; resume with --load " : ", and nothing was saved", o->save ? o->save : "");
    return saved;
  }
  GError **first = saved ? error : NULL;
  return write_tensors (t, WEFT_STATE_WEIGHT, o->export_safetensors, first) &&
         (!o->export_adapter ||
          weft_peft_export (t->state, &t->plan->job, o->export_adapter, first)) &&
         saved;
}

/* ---------------------------------------------------------------------- result */

/* Reports the limits of a timeline: a remark about its times, kernels that belong to no op, and the
 * number of lost records. */
static void
report_times (const struct trainer *t, const weft_timeline *timeline)
{
  if (timeline->remark)
    say (t, "%s", timeline->remark);
  for (uint32_t i = 0; timeline->strays && i < timeline->strays->len; i++) {
    const struct weft_timeline_stray *s =
        &g_array_index (timeline->strays, struct weft_timeline_stray, i);
    say (t, "kernels outside any op: %" G_GUINT64_FORMAT " times %s, %.6g ms in all", s->n, s->name,
         1e3 * s->seconds);
  }
  if (timeline->lost)
    say (t, "%" G_GUINT64_FORMAT " kernels or copies were lost: times of ops lack them",
         timeline->lost);
}

/* Gathers the timeline of the newest step from all processes if the options ask for times. */
static gboolean
gather_times (struct trainer *t, GError **error)
{
  if (!t->timeline || !t->options->exec.times)
    return TRUE;
  report_times (t, t->timeline);
  return weft_processes_gather_timeline (t->x, t->timeline, error);
}

static void
fill_result (struct trainer *t, struct weft_trainer_result *r)
{
  const weft_plan *plan = t->plan;
  const weft_actors *actors = t->x->actors;

  *r = (struct weft_trainer_result){
    .steps = t->progress.step,
    .skipped = t->progress.skipped,
    .final_loss = t->final_loss,
    .n_roles = plan->n_roles,
    .planned = g_new0 (uint64_t, plan->n_roles),
    .allocated = g_new0 (uint64_t, plan->n_roles),
    .interrupted = t->interrupted,
    .timeline = g_steal_pointer (&t->timeline),
  };
  for (uint32_t role = 0; role < plan->n_roles; role++)
    r->planned[role] = weft_plan_arena_bytes (plan, role);
  for (uint32_t row = 0; row < actors->n; row++)
    r->allocated[actors->role[row]] = MAX (r->allocated[actors->role[row]], t->x->allocated[row]);
}

void
weft_trainer_result_clear (struct weft_trainer_result *result)
{
  g_clear_pointer (&result->timeline, weft_timeline_free);
  g_clear_pointer (&result->planned, g_free);
  g_clear_pointer (&result->allocated, g_free);
}

static gboolean
check_options (const struct weft_trainer_options *o, GError **error)
{
  if (o->load && o->init_safetensors)
    return weft_bad_input (error, "found both load and init_safetensors, wanted one source of "
                                  "weights");
  if (o->eval_interval && o->eval_share <= 0)
    return weft_bad_input (error,
                           "eval_interval: found %" G_GUINT64_FORMAT
                           " with eval_share 0, wanted a share to evaluate on",
                           o->eval_interval);
  return TRUE;
}

/* Checks that all processes have the same job and options, those of the executor included, except
 * options that are per process. */
static gboolean
check_same (const struct trainer *t, const struct weft_exec_ops *ops, GError **error)
{
  const struct weft_trainer_options *o = t->options;
  g_autofree char *own =
      ops->options ? weft_own_options_print (&o->exec.own, ops->options) : g_strdup ("");
  g_autofree char *job = weft_job_print (&t->plan->job);
  g_autofree char *all = g_strdup_printf (
      "%s\nsteps %" G_GUINT64_FORMAT "\nseed %" G_GUINT64_FORMAT "\nlr %g %g\nbeta %g %g %g\n"
      "weight_decay %g\nwarmup %" G_GUINT64_FORMAT "\ndecay_steps %" G_GUINT64_FORMAT
      "\neval %g %" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT
      "\nshuffle %d\nsave %s %" G_GUINT64_FORMAT
      "\nload %s\ninit %s %s\nexport %s %s\ndump %s\ntimes %d\n%s",
      job, o->steps, o->seed, o->lr, o->min_lr, o->beta1, o->beta2, o->epsilon, o->weight_decay,
      o->warmup, o->decay_steps, o->eval_share, o->eval_interval, o->eval_batches, o->shuffle,
      o->save ? o->save : "-", o->save_interval, o->load ? o->load : "-",
      o->init_safetensors ? o->init_safetensors : "-", o->init_adapter ? o->init_adapter : "-",
      o->export_safetensors ? o->export_safetensors : "-",
      o->export_adapter ? o->export_adapter : "-",
      o->dump_gradients ? o->dump_gradients : "-", o->exec.times, own);

  return weft_processes_check_same (o->exec.peers, "the job", all, error);
}

static void
say_nothing (void *user, const char *message)
{
  (void) user, (void) message;
}

static void
print_nothing (void *user, const struct weft_trainer_line *line)
{
  (void) user, (void) line;
}

/* The sink of this process: `sink` in the process of rank 0, else a sink that prints nothing. */
static const struct weft_trainer_sink *
sink_of (const struct weft_trainer_options *o, const struct weft_trainer_sink *sink)
{
  static const struct weft_trainer_sink silent = { print_nothing, say_nothing, NULL };

  return o->exec.peers && weft_rendezvous_place (o->exec.peers)->process ? &silent : sink;
}

static gboolean
prepare (struct trainer *t, const struct weft_exec_ops *ops, GError **error)
{
  return check_options (t->options, error) && check_same (t, ops, error) && open_data (t, error) &&
         open_save (t, error) && open_executor (t, ops, error) && fill_weights (t, error);
}

/* A run that is interrupted while it loads saves nothing: its weights are incomplete. */
static gboolean
run (struct trainer *t, const struct weft_exec_ops *ops, GError **error)
{
  if (prepare (t, ops, error))
    return loop (t, error) && finish (t, error) && gather_times (t, error);
  if (!t->interrupted)
    return FALSE;
  g_clear_error (error);
  say (t, "interrupted by %s while weights were loaded", weft_signals_name (t->signal));
  return TRUE;
}

gboolean
weft_trainer_run (const weft_plan *plan, const struct weft_exec_ops *ops,
                  const struct weft_trainer_options *options, const struct weft_trainer_sink *sink,
                  struct weft_trainer_result *result, GError **error)
{
  struct weft_signals signals;
  g_auto (trainer) t = { .plan = plan,
                         .options = options,
                         .sink = sink_of (options, sink),
                         .final_loss = NAN,
                         .signals = &signals };

  g_assert (ops->flags & WEFT_EXEC_NUMBERS);
  *result = (struct weft_trainer_result){ 0 };
  weft_signals_watch (&signals);
  gboolean ok = run (&t, ops, error);
  weft_signals_unwatch (&signals);
  if (!ok)
    weft_processes_abort (options->exec.peers, error);
  if (ok)
    fill_result (&t, result);
  return ok;
}
