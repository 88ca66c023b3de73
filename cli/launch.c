#include "cli/launch.h"
#include "cli/executors.h"
#include "core/base/error.h"
#include <stdio.h>
#include <string.h>

/* Returns an error if a launcher started several processes: an executor without WEFT_EXEC_PROCESSES
 * runs all ranks in one process, so each process would train the whole job. */
static gboolean
refuse_others (const char *asked, const struct weft_exec_ops *ops, GError **error)
{
  const uint32_t processes = WEFT_EXEC_PROCESSES;
  g_auto (weft_launch) launch = { 0 };

  if (!weft_launch_read (asked, NULL, &launch, asked ? error : NULL))
    return !asked; /* without --launcher, ignore the variables of the launcher */
  if (launch.n <= 1)
    return TRUE;
  g_autofree char *others =
      weft_cli_executors_with (weft_cli_real_executors (), weft_cli_has_flags, &processes);
  return weft_bad_input (error,
                         "found %u processes (%s), but the %s executor runs all ranks on threads "
                         "of one process: use --executor %s or --launcher none",
                         launch.n, weft_launcher_words[launch.launcher], ops->name, others);
}

gboolean
weft_cli_launch (const char *asked, const struct weft_exec_ops *ops, weft_launch *launch,
                 GError **error)
{
  *launch = (weft_launch){ .n = 1 };
  return ops->flags & WEFT_EXEC_PROCESSES ? weft_launch_read (asked, NULL, launch, error)
                                          : refuse_others (asked, ops, error);
}

gboolean
weft_cli_launch_check (const weft_launch *launch, const char *asked, const struct weft_job *job,
                       GError **error)
{
  uint32_t ranks = job->cluster.n_gpus, each = ranks / launch->n;
  g_autofree char *number = g_strdup_printf ("%u", each);

  if (ranks % launch->n != 0)
    return weft_bad_input (error,
                           "found %u processes (%s) and gpus = %u: every process must have the "
                           "same number of ranks",
                           launch->n, weft_launcher_words[launch->launcher], ranks);
  if (!asked || (launch->n == 1 && strcmp (asked, "all") == 0) || strcmp (asked, number) == 0)
    return TRUE;
  if (launch->n == 1)
    return weft_bad_input (error,
                           "--ranks-per-process: found \"%s\", wanted all (%s): ranks run on "
                           "threads of one process",
                           asked, number);
  return weft_bad_input (error,
                         "--ranks-per-process: found \"%s\", wanted %s: %u ranks of %u processes",
                         asked, number, ranks, launch->n);
}

/* Prints the address of the rendezvous (the server through which the processes find each other) and
 * where its secret comes from. */
static void
print_rendezvous (const weft_launch *launch)
{
  const char *file = launch->secret ? NULL : launch->secret_file;

  fprintf (stderr, "weft: rendezvous of %u processes (%s) at %s port %u, %s%s\n", launch->n,
           weft_launcher_words[launch->launcher], launch->host, launch->port,
           launch->secret ? "secret of WEFT_SECRET"
           : file         ? "secret in "
                          : "for this machine and user only",
           file ? file : "");
}

gboolean
weft_cli_launch_meet (const weft_launch *launch, const struct weft_job *job, double seconds,
                      weft_rendezvous **peers, GError **error)
{
  uint32_t each = job->cluster.n_gpus / launch->n;

  *peers = NULL;
  if (launch->n == 1)
    return TRUE;
  if (launch->rank == 0)
    print_rendezvous (launch);
  if (!(*peers = weft_rendezvous_open_launch (launch, each, seconds, error)))
    return FALSE;
  if (weft_rendezvous_is_everywhere (*peers))
    fprintf (stderr,
             "weft: %s resolves to no address of this machine: the rendezvous listens on every "
             "address, and its secret keeps others out\n",
             launch->host);
  return TRUE;
}
