/* Weft's arithmetic compared with PyTorch: logits, losses, gradients and AdamW steps of all tiny
 * models of tests/vectors (README.md there), with several strategies. */
#include "core/exec/exec.h"
#include "core/base/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/made.h"
#include "train/hugging_face.h"
#include "train/tokens.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <string.h>

#define VECTORS WEFT_SOURCE_DIR "/tests/vectors"
#define BATCH 4
#define STEPS 3

#define LEARNING_RATE 1e-2

/* Flags of a strategy; they follow the flags that every run has. All strategies read the same
 * batch, so all must have the same results. */
#define WHOLE_BATCH "--gpus", "1", "--micro-batch-size", "4"
#define ONE_BY_ONE "--gpus", "1", "--micro-batch-size", "1"
static const char *const strategies[][9] = {
  { WHOLE_BATCH },
  { ONE_BY_ONE },
  { "--gpus", "1", "--micro-batch-size", "2", "--reduction-order", "fast" },
  { "--gpus", "2" },
  { "--gpus", "2", "--use-distributed-optimizer", "true", "--overlap-grad-reduce", "true",
    "--bucket-size", "3000" },
  { "--gpus", "2", "--pipeline-model-parallel-size", "2" },
  { "--gpus", "4", "--pipeline-model-parallel-size", "2", "--reduction-order", "fast" },
  { "--gpus", "1", "--recompute-granularity", "full", "--recompute-method", "uniform",
    "--recompute-num-layers", "1" },
};

static const char *const expert_strategies[][9] = {
  { "--gpus", "2", "--expert-model-parallel-size", "2" },
  { "--gpus", "2", "--tensor-model-parallel-size", "2", "--sequence-parallel", "true",
    "--reduction-order", "fast" },
};

static int
by_name (gconstpointer a, gconstpointer b)
{
  return strcmp (*(const char *const *) a, *(const char *const *) b);
}

/* The names of all models of tests/vectors, which are its folders with a config.json. */
static char **
vector_models (void)
{
  GPtrArray *names = g_ptr_array_new ();
  GDir *folder = g_dir_open (VECTORS, 0, NULL);

  assert_non_null (folder);
  for (const char *name; (name = g_dir_read_name (folder));) {
    g_autofree char *config = g_build_filename (VECTORS, name, "config.json", NULL);
    if (g_file_test (config, G_FILE_TEST_EXISTS))
      g_ptr_array_add (names, g_strdup (name));
  }
  g_dir_close (folder);
  assert_true (names->len > 0);
  g_ptr_array_sort (names, by_name);
  g_ptr_array_add (names, NULL);
  return (char **) g_ptr_array_free (names, FALSE);
}

static gboolean
has_experts (const char *name)
{
  g_autofree char *config = g_build_filename (VECTORS, name, "config.json", NULL);
  union weft_model model;

  assert_true (weft_model_load (config, &model, NULL, NULL));
  return model.num_moe_experts > 0;
}

/* An open executor with a model before its first step. */
struct run {
  const char *model;
  weft_plan *plan;
  weft_exec *exec;
  weft_state *state;
  struct weft_control control;
  int32_t *tokens;
};

#define ok(expression, error)                                                                      \
  do {                                                                                             \
    if (!(expression))                                                                             \
      fail_msg ("%s", (error)->message);                                                           \
  } while (0)

/* ----------------------------------------------------------- what PyTorch says */

static weft_safetensors *
open_vectors (const char *model, const char *file)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = g_build_filename (VECTORS, model, file, NULL);
  weft_safetensors *vectors = weft_safetensors_open (path, &error);

  ok (vectors, error);
  return vectors;
}

/* Returns all elements of the tensor `name` of a safetensors file, which must have `wanted`
 * elements. The caller frees the array. */
static float *
vector (const weft_safetensors *file, const char *name, uint64_t wanted)
{
  g_autoptr (GError) error = NULL;
  const struct weft_tensor *tensor = weft_safetensors_find (file, name);

  if (!tensor)
    fail_msg ("no tensor %s among the vectors", name);
  assert_int_equal (weft_tensor_elements (tensor), wanted);
  float *values = g_new (float, wanted);
  ok (weft_safetensors_floats (file, tensor, 0, wanted, values, &error), error);
  return values;
}

/* --------------------------------------------------------------------- running */

/* Reads the batch: sequence i is tokens [i T, i T + T] of the file, where T is seq_length. */
static void
read_tokens (struct run *run)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = g_build_filename (VECTORS, run->model, "tokens.bin", NULL);
  uint64_t length = (uint64_t) run->plan->job.model.seq_length;
  g_autoptr (weft_tokens) file = weft_tokens_open (path, run->plan->job.model.vocab_size, &error);

  ok (file, error);
  assert_int_equal (weft_tokens_count (file), BATCH * length + 1);
  run->tokens = g_new (int32_t, BATCH * (length + 1));
  for (uint64_t i = 0; i < BATCH; i++)
    ok (weft_tokens_read (file, i * length, length + 1, run->tokens + i * (length + 1), &error),
        error);
}

static void
import_weights (struct run *run)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = g_build_filename (VECTORS, run->model, "model.safetensors", NULL);
  g_autofree char *unused = NULL;

  ok (weft_hf_import (run->state, &run->plan->job.model, path, &unused, &error), error);
  if (unused)
    fail_msg ("not used: %s", unused);
}

/* Opens a run of a model. `strategy`: at most 12 flags, terminated by NULL. */
static void
open_run (struct run *run, const char *model, const char *precision, const char *const *strategy)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *config = g_build_filename (VECTORS, model, "config.json", NULL);
  const char *flags[24] = { "--model",     config,    "--topology",          "cpu",
                            "--precision", precision, "--global-batch-size", "4" };
  struct weft_job job;

  for (uint32_t i = 0; strategy[i]; i++)
    flags[8 + i] = strategy[i];
  made_real_job (&job, flags);
  /* optimizer settings that make_vectors.py uses for PyTorch */
  *run = (struct run){ .model = model,
                       .plan = made_real_plan (&job),
                       .control = { .step = 1,
                                    .lr = LEARNING_RATE,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .epsilon = 1e-8,
                                    .weight_decay = 0.1,
                                    .clip_grad = 1 } };
  read_tokens (run);
  run->control.tokens = run->tokens;
  struct weft_exec_options options = { .control = &run->control };
  run->exec = weft_exec_cpu.open (run->plan, &options, &error);
  ok (run->exec, error);
  run->state = weft_state_new (run->exec);
  import_weights (run);
}

static void
close_run (struct run *run)
{
  weft_state_free (run->state);
  run->exec->ops->close (run->exec);
  weft_plan_free (run->plan);
  g_free (run->tokens);
}

static void
step (struct run *run)
{
  g_autoptr (GError) error = NULL;
  weft_timeline *timeline = weft_exec_step (run->exec, &error);

  ok (timeline, error);
  weft_timeline_free (timeline);
}

/* Returns the loss of a step. All ranks that compute a loss must have computed an equal loss. */
static double
loss_of (const struct run *run)
{
  double loss = NAN;

  for (uint32_t row = 0; row < run->exec->actors->n; row++) {
    double here = run->exec->metrics[row].loss;
    if (!isnan (here) && !isnan (loss) && here != loss)
      fail_msg ("%s: losses %.9g and %.9g on two ranks", run->model, loss, here);
    loss = isnan (here) ? loss : here;
  }
  return loss;
}

/* ------------------------------------------------------------------- comparing */

static void
assert_close (const char *model, const char *what, double found, double wanted, double tolerance)
{
  if (!(fabs (found - wanted) <= tolerance * fabs (wanted)))
    fail_msg ("%s: %s: found %.9g, wanted %.9g: %.2g apart, allowed %.2g of it", model, what, found,
              wanted, fabs (found - wanted), tolerance);
}

static double
largest (const float *values, uint64_t n)
{
  double most = 0;
  for (uint64_t i = 0; i < n; i++)
    most = fmax (most, fabs ((double) values[i]));
  return most;
}

/* Returns the magnitude to which errors of a gradient are compared: its largest element, but at
 * least 1e-3. The gradient of a bias of keys (a separate tensor in opt) is zero except for
 * rounding, because softmax is invariant to this bias. All other gradients exceed 1e-3. */
static double
scale_of (const float *values, uint64_t n)
{
  return fmax (largest (values, n), 1e-3);
}

/* The name of a tensor in a file. Names of gpt2 have the prefix "transformer." in files of a whole
 * model but not in files of the bare model. */
static const char *
name_in (const weft_safetensors *file, const char *name)
{
  static const char prefix[] = "transformer.";
  const char *bare = g_str_has_prefix (name, prefix) ? name + strlen (prefix) : name;

  for (uint32_t i = 0; i < weft_safetensors_count (file); i++) {
    const char *there = weft_safetensors_at (file, i)->name;
    if (strcmp (there, name) == 0 ||
        (g_str_has_prefix (there, prefix) && strcmp (there + strlen (prefix), bare) == 0))
      return there;
  }
  return name;
}

/* The part of one of Weft's tensors that is a tensor in Hugging Face, in the layout of Hugging
 * Face. The caller frees the array. */
static float *
read_piece (weft_state *state, uint32_t tensor, enum weft_state_kind kind,
            const struct weft_hf_piece *piece)
{
  uint64_t n = piece->rows * piece->columns;
  g_autofree float *ours = g_new (float, n);
  float *theirs = g_new (float, n);

  weft_state_read (state, tensor, kind, piece->first_row * piece->columns, n, ours);
  for (uint64_t i = 0; i < n; i++) {
    uint64_t row = i / piece->columns, column = i % piece->columns;
    row = weft_hf_their_row (piece, row);
    theirs[piece->transposed ? column * piece->rows + row : row * piece->columns + column] =
        ours[i] - (kind == WEFT_STATE_GRAD ? 0 : piece->shift);
  }
  return theirs;
}

/* A tensor under its Hugging Face name: its values in Weft and in PyTorch. `gradient`: PyTorch's
 * gradient of the first step. */
struct pair {
  const char *model, *name;
  const float *found, *wanted, *gradient;
  uint64_t n;
};

/* Calls `compare` for every Hugging Face tensor of the model. Returns the number of tensors. */
static uint32_t
each_tensor (struct run *run, enum weft_state_kind kind, const weft_safetensors *wanted,
             const weft_safetensors *gradients, void (*compare) (const struct pair *pair))
{
  uint32_t n_pieces = 0;

  for (uint32_t t = 0; t < weft_state_count (run->state); t++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (GArray) pieces =
        weft_hf_pieces (&run->plan->job.model, weft_state_at (run->state, t), &error);
    ok (pieces, error);
    for (uint32_t i = 0; i < pieces->len; i++, n_pieces++) {
      const struct weft_hf_piece *piece = &g_array_index (pieces, struct weft_hf_piece, i);
      struct pair pair = { .model = run->model, .name = name_in (wanted, piece->name) };
      pair.n = piece->rows * piece->columns;
      g_autofree float *found = read_piece (run->state, t, kind, piece);
      g_autofree float *right = vector (wanted, pair.name, pair.n);
      g_autofree float *gradient = vector (gradients, pair.name, pair.n);
      pair.found = found;
      pair.wanted = right;
      pair.gradient = gradient;
      compare (&pair);
    }
  }
  return n_pieces;
}

/* Maximum error of an element of a gradient, relative to the largest element of the tensor: six
 * times the largest error observed. */
#define NEAR 2e-5

static void
gradient_is_near (const struct pair *p)
{
  double scale = scale_of (p->wanted, p->n);

  for (uint64_t i = 0; i < p->n; i++)
    if (!(fabs ((double) p->found[i] - p->wanted[i]) <= NEAR * scale))
      fail_msg ("%s: gradient of %s: element %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                ": found %.9g, wanted %.9g; the largest is %.3g",
                p->model, p->name, i, p->n, (double) p->found[i], (double) p->wanted[i], scale);
}

/* Whether an element's gradient is too small for a comparison of the updated weight. Adam divides a
 * gradient by its own magnitude, so rounding errors can change the step of such an element by more
 * than a hundredth. The observed rounding error is 3.3e-6 of the largest gradient, so the limit is
 * 3.3e-4 of the largest. Zeros in a matrix belong to tokens that no sequence contains; these zeros
 * are compared. */
static gboolean
direction_is_rounding (const struct pair *p, uint64_t i, double scale)
{
  double gradient = fabs ((double) p->gradient[i]);

  return gradient < 3.3e-4 * scale && (gradient > 0 || g_str_has_suffix (p->name, ".bias"));
}

/* Compares updated weights with those of PyTorch. The limit is a hundredth of the learning rate. A
 * small gradient raises the limit: Adam divides the allowed error of the gradient by the magnitude
 * of the gradient. */
static void
weight_is_near (const struct pair *p)
{
  double scale = scale_of (p->gradient, p->n);

  for (uint64_t i = 0; i < p->n; i++) {
    if (direction_is_rounding (p, i, scale))
      continue;
    double gradient = fabs ((double) p->gradient[i]), limit = LEARNING_RATE / 100;
    if (gradient > 0)
      limit += LEARNING_RATE * NEAR * scale / gradient;
    if (!(fabs ((double) p->found[i] - p->wanted[i]) <= limit))
      fail_msg ("%s: %s after %d steps: element %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                ": found %.9g, wanted %.9g; its first gradient was %.3g",
                p->model, p->name, STEPS, i, p->n, (double) p->found[i], (double) p->wanted[i],
                (double) p->gradient[i]);
  }
}

static void
gradient_has_the_direction (const struct pair *p)
{
  double dot = 0, found = 0, wanted = 0;

  for (uint64_t i = 0; i < p->n; i++) {
    dot += (double) p->found[i] * p->wanted[i];
    found += (double) p->found[i] * p->found[i];
    wanted += (double) p->wanted[i] * p->wanted[i];
  }
  /* The model opt has the smallest query gradients. Their observed cosine with PyTorch's gradients
   * is 0.995. */
  double cosine = dot / sqrt (found * wanted), least = g_str_equal (p->model, "opt") ? 0.99 : 0.997;
  if (!(cosine > least) && largest (p->wanted, p->n) > 1e-12)
    fail_msg ("%s: gradient of %s: cosine %.6g, wanted over %g", p->model, p->name, cosine, least);
}

/* The logits of the whole batch, which is one microbatch. The caller frees the array. */
static float *
read_logits (struct run *run, uint64_t n)
{
  const weft_program *p = run->plan->role[0];

  for (uint32_t buf = 0; buf < p->n_buf; buf++)
    if (strcmp (p->name[p->buf[buf].name], "logits") == 0) {
      float *logits = g_new (float, n);
      assert_int_equal (p->buf[buf].bytes, n * sizeof (float));
      run->exec->ops->read (run->exec, 0, buf, 0, n * sizeof (float), logits);
      return logits;
    }
  fail_msg ("%s: no buffer named logits", run->model);
  return NULL;
}

/* ----------------------------------------------------------------------- tests */

static void
logits_are_those_of_other_software (void **unused)
{
  g_auto (GStrv) models = vector_models ();
  /* a stack without fused_loss, which replaces the logits by their gradient in forward */
  static const char *const flags[] = { WHOLE_BATCH, "--stack", "megatron-core", NULL };

  (void) unused;
#if WEFT_ADDRESS_SANITIZER
  skip (); /* the logits are dead after the step, and the executor poisons dead buffers */
#endif
  for (uint32_t m = 0; models[m]; m++) {
    struct run run;
    if (g_str_equal (models[m], "deepseek_v3"))
      /* The logits of the prediction layer overwrite the logits of the model in memory. */
      continue;
    g_autoptr (weft_safetensors) expected = open_vectors (models[m], "expected.safetensors");

    open_run (&run, models[m], "fp32", flags);
    uint64_t n = BATCH * (uint64_t) run.plan->job.model.seq_length *
                 (uint64_t) run.plan->job.model.vocab_size;
    run.control.forward_only = TRUE;
    step (&run);
    g_autofree float *found = read_logits (&run, n);
    g_autofree float *wanted = vector (expected, "logits", n);
    for (uint64_t i = 0; i < n; i++)
      if (!(fabs ((double) found[i] - wanted[i]) <= 1e-5 * fmax (1, fabs ((double) wanted[i]))))
        fail_msg ("%s: logit %" G_GUINT64_FORMAT ": found %.9g, wanted %.9g", models[m], i,
                  (double) found[i], (double) wanted[i]);
    close_run (&run);
  }
}

/* Runs the first step as a forward pass only, and then as a whole step. Both must have PyTorch's
 * loss, because a forward pass does not change the weights. */
static void
check_first_step (const char *model, const char *const *strategy)
{
  struct run run;
  g_autoptr (weft_safetensors) expected = open_vectors (model, "expected.safetensors");
  g_autofree float *loss = vector (expected, "loss", 1);

  open_run (&run, model, "fp32", strategy);
  run.control.forward_only = TRUE;
  step (&run);
  assert_close (model, "loss of a forward pass", loss_of (&run), loss[0], 2e-6);
  run.control.forward_only = FALSE;
  step (&run);
  assert_close (model, "loss", loss_of (&run), loss[0], 2e-6);
  uint32_t n = each_tensor (&run, WEFT_STATE_GRAD, expected, expected, gradient_is_near);
  /* the file also contains logits and loss, which are no gradients */
  assert_int_equal (n, weft_safetensors_count (expected) - 2);
  close_run (&run);
}

static void
under_all_strategies (void (*check) (const char *model, const char *const *strategy))
{
  g_auto (GStrv) models = vector_models ();
  for (uint32_t m = 0; models[m]; m++) {
    for (uint32_t s = 0; s < G_N_ELEMENTS (strategies); s++)
      check (models[m], strategies[s]);
    for (uint32_t s = 0; s < G_N_ELEMENTS (expert_strategies) && has_experts (models[m]); s++)
      check (models[m], expert_strategies[s]);
  }
}

static void
losses_and_gradients_are_those_of_other_software (void **unused)
{
  (void) unused;
  under_all_strategies (check_first_step);
}

static void
check_steps (const char *model, const char *const *strategy)
{
  struct run run;
  g_autoptr (weft_safetensors) gradients = open_vectors (model, "expected.safetensors");
  g_autoptr (weft_safetensors) expected = open_vectors (model, "expected_steps.safetensors");
  g_autofree float *loss = vector (expected, "loss", STEPS);
  g_autofree float *norm = vector (expected, "grad_norm", STEPS);

  open_run (&run, model, "fp32", strategy);
  for (uint32_t i = 0; i < STEPS; i++) {
    run.control.step = i + 1;
    step (&run);
    assert_close (model, "loss", loss_of (&run), loss[i], 5e-6);
    for (uint32_t row = 0; row < run.exec->actors->n; row++) {
      assert_close (model, "gradient norm", run.exec->metrics[row].grad_norm, norm[i], 5e-5);
      assert_false (run.exec->metrics[row].skipped);
    }
  }
  each_tensor (&run, WEFT_STATE_WEIGHT, expected, gradients, weight_is_near);
  close_run (&run);
}

static void
adam_steps_are_those_of_other_software (void **unused)
{
  (void) unused;
  under_all_strategies (check_steps);
}

/* In bf16, rounding routes some tokens to other experts. So gradients of models with experts are
 * compared without a bound. */
static void
bf16_stays_near_the_exact_numbers (void **unused)
{
  g_auto (GStrv) models = vector_models ();
  static const char *const chosen[][5] = { { WHOLE_BATCH }, { ONE_BY_ONE }, { "--gpus", "2" } };

  (void) unused;
  for (uint32_t m = 0; models[m]; m++)
    for (uint32_t s = 0; s < G_N_ELEMENTS (chosen); s++) {
      struct run run;
      g_autoptr (weft_safetensors) expected = open_vectors (models[m], "expected.safetensors");
      g_autofree float *loss = vector (expected, "loss", 1);

      open_run (&run, models[m], "bf16", chosen[s]);
      step (&run);
      assert_close (models[m], "loss in bf16", loss_of (&run), loss[0], 2e-3);
      if (!has_experts (models[m]))
        each_tensor (&run, WEFT_STATE_GRAD, expected, expected, gradient_has_the_direction);
      close_run (&run);
    }
}

/* Compares the file that --dump-gradients writes: whole tensors under their Hugging Face names and
 * shapes. */
static void
compare_dump (const char *model, const char *path)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_safetensors) expected = open_vectors (model, "expected.safetensors");
  g_autoptr (weft_safetensors) dump = weft_safetensors_open (path, &error);

  ok (dump, error);
  assert_int_equal (weft_safetensors_count (dump), weft_safetensors_count (expected) - 2);
  for (uint32_t i = 0; i < weft_safetensors_count (dump); i++) {
    const struct weft_tensor *found = weft_safetensors_at (dump, i);
    const struct weft_tensor *wanted =
        weft_safetensors_find (expected, name_in (expected, found->name));
    if (!wanted)
      fail_msg ("%s: %s is no name of other software", model, found->name);
    assert_int_equal (found->n_dim, wanted->n_dim);
    assert_memory_equal (found->dim, wanted->dim, found->n_dim * sizeof (found->dim[0]));
    struct pair pair = { .model = model, .name = wanted->name };
    pair.n = weft_tensor_elements (wanted);
    g_autofree float *ours = vector (dump, found->name, pair.n);
    g_autofree float *theirs = vector (expected, wanted->name, pair.n);
    pair.found = ours;
    pair.wanted = theirs;
    gradient_is_near (&pair);
  }
}

static void
the_command_dumps_the_gradients_of_other_software (void **unused)
{
  g_auto (GStrv) models = vector_models ();
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp ("weft-vectors-XXXXXX", &error);
  g_autofree char *path = g_build_filename (folder, "gradients.safetensors", NULL);

  (void) unused;
  ok (folder, error);
  for (uint32_t m = 0; models[m]; m++) {
    g_autofree char *command = g_strdup_printf (
        "%1$s train --model %2$s/%3$s/config.json --topology cpu --gpus 2 --precision fp32 "
        "--global-batch-size 4 --init-safetensors %2$s/%3$s/model.safetensors "
        "--tokens-from %2$s/%3$s/tokens.bin --no-shuffle --steps 1 --dump-gradients %4$s --json",
        WEFT_BINARY, VECTORS, models[m], path);
    g_autofree char *out = NULL, *said = NULL;
    int status = -1;
    ok (g_spawn_command_line_sync (command, &out, &said, &status, &error), error);
    if (status != 0)
      fail_msg ("%s\n%s", command, said);
    compare_dump (models[m], path);
    assert_int_equal (g_unlink (path), 0);
  }
  g_rmdir (folder);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (logits_are_those_of_other_software),
  cmocka_unit_test (losses_and_gradients_are_those_of_other_software),
  cmocka_unit_test (adam_steps_are_those_of_other_software),
  cmocka_unit_test (bf16_stays_near_the_exact_numbers),
  cmocka_unit_test (the_command_dumps_the_gradients_of_other_software),
};

WEFT_TESTS (tests, .seconds = 6)
