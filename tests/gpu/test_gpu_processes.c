/* Two processes on one GPU that communicate by NCCL. Each sets another NCCL_HOSTID, so that NCCL
 * treats them as two machines and uses sockets. This is slow, but tests all of NCCL except NVLink
 * and the features that need it. Without a GPU the tests are skipped, with the reason. */
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/made/own.h"
#include "tests/runner/folder.h"
#include "tests/runner/processes.h"
#include "tests/made/trained_part.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define NANO                                                                                       \
  "model=gpt2-nano topology=cpu precision=fp32 seq_length=64 num_layers=2 reduction_order=fast "   \
  "global_batch_size=8 gpus=2 "
#define STEPS 3

static const char *const jobs[] = {
  NANO,
  NANO "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true",
  NANO "pipeline_model_parallel_size=2",
};

/* ----------------------------------------------------------------------- a process */

/* The processes share the GPU in time slices, although their NCCL kernels wait for each other.
 * These settings keep NCCL kernels small and simple: rings, one protocol, small buffers. */
static void
tell_nccl (const char *rank)
{
  static const char *const variables[][2] = {
    { "NCCL_SOCKET_IFNAME", "lo" }, { "NCCL_IB_DISABLE", "1" },     { "NCCL_MNNVL_ENABLE", "0" },
    { "NCCL_NVLS_ENABLE", "0" },    { "NCCL_ALGO", "Ring" },        { "NCCL_PROTO", "Simple" },
    { "NCCL_MAX_CTAS", "2" },       { "NCCL_BUFFSIZE", "1048576" }, { "NCCL_RAS_ENABLE", "0" },
  };
  g_autofree char *host = g_strdup_printf ("rank%s", rank);

  for (unsigned i = 0; i < G_N_ELEMENTS (variables); i++)
    g_setenv (variables[i][0], variables[i][1], TRUE);
  g_setenv ("NCCL_HOSTID", host, TRUE);
}

/* The executor of this process. `dies`: the process kills itself in step 3. */
static struct {
  struct weft_exec_ops ops;
  gboolean dies;
  uint32_t steps;
} here;

static weft_timeline *
drain_here (weft_exec *x, GError **error)
{
  if (++here.steps == 3 && here.dies)
    raise (SIGKILL);
  return weft_exec_cuda.drain (x, error);
}

static weft_exec *
open_here (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  weft_exec *x = weft_exec_cuda.open (plan, options, error);

  if (x)
    x->ops = &here.ops;
  return x;
}

static gboolean
dies (char **argv)
{
  return g_str_equal (argv[2], "die") && g_strcmp0 (g_getenv ("RANK"), "1") == 0;
}

/* Arguments: JOB together|die|shared DATA. "shared": one process with both ranks; the ranks share
 * the GPU. */
static int
be_process (int argc, char **argv)
{
  if (argc < 4)
    return WEFT_TESTS_RUN;

  gboolean alone = g_str_equal (argv[2], "shared");
  const struct trained_part part = {
    .words = jobs[atoi (argv[1])],
    .data = argv[3],
    .steps = STEPS,
    .ops = &here.ops,
    .exec = { .own = made_own (&weft_exec_cuda, "ranks-per-gpu=%d deadline=30", alone ? 2 : 1) }
  };

  here.ops = weft_exec_cuda;
  here.ops.open = open_here;
  here.ops.drain = drain_here;
  here.dies = dies (argv);
  if (alone)
    return trained_part_alone (&part);
  tell_nccl (g_getenv ("RANK"));
  return trained_part_together (&part);
}

/* -------------------------------------------------------------------------- tests */

/* Finds the GPU of the machine; the set-up of a test. The state is the path of a token file, or
 * NULL on a machine without a GPU. */
static int
find_gpu (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GString) text = g_string_new (NULL);
  void *folder = NULL;

  *state = NULL;
  if (!weft_cuda_load (&error)) {
    print_message ("%s\n", error->message);
    return 0;
  }
  for (int i = 0; i < 2000; i++)
    g_string_append_printf (text, "%d green bottles, ", i * i % 97);
  weft_test_folder_make (&folder);
  *state = g_build_filename (folder, "tokens.txt", NULL);
  return !g_file_set_contents (*state, text->str, -1, NULL);
}

static int
let_go (void **state)
{
  if (!*state)
    return 0;
  g_autofree char *file = *state;
  void *folder = g_path_get_dirname (file);
  return weft_test_folder_remove (&folder);
}

static struct processes
two (const char *data, uint32_t job, const char *how)
{
  g_autofree char *words = g_strdup_printf ("%u %s %s", job, how, data);
  struct processes p = processes_start (words, WEFT_LAUNCHER_TORCHRUN, 2, free_port ());

  processes_wait (&p);
  return p;
}

static void
assert_ended (const struct process *p, int status)
{
  if (p->status != status)
    fail_msg ("found status %d, wanted %d: %s", p->status, status, p->err);
}

static void
assert_near (const char *found, const char *wanted, const char *words)
{
  g_autoptr (GArray) x = trained_part_losses (found), y = trained_part_losses (wanted);

  assert_int_equal (x->len, y->len);
  for (uint32_t i = 0; i < x->len; i++) {
    double a = g_array_index (x, double, i), b = g_array_index (y, double, i);
    if (!(fabs (a - b) <= 1e-5 * fabs (b)))
      fail_msg ("%s: line %u: found loss %.9g, wanted %.9g", words, i, a, b);
  }
}

static void
two_processes_on_one_gpu_train_as_its_virtual_ranks (void **state)
{
  if (!*state)
    skip ();
  for (uint32_t job = 0; job < G_N_ELEMENTS (jobs); job++) {
    g_autofree char *words = g_strdup_printf ("%u shared %s", job, (char *) *state);
    struct processes p = two (*state, job, "together");
    struct process whole = process_start (words, WEFT_LAUNCHER_TORCHRUN, 1, 0, 1);
    process_wait (&whole);
    assert_ended (&whole, 0);
    assert_ended (&p.at[0], 0);
    assert_ended (&p.at[1], 0);
    assert_near (p.at[0].out, whole.out, jobs[job]);
    processes_clear (&p);
    process_clear (&whole);
  }
}

static void
two_runs_of_two_processes_have_the_same_bits (void **state)
{
  if (!*state)
    skip ();
  struct processes p = two (*state, 0, "together"), again = two (*state, 0, "together");
  assert_ended (&p.at[0], 0);
  assert_string_equal (p.at[0].out, again.at[0].out);
  processes_clear (&p);
  processes_clear (&again);
}

static void
when_one_is_killed_the_other_aborts_and_names_it (void **state)
{
  if (!*state)
    skip ();
  struct processes p = two (*state, 0, "die");
  assert_ended (&p.at[1], 128 + SIGKILL);
  assert_ended (&p.at[0], 1);
  assert_non_null (strstr (p.at[0].err, "rank 1 on "));
  processes_clear (&p);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (two_processes_on_one_gpu_train_as_its_virtual_ranks),
  cmocka_unit_test (two_runs_of_two_processes_have_the_same_bits),
  cmocka_unit_test (when_one_is_killed_the_other_aborts_and_names_it),
};

WEFT_TESTS (tests, .begin = be_process, .set_up = find_gpu, .tear_down = let_go)
