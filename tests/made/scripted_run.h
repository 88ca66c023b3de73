/* scripted_run.h - runs of the training loop on an executor that trains a single number and records
 * every step. A script lets it raise signals, skip steps, and return losses that are not finite. */
#pragma once
#include "tests/made/random_job.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include "train/trainer.h"
#include <glib/gstdio.h>
#include <math.h>
#include <signal.h>
#include <string.h>

enum { MOST_STEPS = 64, SEQUENCE = 16 };

#define JOB "model=gpt2-nano topology=cpu precision=fp32 seq_length=16 "

/* ------------------------------------------------------------------- executor */

/* The script of the executor, and its record of steps and evaluations in order. */
static struct {
  /* numbers of training steps, counted from 1, at which the script raises the signal, skips or
   * returns NaN */
  uint64_t signal_at, skip_from, skip_to, nan_from;
  int signal;
  /* path of a file that must not exist during the first step call and must exist during the
   * second */
  const char *look_for;
  uint64_t spoil_at; /* number of the step call whose update makes the weight NaN */
  uint64_t act_at;   /* number of the step call in which act (path) is called */
  void (*act) (const char *path);
  const char *path;
  /* the signal is raised at this write to the memory of a rank, counted from 1; 0: never */
  uint32_t signal_at_write;

  uint32_t writes;
  uint32_t n;
  struct seen {
    uint64_t step;
    double lr;
    gboolean forward_only, found;
    int32_t first, last; /* the first and the last token of the step's batch */
  } seen[MOST_STEPS];
} script;

struct fake {
  weft_exec base;
  const struct weft_control *control;
  uint8_t **arena;
};

static const struct weft_exec_ops fake_ops;

static inline weft_exec *
fake_open (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  struct fake *f = g_new0 (struct fake, 1);

  (void) error;
  f->base.ops = &fake_ops;
  f->base.plan = plan;
  f->base.actors = weft_actors_new (&plan->fabric, &plan->mesh, FALSE);
  f->base.metrics = g_new0 (struct weft_metrics, f->base.actors->n);
  f->base.allocated = g_new0 (uint64_t, f->base.actors->n);
  f->control = options->control;
  f->arena = g_new0 (uint8_t *, f->base.actors->n);
  for (uint32_t row = 0; row < f->base.actors->n; row++) {
    const struct weft_memory *m = &plan->memory[f->base.actors->role[row]];
    f->base.allocated[row] = m->planned[WEFT_POOL_DEVICE];
    f->arena[row] = g_malloc0 (f->base.allocated[row]);
  }
  return &f->base;
}

static inline gboolean
fake_wait (weft_exec *x, uint32_t row, enum weft_lane lane, uint32_t op, GError **error)
{
  (void) x, (void) row, (void) lane, (void) op, (void) error;
  return TRUE;
}

static inline gboolean
fake_issue (weft_exec *x, uint32_t row, uint32_t op, GError **error)
{
  (void) x, (void) row, (void) op, (void) error;
  return TRUE;
}

static inline const weft_program *
program_of (const weft_exec *x, uint32_t row)
{
  return x->plan->role[x->actors->role[row]];
}

static inline uint8_t *
bytes_of (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset)
{
  return ((struct fake *) x)->arena[row] + weft_buf_address (program_of (x, row), buf) + offset;
}

static inline void
fake_read (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, void *out)
{
  memcpy (out, bytes_of (x, row, buf, offset), n);
}

static inline void
fake_write (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, const void *in)
{
  if (++script.writes == script.signal_at_write)
    raise (script.signal);
  memcpy (bytes_of (x, row, buf, offset), in, n);
}

static inline uint32_t
batch_tokens (const weft_exec *x)
{
  return (uint32_t) x->plan->job.train.global_batch_size * (SEQUENCE + 1);
}

static inline void
write_down (const weft_exec *x, const struct weft_control *c)
{
  assert_in_range (script.n, 0, MOST_STEPS - 1);
  script.seen[script.n++] = (struct seen){
    .step = c->step,
    .lr = c->lr,
    .forward_only = c->forward_only,
    .found = script.look_for && g_file_test (script.look_for, G_FILE_TEST_EXISTS),
    .first = c->tokens[0],
    .last = c->tokens[batch_tokens (x) - 1],
  };
}

static inline gboolean
skips_now (void)
{
  return script.n >= script.skip_from && script.n <= script.skip_to;
}

/* Returns the last parameter of a stage that is not tied. The scripted executor trains its first
 * element. */
static inline const struct weft_param *
own_param (const weft_program *p)
{
  uint32_t i = p->n_param - 1;

  while (p->param[i].tied)
    i--;
  return &p->param[i];
}

/* Trains the only trained number, the first element of own_param(). Its new value depends on all
 * tokens of the batch, the learning rate and the number of updates; the loss depends on its value.
 * So any mistake of the training loop changes later losses. */
static inline void
train_one_number (weft_exec *x, uint32_t row, const struct weft_control *c)
{
  const weft_program *p = program_of (x, row);
  float *w = (float *) (void *) bytes_of (x, row, own_param (p)->weight, 0);
  struct weft_metrics *m = &x->metrics[row];
  double sum = 0;

  for (uint32_t i = 0; i < batch_tokens (x); i++)
    sum += c->tokens[i] * (1 + i % 5);
  *m = (struct weft_metrics){ .loss = NAN, .grad_norm = NAN, .skipped = skips_now () };
  if (p->role == x->plan->n_roles - 1) {
    m->loss = script.nan_from && script.n >= script.nan_from ? NAN : *w + sum * 1e-6;
    m->grad_norm = 0.5 + sum;
  }
  if (!c->forward_only && !m->skipped)
    *w -= script.n == script.spoil_at ? NAN : (float) (c->lr * sum * 1e-4 / (double) c->step);
}

static inline weft_timeline *
fake_drain (weft_exec *x, GError **error)
{
  const struct weft_control *c = ((struct fake *) x)->control;

  (void) error;
  write_down (x, c);
  for (uint32_t row = 0; row < x->actors->n; row++)
    train_one_number (x, row, c);
  if (script.n == script.act_at)
    script.act (script.path);
  if (script.n == script.signal_at) {
    raise (script.signal);
    raise (script.signal);
  }
  weft_timeline *t = weft_timeline_new (x->plan, x->actors, x->ops->name);
  t->seconds = script.n;
  return t;
}

static inline void
fake_close (weft_exec *x)
{
  struct fake *f = (struct fake *) x;

  if (!x)
    return;
  for (uint32_t row = 0; row < x->actors->n; row++)
    g_free (f->arena[row]);
  g_free (f->arena);
  g_free (x->metrics);
  g_free (x->allocated);
  weft_actors_free (x->actors);
  g_free (x);
}

static const struct weft_exec_ops fake_ops = {
  .name = "fake",
  .flags = WEFT_EXEC_TIMES | WEFT_EXEC_NUMBERS,
  .open = fake_open,
  .wait = fake_wait,
  .issue = fake_issue,
  .drain = fake_drain,
  .close = fake_close,
  .read = fake_read,
  .write = fake_write,
};

/* ------------------------------------------------------------------------ runs */

struct run {
  weft_plan *plan;
  /* the folder of the run; the path of the token file; the folder of the checkpoints */
  char *dir, *data, *save;
  struct weft_trainer_options options;
  struct weft_trainer_result result;
  GArray *lines;
  GString *said;
  gboolean ok;
  GError *error;
};

static inline void
keep_line (void *user, const struct weft_trainer_line *line)
{
  g_array_append_val (((struct run *) user)->lines, *line);
}

static inline void
keep_message (void *user, const char *message)
{
  g_string_append_printf (((struct run *) user)->said, "%s\n", message);
}

/* Writes a file of 40 sequences. Token i is (i / 2 + shift) modulo 251, so that the first token of
 * a batch shows its position in the file. */
static inline void
write_tokens (const char *path, int shift)
{
  char bytes[40 * SEQUENCE + 1];

  for (unsigned i = 0; i < sizeof bytes; i++)
    bytes[i] = (char) ((i / 2 + shift) % 251);
  assert_true (g_file_set_contents (path, bytes, sizeof bytes, NULL));
}

static inline struct run *
run_new (const char *words)
{
  struct run *r = g_new0 (struct run, 1);

  memset (&script, 0, sizeof script);
  r->plan = weft_test_plan (JOB "%s", words);
  r->dir = g_dir_make_tmp ("weft-trainer-XXXXXX", NULL);
  r->data = g_build_filename (r->dir, "tokens.txt", NULL);
  r->save = g_build_filename (r->dir, "saved", NULL);
  r->lines = g_array_new (FALSE, FALSE, sizeof (struct weft_trainer_line));
  r->said = g_string_new (NULL);
  write_tokens (r->data, 0);
  r->options = (struct weft_trainer_options){
    .data = r->data,
    .steps = 6,
    .seed = 7,
    .lr = 1,
    .min_lr = 0.1,
    .warmup = 2,
    .decay_steps = 20,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .epsilon = 1e-8,
  };
  return r;
}

/* Returns a run with one rank and `steps` steps, which saves after the last step. */
static inline struct run *
run_saving (uint64_t steps)
{
  struct run *r = run_new ("gpus=1");

  r->options.steps = steps;
  r->options.save = r->save;
  return r;
}

static inline void
play (struct run *r)
{
  const struct weft_trainer_sink sink = { keep_line, keep_message, r };

  weft_trainer_result_clear (&r->result);
  g_clear_error (&r->error);
  g_array_set_size (r->lines, 0);
  g_string_truncate (r->said, 0);
  script.n = script.writes = 0;
  r->ok = weft_trainer_run (r->plan, &fake_ops, &r->options, &sink, &r->result, &r->error);
}

static inline void
play_well (struct run *r)
{
  play (r);
  if (!r->ok)
    fail_msg ("%s", r->error->message);
}

static inline void
play_badly (struct run *r, const char *part)
{
  play (r);
  if (r->ok || !strstr (r->error->message, part))
    fail_msg ("found \"%s\", wanted \"%s\"", r->ok ? "no error" : r->error->message, part);
}

static inline const struct weft_trainer_line *
line_at (const struct run *r, unsigned i)
{
  assert_in_range (i, 0, r->lines->len - 1);
  return &g_array_index (r->lines, struct weft_trainer_line, i);
}

static inline void
run_free (struct run *r)
{
  weft_test_remove (r->dir);
  weft_trainer_result_clear (&r->result);
  g_clear_error (&r->error);
  g_array_unref (r->lines);
  g_string_free (r->said, TRUE);
  weft_plan_free (r->plan);
  g_free (r->save);
  g_free (r->data);
  g_free (r->dir);
  g_free (r);
}

/* Returns the steps that have a checkpoint, as text: "2 4 5". The caller frees the text. */
static inline char *
saved_steps (const struct run *r)
{
  g_autoptr (GString) steps = g_string_new (NULL);

  for (unsigned step = 0; step < MOST_STEPS; step++) {
    g_autofree char *name = g_strdup_printf ("step-%08u", step);
    g_autofree char *path = g_build_filename (r->save, name, NULL);
    if (g_file_test (path, G_FILE_TEST_IS_DIR))
      g_string_append_printf (steps, "%s%u", steps->len ? " " : "", step);
  }
  return g_string_free (g_steal_pointer (&steps), FALSE);
}

static inline void
assert_saved (const struct run *r, const char *steps)
{
  g_autofree char *found = saved_steps (r);
  assert_string_equal (found, steps);
}
