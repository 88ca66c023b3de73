/* Attention by cuDNN. A double that computes operation graphs shows that our graph describes
 * attention. If cuDNN is installed, it must make plans of the graph for GPUs of which only the
 * device properties are given. */
#include "exec_gpu/cuda/module/fused.h"
#include "kernels/bind.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/producer.h"
#include "kernels/cuda/table.h"
#include "tests/doubles/computing_cuda.h"
#include "tests/made/cuda_case.h"
#include "tests/runner/folder.h"
#include "tests/made/nano.h"
#include "tests/doubles/playing_cudnn.h"
#include "tests/doubles/playing_trial.h"
#include "tests/made/trained_cases.h"
#include "tests/runner/runner.h"
#include <dlfcn.h>

#define GUARD 256 /* bytes behind the scratch memory, which the kernels must not change */

/* ------------------------------------------------------------------------------ the double */

static struct weft_cudnn_shape
shape_of (const struct weft_kernel *k)
{
  return weft_cudnn_shape_of (k->shape.dim, k->operand[0].dtype, k->kind == WEFT_OP_ATTENTION_BWD,
                              k->deterministic);
}

static void
launch (void *user, const struct weft_kernel *k, gboolean again)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);
  struct weft_cudnn_shape shape = shape_of (k);

  (void) again;
  assert_null (weft_cudnn_attention_plan (user, &shape, &l.scratch_bytes));
  g_autofree uint8_t *scratch = g_malloc (l.scratch_bytes + GUARD);
  memset (scratch, 0xff, l.scratch_bytes + GUARD);
  l.scratch = scratch;
  l.stream = &l;
  assert_null (weft_cudnn_attention_run (user, &shape, &l));
  for (int i = 0; i < GUARD; i++)
    assert_int_equal (scratch[l.scratch_bytes + (uint64_t) i], 0xff);
}

static gboolean
has_attention (void *user, enum weft_op_kind kind)
{
  (void) user;
  return kind == WEFT_OP_ATTENTION || kind == WEFT_OP_ATTENTION_BWD;
}

static struct weft_cudnn_attention *
open_double (const struct weft_cudnn_calls *calls)
{
  const char *why = NULL;
  struct weft_cudnn_attention *a = weft_cudnn_attention_new (calls, NULL, &why);

  if (!a)
    fail_msg ("%s", why);
  return a;
}

static void
the_graph_of_attention_computes_attention (void **state)
{
  struct weft_cudnn_attention *a = open_double (&playing_cudnn);
  const struct cuda_case_device device = { has_attention, launch, a };

  (void) state;
  cuda_case_fused_attention (&device);
  weft_cudnn_attention_free (a);
}

static const char *
refusal (struct weft_cudnn_attention *a, uint64_t tokens, uint64_t width, enum weft_dtype dtype)
{
  const uint64_t dim[] = { 1, tokens, 2, 1, width, 0, 0 };
  const struct weft_cudnn_shape shape = weft_cudnn_shape_of (dim, (uint8_t) dtype, TRUE, TRUE);
  uint64_t scratch = 0;
  const char *why = weft_cudnn_attention_plan (a, &shape, &scratch);

  assert_int_equal (scratch == 0, why != NULL);
  return why;
}

static void
a_shape_that_cudnn_does_not_take_is_refused_with_the_reason (void **state)
{
  struct weft_cudnn_attention *a = open_double (&playing_cudnn);

  (void) state;
  assert_null (refusal (a, 32, 64, WEFT_BF16));
  assert_non_null (strstr (refusal (a, 32, 64, WEFT_FP32), "bf16 and fp16"));
  assert_non_null (strstr (refusal (a, 32, 60, WEFT_BF16), "multiples of 8"));
  assert_non_null (strstr (refusal (a, 32, 264, WEFT_BF16), "no engine"));
  weft_cudnn_attention_free (a);
}

/* A batch of 2^23 tokens: the fp32 sums of attention gradients alone need more scratch than the
 * limit. (The double of cuDNN needs little workspace.) */
static void
more_scratch_than_agreed_is_refused (void **state)
{
  struct weft_cudnn_attention *a = open_double (&playing_cudnn);
  const uint64_t dim[] = { 1, 1 << 23, 2, 1, 128, 0, 0 };
  const struct weft_cudnn_shape shape = weft_cudnn_shape_of (dim, WEFT_BF16, TRUE, FALSE);
  uint64_t scratch = 0;

  (void) state;
  assert_string_equal (weft_cudnn_attention_plan (a, &shape, &scratch),
                       "it needs 8.1 GiB of scratch; the limit is 4 GiB");
  assert_int_equal (scratch, 0);
  weft_cudnn_attention_free (a);
}

static void
versions_that_would_compute_wrongly_are_not_asked (void **state)
{
  const char *why = NULL;
  struct weft_cudnn_attention *former = open_double (&playing_former_cudnn);

  (void) state;
  assert_null (refusal (former, 256, 64, WEFT_BF16));
  assert_non_null (strstr (refusal (former, 250, 64, WEFT_BF16), "multiples of 128"));
  weft_cudnn_attention_free (former);
  assert_null (weft_cudnn_attention_new (&playing_old_cudnn, NULL, &why));
  assert_string_equal (why, "cuDNN: found version 90700, wanted 91100 or newer");
}

static void
a_missing_library_is_named_with_what_was_tried (void **state)
{
  const char *why = NULL;

  (void) state;
  assert_null (weft_cudnn_open (WEFT_SOURCE_DIR "/nowhere/libcudnn.so.9", &why));
  assert_non_null (strstr (why, "cuDNN not found: looked for libcudnn.so.9"));
  assert_non_null (strstr (why, "nowhere/libcudnn.so.9: cannot open"));
  assert_null (weft_cudnn_open (WEFT_NO_DRIVER, &why));
  assert_non_null (strstr (why, "lacks calls of the graph API"));
}

/* Training steps with attention_backend = fused on the double, with the scratch that the executor
 * gives. Results must be near those of the CPU, and two runs must have the same bits. */
static void
training_with_it_is_that_of_the_cpu_and_repeats_itself (void **state)
{
  struct weft_cudnn_attention *a = open_double (&playing_cudnn);
  g_autoptr (computing_cuda) device = computing_cuda_new (0);

  (void) state;
  device->cudnn = a;
  trained_fused (&device->calls);
  assert_true (device->n_fused > 0);
  assert_int_equal (device->n_open, 0);
  weft_cudnn_attention_free (a);
}

/* ------------------------------------------------------------------------------- the knobs */

static void
see_kernel (void *user, const struct weft_kernel *k)
{
  uint32_t *seen = user;

  if (!has_attention (NULL, k->kind))
    return;
  assert_true (k->fused);
  assert_true (k->deterministic);
  ++*seen;
}

/* attention_backend and deterministic_mode must reach every attention call as fields of the call.
 * They do not change the plan. */
static void
attention_backend_and_deterministic_mode_reach_every_attention (void **state)
{
#define NANO "model=gpt2-nano topology=hgx-h200 gpus=1 global_batch_size=1 deterministic_mode=true "
  g_autoptr (weft_plan) flash = weft_test_plan (NANO);
  g_autoptr (weft_plan) fused = weft_test_plan (NANO "attention_backend=fused");
  g_autofree char *a = weft_program_print (flash->role[0]);
  g_autofree char *b = weft_program_print (fused->role[0]);
  g_auto (weft_bind) bind = { 0 };
  uint32_t seen = 0;

  (void) state;
  assert_string_equal (a, b);
  assert_memory_equal (flash->memory[0].planned, fused->memory[0].planned,
                       sizeof flash->memory[0].planned);
  weft_bind_init (&bind, fused, 0);
  for (uint32_t op = 0; op < bind.p->n_op; op++)
    weft_bind_kernels (&bind, op, see_kernel, &seen);
  assert_int_equal (seen, 2 * fused->job.model.num_layers);
}

/* attention_backend = fused on a machine without a GPU. cuDNN cannot be opened there, even if it is
 * installed, and the error must say so. */
static void
a_job_that_wants_cudnn_is_told_when_there_is_none (void **state)
{
  if (*WEFT_SANITIZE) /* The sanitizers would also check the memory of cuDNN itself. */
    skip ();
  static const union weft_model plain;
  struct weft_kernel k = { .kind = WEFT_OP_ATTENTION,
                           .model = &plain,
                           .fused = TRUE,
                           .shape.dim = { 1, 128, 2, 1, 64, 0, 0 },
                           .operand[0].dtype = WEFT_BF16 };
  uint64_t scratch;

  (void) state;
  struct weft_fused *f = weft_fused_new (NULL);
  gboolean takes = weft_fused_takes (f, 0, &k, &scratch);
  const char *why = weft_fused_missing (f, 0, &k);
  assert_int_equal (takes, why == NULL);
  assert_true (takes || g_str_has_prefix (why, "attention_backend = fused: cuDNN "));
  k.fused = FALSE;
  assert_false (weft_fused_takes (f, 0, &k, &scratch));
  assert_null (weft_fused_missing (f, 0, &k));
  weft_fused_free (f);
}

/* cuDNN does not compute context-parallel attention. Weft's own kernels compute it, and one line on
 * stderr says so. */
static void
parts_of_sequences_are_left_to_our_own_kernels (void **state)
{
  struct weft_fused *f = weft_fused_new (NULL);
  const struct weft_kernel k = { .kind = WEFT_OP_ATTENTION_PART, .fused = TRUE };
  uint64_t scratch = 1;

  (void) state;
  assert_false (weft_fused_takes (f, 0, &k, &scratch));
  assert_false (weft_fused_takes (f, 0, &k, &scratch));
  assert_int_equal (scratch, 0);
  assert_null (weft_fused_missing (f, 0, &k));
  weft_fused_free (f);
}

/* ---------------------------------------------- our kernel or cuDNN: the faster one is used */

/* The first attention call of a job and its backward call, with memory for their operands. */
struct tried {
  const char *machine; /* for the file of choices */
  weft_plan *plan;
  struct weft_kernel kernel[2];
  uint8_t *scratch;
};
enum { SCRATCH = 1 << 22 };

static void
take_kernel (void *user, const struct weft_kernel *k)
{
  struct tried *t = user;
  struct weft_kernel *mine = &t->kernel[k->kind == WEFT_OP_ATTENTION_BWD];

  if (!has_attention (NULL, k->kind) || mine->kind)
    return;
  *mine = *k;
  for (uint32_t i = 0; i < WEFT_MOST_OPERANDS; i++) {
    struct weft_operand *o = &mine->operand[i];
    if (o->n > 0)
      o->data = g_malloc0 (o->n * weft_dtype_bytes (o->dtype));
  }
}

static struct tried
open_tried (const char *backend)
{
  g_autofree char *words = g_strdup_printf (NANO "attention_backend=%s", backend);
  struct tried t = { .machine = "a GPU of one test",
                     .plan = weft_test_plan (words),
                     .scratch = g_malloc (SCRATCH) };
  g_auto (weft_bind) bind = { 0 };

  playing_trial = (struct playing_trial){ 0 };
  weft_bind_init (&bind, t.plan, 0);
  for (uint32_t op = 0; op < bind.p->n_op; op++)
    weft_bind_kernels (&bind, op, take_kernel, &t);
  return t;
}

static void
close_tried (struct tried *t)
{
  for (unsigned i = 0; i < 2; i++)
    for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++)
      g_free (t->kernel[i].operand[o].data);
  weft_plan_free (t->plan);
  g_free (t->scratch);
}

/* Compares both implementations of attention: our kernel takes `own` milliseconds and cuDNN
 * `library`; a negative time is a failure. Returns whether cuDNN computes this attention from now
 * on. */
static gboolean
try (struct weft_fused *f, struct tried *t, unsigned which, float own, float library)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (&t->kernel[which]);
  uint64_t bytes;

  l.stream = t;
  l.scratch = t->scratch;
  l.scratch_bytes = SCRATCH;
  playing_trial.n_runs = 0;
  playing_trial.takes[0] = library; /* is measured first */
  playing_trial.takes[1] = own;
  const char *error = weft_fused_try (f, 0, &t->kernel[which], &l, t->machine);
  gboolean hangs = own == WEFT_TRIAL_HUNG || library == WEFT_TRIAL_HUNG;
  assert_true (hangs == (error != NULL));
  assert_int_equal (playing_trial.n_blocks, 0);
  return weft_fused_takes (f, 0, &t->kernel[which], &bytes);
}

static void
auto_takes_what_was_quicker_and_tries_once (void **state)
{
  struct weft_fused *f = weft_fused_new (&playing_cudnn);
  struct tried t = open_tried ("auto");
  uint64_t bytes = 0;

  (void) state;
  assert_false (weft_fused_takes (f, 0, &t.kernel[0], &bytes));
  assert_true (bytes > 0); /* the comparison of both implementations needs scratch */
  assert_true (try (f, &t, 0, 2, 1));
  assert_int_equal (playing_trial.n_runs, 2);
  assert_true (try (f, &t, 0, 1, 2));
  assert_int_equal (playing_trial.n_runs, 0);
  assert_false (try (f, &t, 1, 1, 2));
  assert_int_equal (playing_trial.n_runs, 2);
  for (uint64_t i = 0; i < t.kernel[0].operand[0].n; i++)
    /* Operand 0 of the kernels is still 0: the trial wrote into a copy of the operands. */
    assert_int_equal (((uint16_t *) t.kernel[0].operand[0].data)[i], 0);
  weft_fused_free (f);
  close_tried (&t);
}

static void
auto_takes_what_runs_and_its_own_without_room_to_try (void **state)
{
  static const struct {
    float own, library;
    gboolean fused;
  } cases[] = { { -1, 5, TRUE }, { 5, -1, FALSE }, { -1, -1, FALSE }, { 1, 1, FALSE } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_fused *f = weft_fused_new (&playing_cudnn);
    struct tried t = open_tried ("auto");
    assert_int_equal (try (f, &t, 0, cases[i].own, cases[i].library), cases[i].fused);
    playing_trial.no_memory = TRUE;
    assert_false (try (f, &t, 1, 2, 1));
    playing_trial.no_memory = FALSE;
    assert_true (try (f, &t, 1, 2, 1));
    weft_fused_free (f);
    close_tried (&t);
  }
}

/* On a GPU with warpgroup instructions, auto also measures the kernel with a producer warp, last;
 * WEFT_WARPGROUPS=0 excludes it. */
static void
auto_takes_a_producer_warp_if_it_was_quickest (void **state)
{
  static const float takes[][3] = { { 3, 2, 1 }, { 1, 2, 3 }, { 3, 1, 2 }, { 2, -1, 1 } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (takes); i++) {
    struct weft_fused *f = weft_fused_new (&playing_cudnn);
    struct tried t = open_tried ("auto");
    struct weft_kernel *k = &t.kernel[0];
    gboolean produces = i % 3 == 0;
    /* heads of the model are too narrow for warpgroups */
    for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++)
      k->operand[o].n *= 64 / k->shape.dim[4];
    k->shape.dim[4] = 64;
    struct weft_cuda_launch l = weft_cuda_launch_of (k);
    l.stream = &l;
    l.scratch = t.scratch;
    l.scratch_bytes = SCRATCH;
    l.warpgroups = WEFT_WARPGROUPS;
    memcpy (playing_trial.takes, takes[i], sizeof takes[i]);
    assert_null (weft_fused_try (f, 0, k, &l, "a GPU with warpgroups"));
    assert_int_equal (playing_trial.n_runs, 3);
    assert_int_equal (weft_fused_warpgroups (f, 0, k, WEFT_WARPGROUPS),
                      produces ? WEFT_WARPGROUPS_PRODUCER : WEFT_WARPGROUPS);
    assert_int_equal (weft_fused_warpgroups (f, 0, k, WEFT_NO_WARPGROUPS), WEFT_NO_WARPGROUPS);
    weft_fused_free (f);
    close_tried (&t);
  }
}

/* The choice of cuDNN is saved before the own kernel runs: if that does not end, the next run
 * computes with cuDNN. */
static void
an_own_kernel_that_does_not_end_leaves_the_choice_of_the_library (void **state)
{
  struct weft_fused *first = weft_fused_new (&playing_cudnn),
                    *second = weft_fused_new (&playing_cudnn);
  struct tried t = open_tried ("auto");

  (void) state;
  t.machine = "a GPU that hangs";
  weft_fused_load (first, 0, t.machine);
  assert_true (try (first, &t, 0, WEFT_TRIAL_HUNG, 1));
  weft_fused_load (second, 0, t.machine);
  assert_true (try (second, &t, 0, 1, 2));
  assert_int_equal (playing_trial.n_runs, 0);
  /* If cuDNN hangs, nothing is chosen. */
  assert_false (try (second, &t, 1, 1, WEFT_TRIAL_HUNG));
  assert_int_equal (playing_trial.n_runs, 1);
  weft_fused_free (first);
  weft_fused_free (second);
  close_tried (&t);
}

static void
fused_and_flash_try_nothing (void **state)
{
  static const char *const backends[] = { "flash", "fused" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (backends); i++) {
    struct weft_fused *f = weft_fused_new (&playing_cudnn);
    struct tried t = open_tried (backends[i]);
    assert_int_equal (try (f, &t, 0, 1, 2), i == 1);
    assert_int_equal (playing_trial.n_runs, 0);
    weft_fused_free (f);
    close_tried (&t);
  }
}

static void
auto_without_the_library_is_no_news (void **state)
{
  struct weft_fused *f = weft_fused_new (&playing_old_cudnn);
  struct tried t = open_tried ("auto");

  (void) state;
  assert_false (try (f, &t, 0, 2, 1));
  assert_int_equal (playing_trial.n_runs, 0);
  assert_null (weft_fused_missing (f, 0, &t.kernel[0]));
  weft_fused_free (f);
  close_tried (&t);
}

/* The faster implementation is saved per GPU model, so that later runs on this machine choose it
 * again and have the same bits. */
static void
what_was_quicker_is_kept_for_the_machine (void **state)
{
  struct weft_fused *first = weft_fused_new (&playing_cudnn),
                    *second = weft_fused_new (&playing_cudnn),
                    *other = weft_fused_new (&playing_cudnn);
  struct tried t = open_tried ("auto");

  (void) state;
  weft_fused_load (first, 0, "a GPU");
  assert_true (try (first, &t, 0, 2, 1));
  assert_false (try (first, &t, 1, 1, 2));
  weft_fused_save (first, 0, "a GPU");
  weft_fused_load (second, 0, "a GPU");
  assert_true (try (second, &t, 0, 1, 2));
  assert_false (try (second, &t, 1, 2, 1));
  weft_fused_load (other, 0, "another GPU");
  assert_false (try (other, &t, 0, 1, 2));
  weft_fused_free (first);
  weft_fused_free (second);
  weft_fused_free (other);
  close_tried (&t);
}

/* ------------------------------------------------------------------------ the real library */

/* Opens the installed cuDNN for a GPU that is described in tests/data. The double of the driver is
 * loaded first, because cuDNN opens the driver by name. */
static struct weft_cudnn_attention *
open_library (const char *gpu)
{
  const char *why = NULL;
  if (*WEFT_SANITIZE)
    skip ();
  g_autofree char *path = g_build_filename (WEFT_SOURCE_DIR, "tests/data", gpu, NULL), *text = NULL;

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  assert_non_null (dlopen (WEFT_NO_DRIVER, RTLD_NOW | RTLD_GLOBAL));
  g_autofree struct weft_cudnn_calls *calls = weft_cudnn_open (NULL, &why);
  struct weft_cudnn_attention *a =
      calls ? weft_cudnn_attention_new (g_steal_pointer (&calls), text, &why) : NULL;
  if (!a) {
    print_message ("%s\n", why);
    skip ();
  }
  return a;
}

struct asked {
  uint64_t tokens, heads, groups, width, value, window;
  enum weft_dtype dtype;
  gboolean backward, same;
};

static const char *
answer (struct weft_cudnn_attention *a, const struct asked *s, uint64_t *scratch)
{
  const uint64_t dim[] = { 2, s->tokens, s->heads, s->groups, s->width, s->window, s->value };
  const struct weft_cudnn_shape shape =
      weft_cudnn_shape_of (dim, (uint8_t) s->dtype, s->backward, s->same);

  return weft_cudnn_attention_plan (a, &shape, scratch);
}

/* Checks the size of cuDNN's workspace. The deterministic backward stores the gradients of all
 * scores in two bytes each; the other backward stores fp32 sums of query gradients. With fewer
 * groups than heads, both store the key and value gradients of every head. */
static void
check_scratch (const struct asked *s, uint64_t scratch)
{
  uint64_t rows = 2 * s->heads * s->tokens, at_least = 0, most = 1 << 20;

  if (s->backward)
    at_least = s->same ? rows * s->tokens * 2 : rows * s->width * 4;
  if (s->backward && s->heads != s->groups)
    at_least += 2 * rows * s->width * 2;
  most += at_least + rows * 4;
  assert_in_range (scratch, at_least, most);
}

static void
cudnn_makes_plans_for_hopper (void **state)
{
  static const struct asked asked[] = {
    { 1024, 12, 12, 64, 0, 0, WEFT_BF16, FALSE, FALSE },
    { 1024, 12, 12, 64, 0, 0, WEFT_BF16, TRUE, FALSE },
    { 1024, 12, 12, 64, 0, 0, WEFT_BF16, TRUE, TRUE },
    { 4096, 32, 8, 128, 0, 0, WEFT_BF16, FALSE, FALSE },
    { 4096, 32, 8, 128, 0, 0, WEFT_BF16, TRUE, FALSE },
    { 4096, 32, 8, 128, 0, 0, WEFT_BF16, TRUE, TRUE },
    { 1000, 4, 4, 128, 0, 256, WEFT_FP16, FALSE, FALSE },
    { 1000, 4, 4, 128, 0, 256, WEFT_FP16, TRUE, FALSE },
    { 1024, 4, 4, 192, 128, 0, WEFT_BF16, TRUE, FALSE },
  };
  struct weft_cudnn_attention *a = open_library ("h100.json");
  uint64_t scratch;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (asked); i++) {
    const char *refused = answer (a, &asked[i], &scratch);
    if (refused)
      fail_msg ("shape %u: %s", i, refused);
    check_scratch (&asked[i], scratch);
  }
  weft_cudnn_attention_free (a);
}

/* On an A100, cuDNN has no engine for some attention shapes; Weft's kernels compute these. */
static void
cudnn_says_which_plans_it_has_for_ampere (void **state)
{
  static const struct asked taken = { 1024, 16, 16, 128, 0, 0, WEFT_BF16, TRUE, FALSE },
                            refused = { 1024, 16, 16, 192, 128, 0, WEFT_BF16, TRUE, FALSE };
  struct weft_cudnn_attention *a = open_library ("a100.json");
  uint64_t scratch;

  (void) state;
  assert_null (answer (a, &taken, &scratch));
  assert_true (scratch > 0);
  assert_non_null (strstr (answer (a, &refused, &scratch), "no engine"));
  assert_int_equal (scratch, 0);
  weft_cudnn_attention_free (a);
}

/* Redirects the file of the saved choices, so that these tests do not write into the user's cache
 * folder. */
static int
make_caches (void **folder)
{
  int failed = weft_test_folder_make (folder);
  return failed || !g_setenv ("XDG_CACHE_HOME", *folder, TRUE);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_graph_of_attention_computes_attention),
  cmocka_unit_test (a_shape_that_cudnn_does_not_take_is_refused_with_the_reason),
  cmocka_unit_test (more_scratch_than_agreed_is_refused),
  cmocka_unit_test (versions_that_would_compute_wrongly_are_not_asked),
  cmocka_unit_test (a_missing_library_is_named_with_what_was_tried),
  cmocka_unit_test (training_with_it_is_that_of_the_cpu_and_repeats_itself),
  cmocka_unit_test (attention_backend_and_deterministic_mode_reach_every_attention),
  cmocka_unit_test (a_job_that_wants_cudnn_is_told_when_there_is_none),
  cmocka_unit_test (parts_of_sequences_are_left_to_our_own_kernels),
  cmocka_unit_test (auto_takes_what_was_quicker_and_tries_once),
  cmocka_unit_test (auto_takes_what_runs_and_its_own_without_room_to_try),
  cmocka_unit_test (auto_takes_a_producer_warp_if_it_was_quickest),
  cmocka_unit_test (an_own_kernel_that_does_not_end_leaves_the_choice_of_the_library),
  cmocka_unit_test (fused_and_flash_try_nothing),
  cmocka_unit_test (auto_without_the_library_is_no_news),
  cmocka_unit_test (what_was_quicker_is_kept_for_the_machine),
  cmocka_unit_test (cudnn_makes_plans_for_hopper),
  cmocka_unit_test (cudnn_says_which_plans_it_has_for_ampere),
};

WEFT_TESTS (tests, .seconds = 22, .set_up = make_caches, .tear_down = weft_test_folder_remove)
