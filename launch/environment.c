#include "launch/environment.h"
#include "core/base/error.h"
#include "launch/listening.h"
#include "launch/nodelist.h"
#include "launch/secret.h"
#include <string.h>

#define WORD(id, word, ...) word,
const char *const weft_launcher_words[] = { WEFT_LAUNCHER_LIST (WORD) NULL };
#undef WORD

static const struct launcher {
  const char *rank, *size, *local_rank, *local_size, *job;
} launchers[] = {
#define ROW(id, word, ...) { __VA_ARGS__ },
  WEFT_LAUNCHER_LIST (ROW)
#undef ROW
};

struct reading {
  weft_launch_getenv get;
  const struct launcher *l;
  const char *word; /* name of the launcher whose variables are read */
};

/* The value of the first variable in `names` that is set and not empty, or NULL. *found receives
 * the name of this variable, or the first name if no variable is set. */
static const char *
look_up (const struct reading *r, const char *names, const char **found)
{
  g_auto (GStrv) name = g_strsplit (names, " ", -1);
  const char *value = NULL;

  *found = g_intern_string (name[0]);
  for (unsigned i = 0; name[i] && !value; i++) {
    value = r->get (name[i]);
    value = value && *value ? value : NULL;
    if (value)
      *found = g_intern_string (name[i]);
  }
  return value;
}

/* Reads a whole number in [least, most]. */
static gboolean
read_number (const struct reading *r, const char *names, uint32_t least, uint32_t most,
             uint32_t *out, GError **error)
{
  const char *name, *text = look_up (r, names, &name);
  guint64 value;

  if (!text)
    return weft_bad_input (error, "%s: found nothing, wanted a number, because %s of %s is set",
                           name, r->l->rank, r->word);
  if (!g_ascii_string_to_unsigned (text, 10, least, most, &value, NULL))
    return weft_bad_input (error, "%s: found \"%s\" (%s), wanted a number from %u to %u", name,
                           text, r->word, least, most);
  *out = (uint32_t) value;
  return TRUE;
}

/* ---------------------------------------------------------- detecting the launcher */

/* Whether srun started this process. The batch script of a Slurm job has SLURM_PROCID too, but only
 * srun sets the variables of a step. */
static gboolean
is_step (weft_launch_getenv get)
{
  return get ("SLURM_STEP_NUM_TASKS") || get ("SLURM_STEP_ID") || get ("SLURM_STEPID");
}

static gboolean
is_found (weft_launch_getenv get, enum weft_launcher i)
{
  return get (launchers[i].rank) && (i != WEFT_LAUNCHER_SLURM || is_step (get));
}

/* Finds the launcher that `asked` names, or detects it; WEFT_N_LAUNCHER: no launcher. */
static gboolean
find_launcher (const char *asked, weft_launch_getenv get, enum weft_launcher *out, GError **error)
{
  gboolean any = !asked || strcmp (asked, "auto") == 0;

  *out = 0;
  while (*out < WEFT_N_LAUNCHER &&
         !(any ? is_found (get, *out) : strcmp (asked, weft_launcher_words[*out]) == 0))
    ++*out;
  if (any || strcmp (asked, "none") == 0)
    return TRUE;
  if (*out == WEFT_N_LAUNCHER) {
    g_autofree char *words = g_strjoinv (", ", (char **) (uintptr_t) weft_launcher_words);
    return weft_bad_input (error, "--launcher: found \"%s\", wanted auto, none, %s", asked, words);
  }
  return get (launchers[*out].rank) ||
         weft_bad_input (error, "--launcher: found %s, but its variable %s is not set", asked,
                         launchers[*out].rank);
}

/* ----------------------------------------------------------------- rank, world size */

static gboolean
read_ranks (const struct reading *r, struct weft_launch *launch, GError **error)
{
  uint32_t local_size = 0;

  if (!read_number (r, r->l->size, 1, 1000000, &launch->n, error) ||
      !read_number (r, r->l->rank, 0, launch->n - 1, &launch->rank, error))
    return FALSE;
  if (launch->n == 1)
    return TRUE;
  if (!read_number (r, r->l->local_rank, 0, launch->rank, &launch->local_rank, error))
    return FALSE;
  if (!r->l->local_size || !r->get (r->l->local_size))
    return TRUE;
  return read_number (r, r->l->local_size, launch->local_rank + 1, launch->n, &local_size, error);
}

/* Whether all processes run on this machine, according to the launcher's variables. */
static gboolean
is_local (const struct reading *r, const struct weft_launch *launch)
{
  const char *size = r->l->local_size ? r->get (r->l->local_size) : NULL;

  return size && g_ascii_strtoull (size, NULL, 10) == launch->n;
}

/* -------------------------------------------------------------- rendezvous address */

/* Sets the host to the first one of Slurm's list of hosts. With the launcher Slurm this is the list
 * of the step. If another launcher runs inside Slurm, it is the list of the job: the step then
 * consists of mpirun's daemons and lacks the machine that mpirun itself runs on. A list of one host
 * is this machine. */
static gboolean
read_nodes (const struct reading *r, struct weft_launch *launch, GError **error)
{
  const char *of_job = "SLURM_JOB_NODELIST SLURM_NODELIST",
             *of_step = "SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST", *name;
  const char *list = look_up (r, launch->launcher == WEFT_LAUNCHER_SLURM ? of_step : of_job, &name);

  if (!list)
    return TRUE;
  g_auto (GStrv) hosts = weft_nodelist_hosts (list, error);
  if (!hosts) {
    g_prefix_error (error, "%s: ", name);
    return FALSE;
  }
  launch->host = g_strdup (hosts[1] ? hosts[0] : "localhost");
  return TRUE;
}

/* Whether a host has a port: "a:29500", "[::1]:29500". A bare IPv6 address has several colons. */
static gboolean
has_port (const char *host)
{
  const char *colon = strchr (host, ':');

  return strstr (host, "]:") || (colon && !strchr (colon + 1, ':'));
}

/* Sets the host of process 0: MASTER_ADDR if set, else this machine if all processes run on it,
 * else the first host of Slurm's list. torchrun always sets MASTER_ADDR, to the name of a machine;
 * if all processes run there, the rendezvous needs no address that other machines reach. */
static gboolean
read_host (const struct reading *r, struct weft_launch *launch, GError **error)
{
  const char *name, *given = look_up (r, "MASTER_ADDR", &name);

  if (given && has_port (given))
    return weft_bad_input (
        error, "MASTER_ADDR: found \"%s\", wanted a host without a port (set MASTER_PORT)", given);
  if (given && launch->launcher == WEFT_LAUNCHER_TORCHRUN && is_local (r, launch))
    launch->host = g_strdup ("localhost");
  else if (given)
    launch->host = g_strdup (given);
  else if (launch->launcher == WEFT_LAUNCHER_TORCHRUN)
    return weft_bad_input (
        error, "MASTER_ADDR: found nothing, wanted the host of rank 0: %s is set", r->l->rank);
  else if (is_local (r, launch))
    launch->host = g_strdup ("localhost");
  else if (!read_nodes (r, launch, error))
    return FALSE;
  if (!launch->host)
    launch->host = g_strdup (r->get ("SLURM_LAUNCH_NODE_IPADDR"));
  return launch->host ||
         weft_bad_input (error,
                         "MASTER_ADDR: found nothing, wanted the host of rank 0: %s puts %u "
                         "processes on several machines without naming them",
                         r->word, launch->n);
}

/* Ports below the ephemeral range of the operating system (from 32768 on Linux). */
#define FIRST_PORT 20000u
#define N_PORTS 12000u

/* Sets the port: MASTER_PORT if set, else a port computed from the token. If torchrun's agent
 * serves its own store on MASTER_PORT, Weft uses MASTER_PORT + 1. */
static gboolean
read_port (const struct reading *r, struct weft_launch *launch, GError **error)
{
  gboolean taken = g_strcmp0 (r->get ("TORCHELASTIC_USE_AGENT_STORE"), "True") == 0;
  uint32_t port = FIRST_PORT + g_str_hash (launch->token) % N_PORTS;

  if ((launch->launcher == WEFT_LAUNCHER_TORCHRUN || r->get ("MASTER_PORT")) &&
      !read_number (r, "MASTER_PORT", 1, 65534, &port, error))
    return FALSE;
  launch->port = (uint16_t) (port + (taken && launch->launcher == WEFT_LAUNCHER_TORCHRUN));
  return TRUE;
}

static void
read_token (const struct reading *r, struct weft_launch *launch)
{
  const char *name, *job = look_up (r, r->l->job, &name),
                    *step = look_up (r, "SLURM_STEP_ID SLURM_STEPID", &name);
  gboolean slurm = launch->launcher == WEFT_LAUNCHER_SLURM;

  launch->token = g_strdup_printf ("%s:%.100s%s%.20s", r->word, job ? job : "",
                                   slurm && step ? "." : "", slurm && step ? step : "");
  /* replaces unprintable characters, because the token is sent as the key of a frame */
  for (char *c = launch->token; *c; c++)
    if (!g_ascii_isprint (*c))
      *c = '?';
}

/* Sets launch->secret or launch->secret_file. */
static gboolean
read_secret (const struct reading *r, struct weft_launch *launch, GError **error)
{
  const char *name, *secret = look_up (r, "WEFT_SECRET", &name),
                    *file = look_up (r, "WEFT_SECRET_FILE", &name);

  if (secret && !weft_secret_check (secret, "WEFT_SECRET", error))
    return FALSE;
  if (secret)
    launch->secret = g_strdup (secret);
  else if (file)
    launch->secret_file = g_strdup (file);
  else if (!weft_host_is_loopback (launch->host))
    launch->secret_file = g_build_filename (g_get_user_config_dir (), "weft", "secret", NULL);
  return TRUE;
}

void
weft_launch_clear (struct weft_launch *launch)
{
  g_clear_pointer (&launch->host, g_free);
  g_clear_pointer (&launch->token, g_free);
  g_clear_pointer (&launch->secret, g_free);
  g_clear_pointer (&launch->secret_file, g_free);
}

gboolean
weft_launch_read (const char *asked, weft_launch_getenv get, struct weft_launch *launch,
                  GError **error)
{
  struct reading r = { .get = get ? get : g_getenv };

  *launch = (struct weft_launch){ .n = 1 };
  if (!find_launcher (asked, r.get, &launch->launcher, error))
    return FALSE;
  if (launch->launcher == WEFT_N_LAUNCHER)
    return TRUE;
  r.l = &launchers[launch->launcher];
  r.word = weft_launcher_words[launch->launcher];
  if (!read_ranks (&r, launch, error))
    return FALSE;
  if (launch->n == 1)
    return TRUE;
  read_token (&r, launch);
  return read_host (&r, launch, error) && read_port (&r, launch, error) &&
         read_secret (&r, launch, error);
}
