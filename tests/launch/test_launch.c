/* What a process reads from its environment variables: its launcher, its rank and the address of
 * its rendezvous. */
#include "launch/environment.h"
#include "launch/nodelist.h"
#include "tests/runner/command.h"
#include "tests/runner/runner.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The environment variables of the current test: "NAME=value NAME=value". */
static const char *environment;

static const char *
variable (const char *name)
{
  g_auto (GStrv) words = g_strsplit (environment, " ", -1);

  for (unsigned i = 0; words[i]; i++)
    if (g_str_has_prefix (words[i], name) && words[i][strlen (name)] == '=')
      return g_intern_string (words[i] + strlen (name) + 1);
  return NULL;
}

static struct weft_launch
found (const char *asked, const char *text)
{
  g_autoptr (GError) error = NULL;
  struct weft_launch launch;

  environment = text;
  if (!weft_launch_read (asked, variable, &launch, &error))
    fail_msg ("%s: %s", text, error->message);
  return launch;
}

static void
assert_refused (const char *asked, const char *text, const char *part)
{
  g_autoptr (GError) error = NULL;
  struct weft_launch launch;

  environment = text;
  if (weft_launch_read (asked, variable, &launch, &error))
    fail_msg ("%s is not refused", text);
  if (!strstr (error->message, part))
    fail_msg ("%s: %s, wanted %s", text, error->message, part);
  weft_launch_clear (&launch);
}

static void
assert_launch (const char *text, enum weft_launcher launcher, const char *ranks, const char *where)
{
  g_auto (weft_launch) l = found (NULL, text);
  g_autofree char *got_ranks = g_strdup_printf ("%u of %u, %u here", l.rank, l.n, l.local_rank),
                  *got_where = g_strdup_printf ("%s:%u", l.host, l.port);

  assert_int_equal (l.launcher, launcher);
  assert_string_equal (got_ranks, ranks);
  assert_string_equal (got_where, where);
}

#define TORCHRUN                                                                                   \
  "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500"

static void
each_launcher_is_known_by_its_variables (void **state)
{
  (void) state;
  assert_launch (TORCHRUN, WEFT_LAUNCHER_TORCHRUN, "5 of 8, 1 here", "a:29500");
  assert_launch ("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=8 SLURM_LOCALID=1 "
                 "SLURM_STEP_NODELIST=node[07-08],b MASTER_PORT=400",
                 WEFT_LAUNCHER_SLURM, "3 of 4, 1 here", "node07:400");
  assert_launch ("SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_NTASKS=8 SLURM_LOCALID=1 "
                 "SLURM_LAUNCH_NODE_IPADDR=10.0.0.3 MASTER_PORT=400",
                 WEFT_LAUNCHER_SLURM, "3 of 8, 1 here", "10.0.0.3:400");
  assert_launch ("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                 "OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT=401",
                 WEFT_LAUNCHER_OPENMPI, "1 of 2, 1 here", "localhost:401");
  assert_launch ("PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 MASTER_ADDR=c "
                 "MASTER_PORT=402",
                 WEFT_LAUNCHER_MPICH, "2 of 4, 0 here", "c:402");
}

static void
nobody_started_it_or_one_alone (void **state)
{
  static const char *const texts[] = { "", "HOME=/x", "RANK=0 WORLD_SIZE=1",
                                       "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=4",
                                       "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (texts); i++) {
    g_auto (weft_launch) l = found (NULL, texts[i]);
    assert_int_equal (l.n, 1);
    assert_int_equal (l.rank, 0);
  }
  g_auto (weft_launch) none = found ("none", TORCHRUN);
  assert_int_equal (none.n, 1);
}

/* mpirun starts its daemons with srun, so the processes of the job inherit the variables of srun
 * too. The processes must read the variables of mpirun. */
static void
variables_of_two_launchers_are_those_of_the_inner_one (void **state)
{
  (void) state;
  assert_launch ("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_JOB_NODELIST=n[4-5] "
                 "OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                 "OMPI_COMM_WORLD_LOCAL_SIZE=8 MASTER_PORT=30",
                 WEFT_LAUNCHER_OPENMPI, "9 of 16, 1 here", "n4:30");
  assert_launch ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_JOB_NODELIST=n[4-5] "
                 "SLURM_STEP_NODELIST=n5 "
                 "OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                 "OMPI_COMM_WORLD_LOCAL_SIZE=8 MASTER_PORT=30",
                 WEFT_LAUNCHER_OPENMPI, "9 of 16, 1 here", "n4:30");
  assert_launch ("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 " TORCHRUN,
                 WEFT_LAUNCHER_TORCHRUN, "5 of 8, 1 here", "a:29500");
  g_auto (weft_launch) l = found ("slurm", "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 "
                                           "SLURM_STEP_NODELIST=n1 " TORCHRUN);
  assert_int_equal (l.n, 2);
}

/* The agent of torchrun may itself listen on MASTER_PORT. The rendezvous of the job then uses the
 * next port. */
static void
the_port_of_an_agent_is_left_to_it (void **state)
{
  (void) state;
  assert_launch (TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=True", WEFT_LAUNCHER_TORCHRUN,
                 "5 of 8, 1 here", "a:29501");
  assert_launch (TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=False", WEFT_LAUNCHER_TORCHRUN,
                 "5 of 8, 1 here", "a:29500");
}

/* The port and the token (the text by which the processes of a job know each other) follow from
 * the variables of the job. Two jobs on one machine have different ports and tokens. Two steps
 * of a Slurm job have different tokens. */
static void
a_port_follows_from_the_job (void **state)
{
#define STEP "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 SLURM_STEP_NODELIST=n1 "
  g_auto (weft_launch) one = found (NULL, STEP "SLURM_JOB_ID=17 SLURM_STEP_ID=0");
  g_auto (weft_launch) same = found (NULL, STEP "SLURM_JOB_ID=17 SLURM_STEP_ID=0");
  g_auto (weft_launch) step = found (NULL, STEP "SLURM_JOB_ID=17 SLURM_STEP_ID=1");
  g_auto (weft_launch) other = found (NULL, STEP "SLURM_JOB_ID=18 SLURM_STEP_ID=0");

  (void) state;
  assert_int_equal (one.port, same.port);
  assert_string_equal (one.token, same.token);
  assert_int_not_equal (one.port, other.port);
  assert_string_not_equal (one.token, other.token);
  assert_string_not_equal (one.token, step.token);
  assert_true (one.port >= 20000 && one.port < 32000);
}

/* The token of a job contains its name. Processes send the token as the key of a message, which
 * must be printable ASCII, so other characters of the name are replaced. */
static void
a_token_can_be_said_on_the_wire (void **state)
{
  g_auto (weft_launch) l = found (NULL, TORCHRUN " TORCHELASTIC_RUN_ID=gr\303\266\303\237e\t1");

  (void) state;
  assert_string_equal (l.token, "torchrun:gr????e?1");
}

/* torchrun sets MASTER_ADDR to the name of the machine even if there is only one machine. A
 * rendezvous of processes on one machine is at localhost, whatever MASTER_ADDR is. */
static void
processes_of_one_machine_meet_where_no_other_machine_can_reach (void **state)
{
#define TWO_OF_ONE "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_PORT=29500 "
  (void) state;
  assert_launch (TWO_OF_ONE "MASTER_ADDR=node1.example.org", WEFT_LAUNCHER_TORCHRUN,
                 "1 of 2, 1 here", "localhost:29500");
  assert_launch ("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 SLURM_STEP_NODELIST=n1 "
                 "MASTER_PORT=400",
                 WEFT_LAUNCHER_SLURM, "1 of 2, 1 here", "localhost:400");
}

static void
assert_secret (const char *text, const char *secret, const char *file)
{
  g_auto (weft_launch) l = found (NULL, text);

  if (g_strcmp0 (l.secret, secret) != 0 || g_strcmp0 (l.secret_file, file) != 0)
    fail_msg ("%s: found secret %s, file %s", text, l.secret, l.secret_file);
}

#define GOOD_SECRET "0123456789abcdef"

static void
a_secret_is_that_of_the_variables_or_of_the_user (void **state)
{
  g_autofree char *of_user = g_build_filename (g_get_user_config_dir (), "weft", "secret", NULL);

  (void) state;
  assert_secret (TORCHRUN " WEFT_SECRET=" GOOD_SECRET, GOOD_SECRET, NULL);
  assert_secret (TORCHRUN " WEFT_SECRET_FILE=/a/b", NULL, "/a/b");
  assert_secret (TORCHRUN " WEFT_SECRET_FILE=/a/b WEFT_SECRET=" GOOD_SECRET, GOOD_SECRET, NULL);
  assert_secret (TORCHRUN, NULL, of_user);
  /* The processes of a job on one machine need no secret. */
  assert_secret (TWO_OF_ONE "MASTER_ADDR=a", NULL, NULL);
  assert_secret (TWO_OF_ONE "MASTER_ADDR=a WEFT_SECRET_FILE=/a/b", NULL, "/a/b");
  assert_secret (TWO_OF_ONE "MASTER_ADDR=a WEFT_SECRET=" GOOD_SECRET, GOOD_SECRET, NULL);
  assert_refused (NULL, TORCHRUN " WEFT_SECRET=0123456789abcde",
                  "WEFT_SECRET: found a secret of 15 characters, wanted at least 16");
}

static void
what_is_missing_or_wrong_is_named (void **state)
{
  (void) state;
  assert_refused (NULL, "RANK=0", "WORLD_SIZE: found nothing");
  assert_refused (NULL, "RANK=2 WORLD_SIZE=2",
                  "RANK: found \"2\" (torchrun), wanted a number from "
                  "0 to 1");
  assert_refused (NULL, "RANK=x WORLD_SIZE=2", "RANK: found \"x\"");
  assert_refused (NULL, "RANK=1 WORLD_SIZE=2", "LOCAL_RANK: found nothing");
  assert_refused (NULL, "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=1",
                  "LOCAL_WORLD_SIZE: found \"1\" (torchrun), wanted a number from 2");
  assert_refused (NULL, "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_PORT=1",
                  "MASTER_ADDR: found nothing");
  assert_refused (NULL, "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=a",
                  "MASTER_PORT: found nothing");
  assert_refused (NULL, "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=70000",
                  "MASTER_PORT: found \"70000\"");
  static const char *const hosts[] = { "a:29500", "10.0.0.3:", ":1", "[::1]:29500" };
  for (unsigned i = 0; i < G_N_ELEMENTS (hosts); i++) {
    g_autofree char *words = g_strdup_printf (
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_PORT=400 MASTER_ADDR=%s", hosts[i]);
    g_autofree char *found = g_strdup_printf ("MASTER_ADDR: found \"%s\"", hosts[i]);
    assert_refused (NULL, words, found);
  }
  assert_refused (NULL, "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
                  "MASTER_ADDR: found nothing");
  assert_refused (NULL,
                  "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 "
                  "SLURM_STEP_NODELIST=a[1",
                  "SLURM_STEP_NODELIST: list of hosts \"a[1\"");
  assert_refused ("mpi", "", "--launcher: found \"mpi\", wanted auto, none, torchrun");
  assert_refused ("slurm", TORCHRUN, "SLURM_PROCID is not set");
}

static void
assert_hosts (const char *text, const char *wanted)
{
  g_autoptr (GError) error = NULL;
  g_auto (GStrv) hosts = weft_nodelist_hosts (text, &error);

  if (!hosts)
    fail_msg ("%s", error->message);
  g_autofree char *joined = g_strjoinv (" ", hosts);
  assert_string_equal (joined, wanted);
}

static void
lists_of_hosts_are_those_of_slurm (void **state)
{
  (void) state;
  assert_hosts ("localhost", "localhost");
  assert_hosts ("node[03-05,7],gpu1", "node03 node04 node05 node7 gpu1");
  assert_hosts ("r[1-2]n[09-10]x,b", "r1n09x r1n10x r2n09x r2n10x b");
  assert_hosts ("a-1.example.org,b_2", "a-1.example.org b_2");
}

static void
what_is_no_list_of_hosts_is_refused (void **state)
{
  static const char *const texts[] = {
    "",
    ",",
    "a,",
    "a[",
    "a[]",
    "a[1",
    "a[1-]",
    "a[2-1]",
    "a[1,]",
    "a]",
    "[1-2]",
    "a b",
    "a[1-2[3]",
    "a[0000000000001]",
    "a[x]",
    "a[0-999999999]",
    "a[1]b[1]c[1]d[1]e[1]f[1]g[1]h[1]i[1]",
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (texts); i++) {
    g_autoptr (GError) error = NULL;
    if (weft_nodelist_hosts (texts[i], &error))
      fail_msg ("\"%s\" is not refused", texts[i]);
    assert_true (g_str_has_prefix (error->message, "list of hosts"));
  }
}

/* Runs weft train with variables that are set for this command only. The error must contain
 * `part`. */
static void
assert_told (const char *variables, const char *words, const char *part)
{
  g_auto (GStrv) each = g_strsplit (variables, " ", -1);
  g_autofree char *command =
      g_strdup_printf ("train --model gpt2-nano --data " WEFT_SOURCE_DIR "/LICENSE %s", words);

  for (unsigned i = 0; each[i]; i++)
    putenv (each[i]);
  weft_test_refused (command, 2, part);
  for (unsigned i = 0; each[i]; i++) {
    g_autofree char *name = g_strndup (each[i], strcspn (each[i], "="));
    unsetenv (name);
  }
}

static void
weft_train_says_what_is_wrong_with_its_variables (void **state)
{
  (void) state;
  assert_told ("RANK=2 WORLD_SIZE=2", "--executor cuda", "RANK: found \"2\" (torchrun)");
  assert_told ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_NODELIST=a[",
               "--executor cuda", "SLURM_STEP_NODELIST: list of hosts");
  assert_told ("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "--executor cuda",
               "MASTER_ADDR: found nothing, wanted the host of rank 0: mpich puts 2 processes");
  assert_told (TORCHRUN, "", "found 8 processes (torchrun), but the cpu executor");
  assert_told ("WEFT_NOTHING=", "--executor cuda --launcher slurm", "SLURM_PROCID is not set");
  assert_told ("WEFT_NOTHING=", "--executor cuda --launcher pbs", "--launcher: found \"pbs\"");
}

/* Variables of a launcher do not matter for a job of one process unless --launcher is given. */
static void
weft_train_on_the_cpu_minds_only_other_processes (void **state)
{
  static const char *const words = "train --model gpt2-nano --steps 1 --data " WEFT_SOURCE_DIR
                                   "/LICENSE --seq-length 16 --num-layers 1";

  (void) state;
  g_setenv ("RANK", "3", TRUE);
  struct answer stray = weft_test_answer (words);
  g_setenv ("WORLD_SIZE", "1", TRUE);
  g_setenv ("RANK", "0", TRUE);
  struct answer one = weft_test_answer (words);
  g_unsetenv ("RANK");
  g_unsetenv ("WORLD_SIZE");
  assert_int_equal (stray.status, 0);
  assert_int_equal (one.status, 0);
  weft_test_answer_free (&stray);
  weft_test_answer_free (&one);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (each_launcher_is_known_by_its_variables),
  cmocka_unit_test (nobody_started_it_or_one_alone),
  cmocka_unit_test (variables_of_two_launchers_are_those_of_the_inner_one),
  cmocka_unit_test (the_port_of_an_agent_is_left_to_it),
  cmocka_unit_test (a_port_follows_from_the_job),
  cmocka_unit_test (a_token_can_be_said_on_the_wire),
  cmocka_unit_test (processes_of_one_machine_meet_where_no_other_machine_can_reach),
  cmocka_unit_test (a_secret_is_that_of_the_variables_or_of_the_user),
  cmocka_unit_test (what_is_missing_or_wrong_is_named),
  cmocka_unit_test (lists_of_hosts_are_those_of_slurm),
  cmocka_unit_test (what_is_no_list_of_hosts_is_refused),
  cmocka_unit_test (weft_train_says_what_is_wrong_with_its_variables),
  cmocka_unit_test (weft_train_on_the_cpu_minds_only_other_processes),
};

WEFT_TESTS (tests)
