#include "tests/runner/processes.h"
#include "tests/runner/runner.h"
#include <gio/gio.h>
#include <string.h>

uint16_t
free_port (void)
{
  g_autoptr (GSocket) socket =
      g_socket_new (G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL);
  g_autoptr (GInetAddress) any = g_inet_address_new_any (G_SOCKET_FAMILY_IPV4);
  g_autoptr (GSocketAddress) address = g_inet_socket_address_new (any, 0);

  g_assert (g_socket_bind (socket, address, FALSE, NULL));
  g_autoptr (GSocketAddress) at = g_socket_get_local_address (socket, NULL);
  return g_inet_socket_address_get_port (G_INET_SOCKET_ADDRESS (at));
}

/* Environment variables of each launcher, for rank, number of processes, local rank, local number
 * of processes and name of the job. */
static const char *const variables[WEFT_N_LAUNCHER][5] = {
#define ROW(id, word, ...) { __VA_ARGS__ },
  WEFT_LAUNCHER_LIST (ROW)
#undef ROW
};

/* Returns the first word of a list that is separated by blanks. The caller frees it. */
static char *
first_name (const char *names)
{
  return g_strndup (names, strcspn (names, " "));
}

static void
set_number (GSubprocessLauncher *l, const char *names, uint32_t value)
{
  g_autofree char *name = names ? first_name (names) : NULL, *text = g_strdup_printf ("%u", value);

  if (name)
    g_subprocess_launcher_setenv (l, name, text, TRUE);
}

/* Unsets the variables of the launcher that may have started the test itself. */
static void
forget (GSubprocessLauncher *l)
{
  g_auto (GStrv) names = g_listenv ();
  static const char *const prefixes[] = { "SLURM_", "OMPI_", "PMI_", "WEFT_SECRET",
                                          "PMIX_",  "MPI_",  "TORCHELASTIC_" };

  for (unsigned i = 0; names[i]; i++)
    for (unsigned j = 0; j < G_N_ELEMENTS (prefixes); j++)
      if (g_str_has_prefix (names[i], prefixes[j]))
        g_subprocess_launcher_unsetenv (l, names[i]);
  g_subprocess_launcher_unsetenv (l, "RANK");
}

struct process
process_start (const char *words, enum weft_launcher launcher, uint32_t n, uint32_t rank,
               uint16_t port)
{
  g_autoptr (GSubprocessLauncher) l =
      g_subprocess_launcher_new (G_SUBPROCESS_FLAGS_STDOUT_PIPE | G_SUBPROCESS_FLAGS_STDERR_PIPE);
  g_autofree char *self = g_file_read_link ("/proc/self/exe", NULL);
  g_auto (GStrv) argv = g_strsplit (words, " ", -1);
  g_autoptr (GStrvBuilder) builder = g_strv_builder_new ();
  g_autoptr (GError) error = NULL;
  const char *const *names = variables[launcher];

  forget (l);
  set_number (l, names[0], rank);
  set_number (l, names[1], n);
  set_number (l, names[2], rank);
  set_number (l, names[3], n);
  set_number (l, names[4], 77);
  set_number (l, "MASTER_PORT", port);
  if (launcher == WEFT_LAUNCHER_SLURM)
    g_subprocess_launcher_setenv (l, "SLURM_STEP_NODELIST", "localhost", TRUE);
  if (launcher == WEFT_LAUNCHER_TORCHRUN)
    g_subprocess_launcher_setenv (l, "MASTER_ADDR", "127.0.0.1", TRUE);
  g_strv_builder_add_many (builder, self, weft_tests_running (), "--", NULL);
  g_strv_builder_addv (builder, (const char **) argv);
  g_auto (GStrv) all = g_strv_builder_end (builder);
  struct process p = { g_subprocess_launcher_spawnv (l, (const char *const *) all, &error) };
  if (!p.started)
    g_error ("%s", error->message);
  return p;
}

struct processes
processes_start (const char *words, enum weft_launcher launcher, uint32_t n, uint16_t port)
{
  struct processes p = { n, g_new0 (struct process, n) };

  for (uint32_t i = 0; i < n; i++)
    p.at[i] = process_start (words, launcher, n, i, port);
  return p;
}

void
process_wait (struct process *p)
{
  g_autoptr (GError) error = NULL;

  if (!g_subprocess_communicate_utf8 (p->started, NULL, NULL, &p->out, &p->err, &error))
    g_error ("%s", error->message);
  p->status = g_subprocess_get_if_exited (p->started)
                  ? g_subprocess_get_exit_status (p->started)
                  : 128 + g_subprocess_get_term_sig (p->started);
  g_clear_object (&p->started);
}

void
processes_wait (struct processes *p)
{
  for (uint32_t i = 0; i < p->n; i++)
    process_wait (&p->at[i]);
}

void
process_clear (struct process *p)
{
  if (p->started)
    g_subprocess_force_exit (p->started);
  g_clear_object (&p->started);
  g_clear_pointer (&p->out, g_free);
  g_clear_pointer (&p->err, g_free);
}

void
processes_clear (struct processes *p)
{
  for (uint32_t i = 0; i < p->n; i++)
    process_clear (&p->at[i]);
  g_clear_pointer (&p->at, g_free);
}

void
process_assert_told (const struct process *p, const char *part)
{
  assert_int_equal (p->status, 1);
  if (!strstr (p->err, part))
    fail_msg ("%s, wanted: %s", p->err, part);
}
