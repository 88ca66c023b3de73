/* Modules: jobs that the CPU executor trains. The calls for one step run the parts of that step
 * (core/plan/parts.h) in order. */
#include "core/base/error.h"
#include "core/passes/step.h"
#include "exec_cpu/exec_cpu.h"
#include "kernels/float.h"
#include "train/memory_check.h"
#include "api/inside.h"
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------- opening */

/* Whether gradients are reduced only in the last backward of a step. */
static gboolean
only_last_reduces (const weft_module *m)
{
  uint32_t n = 0, last = 0;

  for (uint32_t i = 0; i < m->parts->n; i++)
    if (m->parts->part[i].kind == WEFT_PART_BACKWARD && weft_parts_reduces (m->parts, m->plan, i)) {
      last = m->parts->part[i].micro;
      n++;
    }
  return n == 1 && last + 1 == weft_job_microbatches (&m->plan->job);
}

/* Checks the options that the caller has set; 0 means that an option is not set. */
static gboolean
check_options (const union weft_cpu_options *own, GError **reason)
{
  const struct weft_table *table = weft_exec_cpu.options;

  for (unsigned i = 0; i < table->n; i++) {
    const struct weft_field *field = &table->field[i];
    if (own->at[i].i == 0 || weft_field_holds (field, own->at[i]))
      continue;
    g_autofree char *range = weft_field_range (field);
    return weft_bad_input (reason, "%s: found %" G_GUINT64_FORMAT ", wanted %s", field->name,
                           (guint64) own->at[i].i, range);
  }
  return TRUE;
}

static gboolean
open_executor (weft_module *m, const weft_module_options *options, GError **reason)
{
  const union weft_cpu_options own = { { .threads = options ? options->threads : 1,
                                         .stress = options ? (int64_t) options->stress : 0 } };
  const struct weft_exec_options exec = { .own =
                                              weft_own_options_of (weft_exec_cpu.options, own.at),
                                          .control = &m->control };

  if (!check_options (&own, reason) || !weft_memory_check (m->plan, &weft_exec_cpu, reason) ||
      !(m->x = weft_exec_cpu.open (m->plan, &exec, reason)))
    return FALSE;
  m->state = weft_state_new (m->x);
  m->parts = weft_parts_new (m->plan);
  m->only_last_reduces = only_last_reduces (m);
  return TRUE;
}

static size_t
row_tokens (const weft_module *m)
{
  return (size_t) m->plan->job.model.seq_length + 1;
}

static size_t
batch_tokens (const weft_module *m)
{
  return (size_t) m->plan->job.train.global_batch_size * row_tokens (m);
}

void
weft_api_set_loss_scale (weft_module *m, struct weft_loss_scale scale)
{
  m->progress.loss_scale = scale;
  m->control.loss_scale = scale.scale;
}

weft_module *
weft_module_open (const weft_job *job, const weft_module_options *options, weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_given ("module_open", "job", job, error))
    return NULL;
  weft_module *m = g_new0 (weft_module, 1);
  m->job = job;
  m->plan = job->plan;
  m->batch = g_new0 (int32_t, batch_tokens (m));
  m->control.tokens = m->batch;
  m->control.clip_grad = m->plan->job.train.clip_grad;
  weft_api_set_loss_scale (m, weft_loss_scale_start (&m->plan->job));
  if (!open_executor (m, options, &reason)) {
    weft_module_close (m);
    weft_api_fail (error, reason);
    return NULL;
  }
  weft_api_done (error);
  return m;
}

void
weft_module_close (weft_module *m)
{
  if (!m)
    return;
  g_clear_pointer (&m->state, weft_state_free);
  g_clear_pointer (&m->parts, weft_parts_free);
  if (m->x)
    m->x->ops->close (m->x);
  g_free (m->batch);
  g_free (m);
}

/* ------------------------------------------------------------------ order of calls */

static const struct weft_part *
next_part (const weft_module *m)
{
  return &m->parts->part[m->next];
}

const char *
weft_module_wants (const weft_module *m)
{
  if (!m)
    return "module_open";
  char *text = ((weft_module *) m)->wants;
  const struct weft_part *part = next_part (m);
  if (part->micro == WEFT_NO_MICRO)
    return weft_part_words[part->kind];
  g_snprintf (text, sizeof m->wants, "%s of microbatch %u", weft_part_words[part->kind],
              part->micro);
  return text;
}

static bool
refuse_broken (const weft_module *m, const char *call, weft_error *error)
{
  if (!weft_api_given (call, "module", m, error))
    return false;
  return !m->broken ||
         weft_api_fail_with (error, WEFT_STATUS_FAILED,
                             "%s: a step of this module has failed, wanted it closed", call);
}

static bool
refuse_order (const weft_module *m, const char *call, weft_error *error)
{
  return weft_api_fail_with (error, WEFT_STATUS_ORDER, "%s: not yet or not again, wanted %s next",
                             call, weft_module_wants (m));
}

bool
weft_api_between_steps (weft_module *m, const char *call, weft_error *error)
{
  if (!refuse_broken (m, call, error))
    return false;
  return m->next == 0 ||
         weft_api_fail_with (error, WEFT_STATUS_ORDER,
                             "%s: found in the middle of a step, wanted %s next; or "
                             "zero_grad_buffer, which discards the step",
                             call, weft_module_wants (m));
}

/* Checks that the next part of the step is a part of this kind. */
static bool
is_next (const weft_module *m, enum weft_part_kind kind, weft_error *error)
{
  const char *call = weft_part_words[kind];

  if (!refuse_broken (m, call, error))
    return false;
  return next_part (m)->kind == kind || refuse_order (m, call, error);
}

static bool
run_next (weft_module *m, weft_error *error)
{
  GError *reason = NULL;

  if (!weft_exec_part (m->x, m->parts, m->next, &reason)) {
    m->broken = TRUE;
    return weft_api_fail (error, reason);
  }
  m->next = (m->next + 1) % m->parts->n;
  return weft_api_done (error);
}

static bool
run_all_before (weft_module *m, enum weft_part_kind kind, weft_error *error)
{
  while (next_part (m)->kind < kind)
    if (!run_next (m, error))
      return false;
  return true;
}

static bool
end_step (weft_module *m, weft_error *error)
{
  GError *reason = NULL;
  g_autoptr (weft_timeline) t = weft_exec_end_parts (m->x, &reason);

  m->next = 0;
  m->no_sync = FALSE;
  m->broken = !t;
  return t ? true : weft_api_fail (error, reason);
}

/* -------------------------------------------------------------------------- tokens */

/* Checks that token ids are in the vocabulary, because kernels do not check them. */
static bool
check_tokens (const weft_module *m, const char *call, const int32_t *tokens, size_t n,
              weft_error *error)
{
  if (!weft_api_given (call, "tokens", tokens, error))
    return false;
  const int64_t vocabulary = m->plan->job.model.vocab_size;
  for (size_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= vocabulary)
      return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                                 "%s: found id %d as token %zu, wanted 0..%d", call, tokens[i], i,
                                 (int) vocabulary - 1);
  return true;
}

static void
place_microbatch (weft_module *m, uint32_t micro, const int32_t *tokens)
{
  const struct weft_job *job = &m->plan->job;
  size_t n = (size_t) job->train.micro_batch_size * row_tokens (m);

  for (int64_t replica = 0; replica < weft_job_dp (job); replica++, tokens += n)
    memcpy (m->batch + (size_t) weft_job_sequence (job, replica, micro) * row_tokens (m), tokens,
            n * sizeof *tokens);
}

/* ------------------------------------------------------------ forward and backward */

bool
weft_module_zero_grad_buffer (weft_module *m, weft_error *error)
{
  if (!refuse_broken (m, "zero_grad_buffer", error) || (m->next && !end_step (m, error)))
    return false;
  return run_next (m, error);
}

/* Whether the pipeline has one stage; sets an error if not. With several stages, a stage cannot run
 * a microbatch alone, because it needs the other stages. */
static bool
has_one_stage (const weft_module *m, const char *call, weft_error *error)
{
  return m->plan->mesh.pp == 1 ||
         weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                             "%s: found a pipeline of %u stages, whose microbatches only run "
                             "together, wanted forward_backward",
                             call, m->plan->mesh.pp);
}

bool
weft_module_forward (weft_module *m, const int32_t *tokens, weft_error *error)
{
  if (!refuse_broken (m, "forward", error))
    return false;
  size_t n =
      (size_t) (weft_job_dp (&m->plan->job) * m->plan->job.train.micro_batch_size) * row_tokens (m);
  if (!has_one_stage (m, "forward", error) || !is_next (m, WEFT_PART_FORWARD, error) ||
      !check_tokens (m, "forward", tokens, n, error))
    return false;
  place_microbatch (m, next_part (m)->micro, tokens);
  return run_next (m, error);
}

static bool
check_sync (const weft_module *m, weft_error *error)
{
  uint32_t last = (uint32_t) weft_job_microbatches (&m->plan->job) - 1,
           micro = next_part (m)->micro;

  if (micro == last && m->no_sync)
    return weft_api_fail_with (
        error, WEFT_STATUS_ORDER,
        "backward: found microbatch %u, the last one, inside no_sync, wanted "
        "no_sync_end before it",
        micro);
  if (micro < last && !m->no_sync && m->only_last_reduces)
    return weft_api_fail_with (error, WEFT_STATUS_ORDER,
                               "backward: found microbatch %u of %u outside no_sync, but gradients "
                               "are reduced in the last one: wanted no_sync_begin before it",
                               micro, last + 1);
  return true;
}

bool
weft_module_backward (weft_module *m, weft_error *error)
{
  return refuse_broken (m, "backward", error) && has_one_stage (m, "backward", error) &&
         is_next (m, WEFT_PART_BACKWARD, error) && check_sync (m, error) && run_next (m, error);
}

bool
weft_module_forward_backward (weft_module *m, const int32_t *tokens, weft_error *error)
{
  static const char call[] = "forward_backward";

  if (!refuse_broken (m, call, error))
    return false;
  if (m->next != 1)
    return refuse_order (m, call, error);
  if (m->no_sync)
    return weft_api_fail_with (error, WEFT_STATUS_ORDER,
                               "%s: found inside no_sync, wanted no_sync_end before it", call);
  if (!check_tokens (m, call, tokens, batch_tokens (m), error))
    return false;
  memcpy (m->batch, tokens, batch_tokens (m) * sizeof *tokens);
  return run_all_before (m, WEFT_PART_START, error);
}

static bool
set_no_sync (weft_module *m, gboolean wanted, weft_error *error)
{
  if (!weft_api_given (wanted ? "no_sync_begin" : "no_sync_end", "module", m, error))
    return false;
  if (m->no_sync == wanted)
    return weft_api_fail_with (error, WEFT_STATUS_ORDER, "no_sync_%s: found %s no_sync",
                               wanted ? "begin" : "end",
                               wanted ? "a second one inside" : "outside of");
  m->no_sync = wanted;
  return weft_api_done (error);
}

bool
weft_module_no_sync_begin (weft_module *m, weft_error *error)
{
  return set_no_sync (m, TRUE, error);
}

bool
weft_module_no_sync_end (weft_module *m, weft_error *error)
{
  return set_no_sync (m, FALSE, error);
}

/* ----------------------------------------------------------------------- gradients */

/* Runs all parts of the step up to and including the next part of this kind. Parts whose calls the
 * user has not made run as well. */
static bool
run_through (weft_module *m, enum weft_part_kind kind, weft_error *error)
{
  const char *call = weft_part_words[kind];

  if (!refuse_broken (m, call, error))
    return false;
  if (next_part (m)->kind < WEFT_PART_START || next_part (m)->kind > kind)
    return refuse_order (m, call, error);
  return run_all_before (m, kind, error) && run_next (m, error);
}

bool
weft_module_start_grad_sync (weft_module *m, weft_error *error)
{
  return run_through (m, WEFT_PART_START, error);
}

bool
weft_module_finish_grad_sync (weft_module *m, weft_error *error)
{
  return run_through (m, WEFT_PART_FINISH, error);
}

bool
weft_module_finalize_model_grads (weft_module *m, weft_error *error)
{
  return run_through (m, WEFT_PART_FINALIZE, error);
}

static void
scale_buffer (weft_module *m, uint32_t row, const weft_program *p, uint32_t buf, float factor)
{
  const struct weft_buf *b = &p->buf[buf];
  uint64_t n = b->bytes / weft_dtype_bytes (b->dtype);
  void *data = m->x->ops->at (m->x, row, buf);
  float part[WEFT_STRETCH];

  for (uint64_t first = 0; first < n; first += WEFT_STRETCH) {
    uint64_t count = MIN (WEFT_STRETCH, n - first);
    const float *in = weft_floats (data, b->dtype, first, count, part);
    for (uint64_t i = 0; i < count; i++)
      part[i] = in[i] * factor;
    weft_store (data, b->dtype, first, count, part);
  }
}

bool
weft_module_scale_gradients (weft_module *m, double factor, weft_error *error)
{
  if (!refuse_broken (m, "scale_gradients", error))
    return false;
  if (next_part (m)->kind < WEFT_PART_FINALIZE)
    return refuse_order (m, "scale_gradients", error);
  for (uint32_t row = 0; row < m->x->actors->n; row++) {
    const weft_program *p = m->plan->role[m->x->actors->role[row]];
    for (uint32_t buf = 0; buf < p->n_buf; buf++)
      if (p->buf[buf].kind == WEFT_BUF_GRADIENTS && p->buf[buf].permanent &&
          p->buf[buf].base == WEFT_NO_BUF)
        scale_buffer (m, row, p, buf, (float) factor);
  }
  return weft_api_done (error);
}

/* -------------------------------------------------------------------------- update */

static void
fill_result (const weft_module *m, weft_step_result *out)
{
  const struct weft_metrics *newest = weft_exec_metrics (m->x);

  *out = (weft_step_result){ .loss = newest->loss,
                             .grad_norm = newest->grad_norm,
                             .skipped = newest->skipped };
  for (uint32_t row = 0; row < m->x->actors->n; row++)
    out->large += m->x->metrics[row].large;
}

/* Checks the settings of Adam. A beta of 1 would divide by zero in the bias correction. */
static bool
check_adam (const weft_adam *adam, weft_error *error)
{
  if (!weft_api_given ("step", "adam", adam, error))
    return false;
  return (isfinite (adam->lr) && isfinite (adam->weight_decay) && adam->epsilon >= 0 &&
          isfinite (adam->epsilon) && adam->beta1 >= 0 && adam->beta1 < 1 && adam->beta2 >= 0 &&
          adam->beta2 < 1) ||
         weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                             "step: found lr %g, beta1 %g, beta2 %g, epsilon %g, weight_decay %g, "
                             "wanted finite numbers, betas from 0 to below 1, epsilon from 0",
                             adam->lr, adam->beta1, adam->beta2, adam->epsilon, adam->weight_decay);
}

/* Sets the inputs of the parameter update. The step number for Adam counts updates; steps whose
 * update was skipped do not count. */
static void
set_control (weft_module *m, const weft_adam *adam)
{
  m->control.step = m->progress.step + 1 - m->progress.skipped;
  m->control.lr = adam->lr;
  m->control.beta1 = adam->beta1;
  m->control.beta2 = adam->beta2;
  m->control.epsilon = adam->epsilon;
  m->control.weight_decay = adam->weight_decay;
}

bool
weft_module_step (weft_module *m, const weft_adam *adam, weft_step_result *out, weft_error *error)
{
  weft_step_result result;

  if (!is_next (m, WEFT_PART_UPDATE, error) || !check_adam (adam, error))
    return false;
  set_control (m, adam);
  if (!run_next (m, error) || !end_step (m, error))
    return false;
  fill_result (m, &result);
  m->progress.step++;
  m->progress.skipped += result.skipped;
  weft_loss_scale_update (&m->progress.loss_scale, &m->plan->job, result.skipped);
  m->control.loss_scale = m->progress.loss_scale.scale;
  if (out)
    *out = result;
  return true;
}

bool
weft_module_evaluate (weft_module *m, const int32_t *tokens, double *loss, weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_between_steps (m, "evaluate", error) ||
      !weft_api_given ("evaluate", "loss", loss, error) ||
      !check_tokens (m, "evaluate", tokens, batch_tokens (m), error))
    return false;
  memcpy (m->batch, tokens, batch_tokens (m) * sizeof *tokens);
  m->control.forward_only = TRUE;
  g_autoptr (weft_timeline) t = weft_exec_step (m->x, &reason);
  m->control.forward_only = FALSE;
  m->broken = !t;
  if (!t)
    return weft_api_fail (error, reason);
  *loss = weft_exec_metrics (m->x)->loss;
  return weft_api_done (error);
}

uint64_t
weft_module_steps (const weft_module *m)
{
  return m ? m->progress.step : 0;
}

/* ------------------------------------------------------------------------- weights */

void
weft_module_init_weights (weft_module *m, uint64_t seed)
{
  if (!m)
    return;
  if (m->next)
    end_step (m, NULL);
  m->progress = (struct weft_progress){ 0 };
  weft_api_set_loss_scale (m, weft_loss_scale_start (&m->plan->job));
  weft_state_init (m->state, seed);
}

static gboolean
run_startup (weft_module *m, GError **reason)
{
  const struct weft_exec_options options = { .memory = m->x };
  g_autoptr (weft_plan) startup = weft_plan_new_broadcast (&m->plan->job, reason);
  weft_exec *x = startup ? m->x->ops->open (startup, &options, reason) : NULL;
  g_autoptr (weft_timeline) t = x ? weft_exec_step (x, reason) : NULL;

  m->x->ops->close (x);
  return t != NULL;
}

bool
weft_module_broadcast_params (weft_module *m, weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_between_steps (m, "broadcast_params", error))
    return false;
  if (weft_mesh_group_size (&m->plan->mesh, WEFT_GROUP_DP) > 1) {
    if (!run_startup (m, &reason))
      return weft_api_fail (error, reason);
    weft_api_refresh_masters (m);
  }
  return weft_api_done (error);
}
