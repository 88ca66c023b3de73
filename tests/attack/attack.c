#include "tests/attack/attack.h"
#include "core/base/error.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* limit of the address space of a run; builds with sanitizers have no limit */
#define MOST_BYTES (16ull << 30)
#define MOST_TEXT (4 << 20)
#define STOP_SECONDS 30 /* after SIGINT at the time limit, a run must end within this time */

struct weft_tests_draw attack_drawn = { .seed = 20, .jobs = 0 };

int
attack_begin (int argc, char **argv)
{
  weft_tests_read_draw (argc, argv, &attack_drawn);
  return WEFT_TESTS_RUN;
}

uint32_t
attack_count (uint32_t few)
{
  return attack_drawn.jobs ? attack_drawn.jobs : few;
}

gboolean
attack_one_in (GRand *rand, int n)
{
  return g_rand_int_range (rand, 0, n) == 0;
}

/* ----------------------------------------------------------------------- folder */

char *
attack_path (const char *dir, const char *name)
{
  return g_build_filename (dir, "work", name, NULL);
}

static void
put (const char *dir, const char *name, const char *text, gssize bytes)
{
  g_autofree char *path = attack_path (dir, name);

  assert_true (g_file_set_contents_full (path, text, bytes, G_FILE_SET_CONTENTS_NONE, 0644, NULL));
}

static char *
license (void)
{
  char *text = NULL;

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/LICENSE", &text, NULL, NULL));
  return text;
}

void
attack_folder_fill (const char *dir)
{
  static const char job[] = "[model]\nconfig = gpt2-nano\n[cluster]\ntopology = cpu\ngpus = 2\n";
  g_autofree char *work = attack_path (dir, ""), *sub = attack_path (dir, "sub");
  g_autofree char *text = license ();

  weft_test_remove (work);
  assert_int_equal (g_mkdir_with_parents (sub, 0755), 0);
  put (dir, "data.txt", text, 4000);
  put (dir, "job.ini", job, -1);
  put (dir, "empty", "", 0);
}

/* ------------------------------------------------------------------------- runs */

static int
open_output (const char *dir, const char *name)
{
  g_autofree char *path = g_build_filename (dir, name, NULL);
  return g_open (path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
}

/* Runs in the child process: limits its memory, redirects stdin, stdout and stderr, and executes
 * weft. A build with sanitizers has no limit of address space, because sanitizers reserve far
 * more. */
static void
become (const char *work, int in, int out, int err, char *const *argv)
{
  const struct rlimit space = { MOST_BYTES, MOST_BYTES }, core = { 0, 0 };

  if (!*WEFT_SANITIZE)
    setrlimit (RLIMIT_AS, &space);
  setrlimit (RLIMIT_CORE, &core);
  for (int s = 1; s < NSIG; s++)
    signal (s, SIG_DFL);
  if (chdir (work) == 0 && dup2 (in, 0) == 0 && dup2 (out, 1) == 1 && dup2 (err, 2) == 2)
    execv (WEFT_BINARY, argv);
  _exit (127);
}

pid_t
attack_start (const char *dir, char *const *argv)
{
  g_autoptr (GPtrArray) all = g_ptr_array_new ();
  g_autofree char *work = attack_path (dir, "");
  int in = g_open ("/dev/null", O_RDONLY | O_CLOEXEC, 0), out = open_output (dir, "out"),
      err = open_output (dir, "err");

  g_ptr_array_add (all, (char *) "weft");
  for (char *const *word = argv; *word; word++)
    g_ptr_array_add (all, *word);
  g_ptr_array_add (all, NULL);
  pid_t child = fork ();
  if (child == 0)
    become (work, in, out, err, (char *const *) all->pdata);
  assert_true (child > 0 && in >= 0 && out >= 0 && err >= 0);
  close (in), close (out), close (err);
  return child;
}

/* Waits until the child has ended or `seconds` have passed. Returns whether the child has ended. */
static gboolean
wait_for (pid_t child, double seconds, int *status, struct rusage *use)
{
  gint64 end = g_get_monotonic_time () + (gint64) (1e6 * seconds);
  gulong pause = 200;

  for (;;) {
    pid_t found = wait4 (child, status, WNOHANG, use);
    if (found == child)
      return TRUE;
    assert_true (found == 0 || errno == EINTR);
    if (g_get_monotonic_time () > end)
      return FALSE;
    g_usleep (pause);
    pause = MIN (2 * pause, 10000);
  }
}

static char *
read_output (const char *dir, const char *name)
{
  g_autofree char *path = g_build_filename (dir, name, NULL);
  int file = g_open (path, O_RDONLY | O_CLOEXEC, 0);
  GStatBuf about;

  assert_true (file >= 0 && fstat (file, &about) == 0);
  size_t most = (size_t) MIN (about.st_size, MOST_TEXT);
  char *text = g_malloc (most + 1);
  ssize_t n = read (file, text, most);
  assert_true (n >= 0);
  text[n] = 0;
  close (file);
  return text;
}

/* ---------------------------------------------------------------------- verdict */

/* Whether `weft help` or the page of a command documents an exit status: 0, the status of an error,
 * 75 for a training run and 130 for a search that a signal stopped. FALSE for 70, the status of a
 * failed internal check. */
static gboolean
is_documented (int status)
{
#define STATUS(id, exit, doc) exit,
  static const int known[] = { WEFT_ERROR_LIST (STATUS) 0, 75, 130 };
#undef STATUS

  for (unsigned i = 0; i < G_N_ELEMENTS (known); i++)
    if (known[i] == status)
      return status != 70;
  return FALSE;
}

/* Whether stderr contains a report of a sanitizer or of GLib, which may occur with any exit
 * status. */
static gboolean
has_report (const char *err)
{
  static const char *const parts[] = { "Sanitizer", "runtime error:", "CRITICAL **", "WARNING **",
                                       "ERROR **" };

  for (unsigned i = 0; i < G_N_ELEMENTS (parts); i++)
    if (strstr (err, parts[i]))
      return TRUE;
  return FALSE;
}

/* Whether the run ended with status 3 and an answer on stdout ("does not fit"). Such a run needs no
 * message on stderr. */
static gboolean
says_no (const struct attack_run *run)
{
  return WEXITSTATUS (run->status) == 3 && *run->out;
}

static const char *
fault_of (const struct attack_run *run)
{
  if (has_report (run->err))
    return "a report of the sanitizer or of GLib";
  if (run->late && !*run->err && !*run->out)
    return "at work at the time limit without a word";
  if (run->late && WIFSIGNALED (run->status) && WTERMSIG (run->status) == SIGINT)
    return NULL;
  if (!WIFEXITED (run->status))
    return run->late ? "SIGINT does not stop it" : "ended by a signal";
  if (WEXITSTATUS (run->status) == 70)
    return "an internal check failed";
  if (!is_documented (WEXITSTATUS (run->status)))
    return "an exit status that is not documented";
  if (WEXITSTATUS (run->status) && !strstr (run->err, "weft: ") && !says_no (run))
    return "failed without a message";
  return NULL;
}

static enum attack_end
end_of (const struct attack_run *run)
{
  if (run->fault)
    return ATTACK_FAULT;
  if (run->late)
    return ATTACK_SLOW;
  return WEXITSTATUS (run->status) ? ATTACK_REFUSED : ATTACK_DONE;
}

struct attack_run
attack_run (const char *dir, char *const *argv, double seconds)
{
  struct attack_run run = { 0 };
  struct rusage use = { 0 };
  pid_t child = attack_start (dir, argv);

  if (!wait_for (child, seconds, &run.status, &use)) {
    run.late = TRUE;
    kill (child, SIGINT);
    if (!wait_for (child, STOP_SECONDS, &run.status, &use)) {
      kill (child, SIGKILL);
      wait_for (child, STOP_SECONDS, &run.status, &use);
    }
  }
  run.out = read_output (dir, "out");
  run.err = read_output (dir, "err");
  run.seconds = (double) (use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                1e-6 * (double) (use.ru_utime.tv_usec + use.ru_stime.tv_usec);
  run.bytes = 1024.0 * (double) use.ru_maxrss;
  run.fault = fault_of (&run);
  run.end = end_of (&run);
  return run;
}

struct attack_run
attack_words (const char *dir, double seconds, const char *format, ...)
{
  va_list args;

  va_start (args, format);
  g_autofree char *words = g_strdup_vprintf (format, args);
  va_end (args);
  g_auto (GStrv) argv = g_strsplit (words, " ", -1);
  return attack_run (dir, argv, seconds);
}

void
attack_run_clear (struct attack_run *run)
{
  g_clear_pointer (&run->out, g_free);
  g_clear_pointer (&run->err, g_free);
}

/* ------------------------------------------------------------------------ words */

char *
attack_line (char *const *argv)
{
  GString *line = g_string_new ("weft");

  for (; *argv; argv++) {
    g_autofree char *some = g_strndup (*argv, 300), *quoted = g_shell_quote (some);
    gboolean plain = **argv && strspn (*argv, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789-_=./,+:") == strlen (*argv);
    g_string_append_printf (line, " %s", plain ? some : quoted);
    if (strlen (*argv) > strlen (some))
      g_string_append_printf (line, "...(%zu bytes)", strlen (*argv));
  }
  return g_string_free (line, FALSE);
}

void
attack_print (const struct attack_run *run, const char *line)
{
  g_autofree char *err = g_strndup (run->err, 600);

  /* Prints with fprintf() because CMocka's print_error() cuts texts after 1,024 bytes. */
  fprintf (stderr, "%s (status %#x, %.1f s, %.2f GB): %s\n  %s\n", run->fault ? run->fault : "slow",
           (unsigned) run->status, run->seconds, run->bytes * 1e-9, line, err);
}

const char *
attack_absurd (GRand *rand)
{
  static const char *const words[] = {
    "",
    "0",
    "-1",
    "-0",
    "1e308",
    "-1e308",
    "1e-320",
    "nan",
    "inf",
    "-inf",
    "1e309",
    "0x10",
    "4,4",
    " 4",
    "4 ",
    "4.5",
    "1e3",
    "none",
    "true",
    "false",
    "auto",
    "NaN",
    "%s%n",
    "..",
    "sub",
    "empty",
    "data.txt",
    "job.ini",
    "/dev/null",
    "\xff\xfe",
    "é",
    "\n",
    "a\tb",
    "--",
    "-",
    "=",
    "[x]",
    "# x",
    "a=b",
    "1 2",
    "\x1b[2J",
    "𝟜",
    "1,,2",
    "9e18",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "2147483647",
    "2147483648",
    "4294967296",
    "4503599627370497",
    "1e18",
    "999999999999",
    "1us",
    "1GB/s",
    "5 %",
  };
  static char *longest;

  if (!longest)
    longest = g_strnfill (100000, 'x');
  if (attack_one_in (rand, 60))
    return longest;
  return words[g_rand_int_range (rand, 0, G_N_ELEMENTS (words))];
}
