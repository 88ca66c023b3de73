/* Training by two processes with a double of a device each, from token file to checkpoint: the
 * results must be those of one process with the same job, bit for bit. */
#include "core/exec/timeline_file.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/doubles/computing_cuda.h"
#include "tests/runner/folder.h"
#include "tests/runner/processes.h"
#include "tests/made/trained_part.h"
#include "train/checkpoint.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NANO                                                                                       \
  "model=gpt2-nano topology=cpu seq_length=8 num_layers=1 vocab_size=256 hidden_size=64 "          \
  "num_attention_heads=2 num_query_groups=2 kv_channels=16 ffn_hidden_size=64 "                    \
  "reduction_order=fast micro_batch_size=2 "                                                       \
  "global_batch_size=4 "

#define EXPERTS                                                                                    \
  NANO "activation=swiglu normalization=rmsnorm add_bias_linear=false num_moe_experts=4 "          \
       "moe_router_topk=2 "                                                                        \
       "moe_ffn_hidden_size=24 moe_load_imbalance=4 "

/* Jobs of two ranks. In jobs with experts the ranks exchange token rows whose number the router
 * determines during the step. */
static const char *const jobs[] = {
  NANO "gpus=2",
  NANO "gpus=2 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true",
  NANO "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3",
  NANO "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true",
  EXPERTS "gpus=2 expert_model_parallel_size=2",
  EXPERTS "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true",
  NANO "gpus=2 use_distributed_optimizer=true fp8_param_gather=true",
  NANO "gpus=2 num_layers=2 pipeline_model_parallel_size=2 use_distributed_optimizer=true "
       "fp8_param_gather=true",
  NANO "gpus=2 use_distributed_optimizer=true fp8_param_gather=true fp8_recipe=mxfp8",
};

#define N_JOB G_N_ELEMENTS (jobs)

/* ----------------------------------------------------------------------- a process */

/* The executor of this process, on a device of its own. `end`: what rank `whose` does in step 3
 * (kill, term, usr1, cut, live). */
static struct {
  computing_cuda *device;
  struct weft_exec_ops ops;
  /* behaviour of the rank: sends itself a signal ("kill", "term", "usr1"), cuts the token file
   * ("cut"), or nothing ("live") */
  const char *end;
  char *data; /* path of the token file of the run */
  uint32_t whose, rank, steps;
} here;

static weft_timeline *
drain_here (weft_exec *x, GError **error)
{
  gboolean ends = ++here.steps == 3 && here.rank == here.whose;

  if (ends && g_str_equal (here.end, "kill"))
    raise (SIGKILL);
  if (ends && g_str_equal (here.end, "term"))
    /* SIGTERM to the process; any of its threads may receive the signal */
    kill (getpid (), SIGTERM);
  if (ends && g_str_equal (here.end, "usr1"))
    kill (getpid (), SIGUSR1);
  weft_timeline *timeline = weft_exec_cuda.drain (x, error);
  if (ends && g_str_equal (here.end, "cut"))
    g_assert (truncate (here.data, 100) == 0);
  return timeline;
}

static weft_exec *
open_here (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  weft_exec *x = weft_exec_cuda_open (&here.device->calls, plan, options, error);

  if (x)
    x->ops = &here.ops;
  return x;
}

static void
met (const struct weft_launch *launch, struct weft_rendezvous *peers)
{
  here.rank = launch->rank;
  here.device->peers = peers;
}

/* Whether the test exports weights and gradients of a job. FALSE for jobs with experts, whose model
 * family then has no Hugging Face tensor names. */
static gboolean
has_files (const char *words)
{
  return !strstr (words, "num_moe_experts");
}

/* Arguments of a process of the test: JOB FOLDER STEPS new|load alone|together END RANK. END says
 * what rank RANK does in step 3. */
enum { JOB = 1, FOLDER, STEPS, HOW, WHO, END, RANK, N_WORDS };

static int
be_process (int argc, char **argv)
{
  if (argc < N_WORDS)
    return WEFT_TESTS_RUN;

  here.data = g_str_equal (argv[END], "cut") ? g_strconcat (argv[FOLDER], "-data", NULL)
                                             : g_strdup (WEFT_SOURCE_DIR "/LICENSE");
  const struct trained_part part = { .words = jobs[atoi (argv[JOB])],
                                     .data = here.data,
                                     .folder = argv[FOLDER],
                                     .files =
                                         has_files (jobs[atoi (argv[JOB])]) ? argv[FOLDER] : NULL,
                                     .steps = (uint64_t) atoi (argv[STEPS]),
                                     .resumes = g_str_equal (argv[HOW], "load"),
                                     .ops = &here.ops,
                                     .met = met };

  here.ops = weft_exec_cuda;
  here.ops.open = open_here;
  here.ops.drain = drain_here;
  here.device = computing_cuda_new (0);
  here.end = argv[END];
  here.whose = (uint32_t) atoi (argv[RANK]);
  int status =
      (g_str_equal (argv[WHO], "alone") ? trained_part_alone : trained_part_together) (&part);
  gboolean left = here.device->n_open != 0;
  computing_cuda_free (here.device);
  g_free (here.data);
  return left ? 4 : status;
}

/* -------------------------------------------------------------------------- tests */

/* Runs a job in two processes until both have ended. */
static struct processes
together (uint32_t job, const char *folder, uint32_t steps, const char *how, const char *end)
{
  g_autofree char *words =
      g_strdup_printf ("%u %s %u %s together %s", job, folder, steps, how, end);
  struct processes p = processes_start (words, WEFT_LAUNCHER_TORCHRUN, 2, free_port ());

  processes_wait (&p);
  return p;
}

static struct process
alone (uint32_t job, const char *folder, uint32_t steps, const char *how)
{
  g_autofree char *words = g_strdup_printf ("%u %s %u %s alone live 0", job, folder, steps, how);
  struct process p = process_start (words, WEFT_LAUNCHER_TORCHRUN, 1, 0, 1);

  process_wait (&p);
  return p;
}

static void
assert_ended (const struct process *p, int status)
{
  if (p->status != status)
    fail_msg ("found status %d, wanted %d: %s", p->status, status, p->err);
}

static char *
folder_in (const char *folder, const char *name)
{
  return g_build_filename (folder, name, NULL);
}

static GBytes *
bytes_of (const char *folder, const char *what)
{
  g_autofree char *path = g_strconcat (folder, what, NULL);
  char *bytes = NULL;
  gsize n = 0;

  if (!g_file_get_contents (path, &bytes, &n, NULL))
    fail_msg ("%s is not there", path);
  return g_bytes_new_take (bytes, n);
}

/* Exported weights and gradients are whole tensors. Those of two processes and of one process must
 * be equal. */
static void
assert_same_exports (const char *two, const char *one)
{
  static const char *const what[] = { "-weights", "-gradients" };

  for (unsigned i = 0; i < G_N_ELEMENTS (what); i++) {
    g_autoptr (GBytes) found = bytes_of (two, what[i]), wanted = bytes_of (one, what[i]);
    if (!g_bytes_equal (found, wanted))
      fail_msg ("%s%s is not that of one process", two, what[i]);
  }
}

/* Loads the timeline of the last step, and the plan to which the timeline belongs. */
static weft_timeline *
times_of (const char *folder, weft_plan **plan)
{
  g_autofree char *path = g_strconcat (folder, "-times.json", NULL);
  g_autoptr (GError) error = NULL;
  weft_timeline *t = NULL;

  if (!weft_timeline_load (path, plan, &t, &error))
    fail_msg ("%s", error->message);
  return t;
}

static void
assert_same_ops (const char *two, const char *one)
{
  g_autoptr (weft_plan) plan = NULL, other = NULL;
  g_autoptr (weft_timeline) found = times_of (two, &plan), wanted = times_of (one, &other);
  uint32_t n = 0;

  assert_int_equal (found->n, wanted->n);
  for (uint32_t row = 0; row < wanted->n; row++)
    for (uint32_t op = 0; op < plan->role[wanted->role[row]]->n_op; op++) {
      assert_int_equal (isnan (found->end[row][op]), isnan (wanted->end[row][op]));
      assert_true (isnan (found->end[row][op]) || found->end[row][op] >= found->begin[row][op]);
      n += found->end[row][op] > 0;
    }
  assert_true (n > 20 && found->seconds > 0);
}

static void
two_processes_train_as_one_does (void **state)
{
  for (uint32_t job = 0; job < N_JOB; job++) {
    g_autofree char *name = g_strdup_printf ("together%u", job), *two = folder_in (*state, name);
    g_autofree char *other = g_strdup_printf ("alone%u", job), *one = folder_in (*state, other);
    struct processes p = together (job, two, 3, "new", "live 0");
    struct process whole = alone (job, one, 3, "new");
    assert_ended (&whole, 0);
    assert_ended (&p.at[0], 0);
    assert_ended (&p.at[1], 0);
    /* rank 0 prints the losses of training steps and evaluations */
    assert_string_equal (p.at[0].out, whole.out);
    assert_string_equal (p.at[1].out, ""); /* only rank 0 prints losses */
    if (has_files (jobs[job])) {
      assert_same_exports (two, one);
      assert_same_ops (two, one);
    }
    processes_clear (&p);
    process_clear (&whole);
  }
}

/* A run of two processes and a run of one process each save a checkpoint after step 2. Then another
 * run of two processes loads the checkpoint of the one-process run, and another run of one process
 * loads the checkpoint of the two-process run. The runs that load a checkpoint must print equal
 * losses for step 3. */
static void
assert_same_checkpoints (uint32_t job, const char *folder)
{
  g_autofree char *name = g_strdup_printf ("two%u", job), *two = folder_in (folder, name);
  g_autofree char *other_name = g_strdup_printf ("one%u", job),
                  *one = folder_in (folder, other_name);
  struct processes before = together (job, two, 2, "new", "live 0");
  struct process whole = alone (job, one, 2, "new");

  assert_ended (&before.at[0], 0);
  assert_ended (&whole, 0);
  struct processes after = together (job, one, 3, "load", "live 0");
  struct process other = alone (job, two, 3, "load");
  assert_ended (&after.at[0], 0);
  assert_ended (&other, 0);
  assert_string_equal (after.at[0].out, other.out);
  assert_non_null (strstr (other.out, "3 "));
  processes_clear (&before);
  processes_clear (&after);
  process_clear (&whole);
  process_clear (&other);
}

static void
checkpoints_of_processes_and_of_one_are_the_same (void **state)
{
  assert_same_checkpoints (1, *state);
  assert_same_checkpoints (N_JOB - 1, *state);
}

static void
when_one_is_killed_the_other_ends_and_the_checkpoint_before_is_whole (void **state)
{
  g_autofree char *folder = folder_in (*state, "killed");
  struct processes p = together (1, folder, 6, "new", "kill 1");

  assert_ended (&p.at[1], 128 + SIGKILL);
  assert_ended (&p.at[0], 1);
  if (!strstr (p.at[0].err, "rank 1 on ") || !strstr (p.at[0].err, "is gone"))
    fail_msg ("%s", p.at[0].err);
  g_autofree char *newest = weft_checkpoint_newest (folder);
  assert_true (newest && g_str_has_suffix (newest, "step-00000002"));
  processes_clear (&p);
}

static void
when_one_is_asked_to_stop_all_stop_after_the_same_step (void **state)
{
  g_autofree char *folder = folder_in (*state, "stopped");
  struct processes p = together (0, folder, 6, "new", "term 1");

  assert_ended (&p.at[0], 75);
  assert_ended (&p.at[1], 75);
  g_autofree char *newest = weft_checkpoint_newest (folder);
  assert_non_null (newest);
  processes_clear (&p);
}

/* SIGUSR1, which Slurm sends as a warning, ends a process by default. Threads of the rendezvous
 * must not receive this signal. */
static void
a_warning_of_slurm_stops_all_as_sigterm_does (void **state)
{
  g_autofree char *folder = folder_in (*state, "warned");
  struct processes p = together (0, folder, 6, "new", "usr1 0");

  assert_ended (&p.at[0], 75);
  assert_ended (&p.at[1], 75);
  assert_non_null (strstr (p.at[0].err, "interrupted after step 3 by SIGUSR1"));
  processes_clear (&p);
}

/* Process 1 cuts the token file after step 3. Process 0 may notice the shorter file itself, or
 * learn it from process 1. Both processes must save a checkpoint. */
static void
when_data_becomes_shorter_all_save (void **state)
{
  g_autofree char *folder = folder_in (*state, "cut"), *data = g_strconcat (folder, "-data", NULL);
  g_autofree char *text = NULL;
  gsize length;

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/LICENSE", &text, &length, NULL));
  assert_true (g_file_set_contents (data, text, (gssize) length, NULL));
  struct processes p = together (0, folder, 6, "new", "cut 1");
  assert_ended (&p.at[1], 1);
  if (!strstr (p.at[1].err, "became shorter than"))
    fail_msg ("%s", p.at[1].err);
  assert_true (p.at[0].status == 1 || p.at[0].status == 75);
  g_autofree char *newest = weft_checkpoint_newest (folder);
  assert_true (newest && g_str_has_suffix (newest, "step-00000003"));
  processes_clear (&p);
}

static void
processes_that_were_told_different_things_are_refused (void **state)
{
  uint16_t port = free_port ();
  g_autofree char *one = g_strdup_printf ("0 %s 4 new together live 0", (char *) *state),
                  *other = g_strdup_printf ("0 %s 5 new together live 0", (char *) *state);
  struct process p = process_start (one, WEFT_LAUNCHER_TORCHRUN, 2, 0, port),
                 q = process_start (other, WEFT_LAUNCHER_TORCHRUN, 2, 1, port);

  process_wait (&p);
  process_wait (&q);
  assert_ended (&p, 1);
  assert_ended (&q, 1);
  assert_non_null (strstr (q.err, "differs from that of rank 0: found \"steps 5\" at rank 1"));
  assert_non_null (strstr (p.err, "rank 1 on "));
  process_clear (&p);
  process_clear (&q);
}

#define TEST(function)                                                                             \
  cmocka_unit_test_setup_teardown (function, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  TEST (two_processes_train_as_one_does),
  TEST (checkpoints_of_processes_and_of_one_are_the_same),
  TEST (when_one_is_killed_the_other_ends_and_the_checkpoint_before_is_whole),
  TEST (when_one_is_asked_to_stop_all_stop_after_the_same_step),
  TEST (a_warning_of_slurm_stops_all_as_sigterm_does),
  TEST (when_data_becomes_shorter_all_save),
  TEST (processes_that_were_told_different_things_are_refused),
};

WEFT_TESTS (tests, .seconds = 13, .begin = be_process)
