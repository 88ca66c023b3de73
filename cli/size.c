/* weft size: which cluster, how many GPUs, how many days and how much money a training run
 * needs. */
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/figure_flags.h"
#include "cli/figures/figures.h"
#include "cli/interrupt.h"
#include "cli/outputs.h"
#include "cli/size_page.h"
#include "core/base/error.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------ numbers */

/* X (name, flag, default, lowest, highest, doc): flags of the command that take a number. */
#define NUMBER_LIST(X)                                                                             \
  X (tokens, "tokens", "none", "1", "1e18",                                                        \
     "tokens of the run: 2T, 300B [20 for each parameter that a token uses]")                      \
  X (days, "days", "none", "0.01", "36500", "days until the run must be complete")                 \
  X (budget, "budget", "none", "0", "1e15",                                                        \
     "money that the run may cost, in the currency of the site")                                   \
  X (batch_tokens, "batch-tokens", "4M", "1", "1e12",                                              \
     "tokens of a step, rounded for each cluster, unless the job gives a global batch size [4M]")  \
  X (most_gpus, "most-gpus", "none", "1", "1e6",                                                   \
     "GPUs of the largest cluster that is chosen [131072 with --days, else 1024]")                 \
  X (refine, "refine", "2", "0", "10",                                                             \
     "how often the interval of sizes around the deadline is halved [2]")                          \
  X (finalists, "finalists", "3", "1", "1000",                                                     \
     "strategies of each cluster that SimGrid simulates [3]")                                      \
  X (seed, "seed", "1", "0", "1e9", "seed of the simulated failures [1]")

#define NUMBER_ID(name, ...) NUMBER_##name,
enum number { NUMBER_LIST (NUMBER_ID) N_NUMBER };
#undef NUMBER_ID

static const struct weft_field numbers[N_NUMBER] = {
#define NUMBER_FIELD(id, flag, def_, lo_, hi_, doc_)                                               \
  { .name = flag,                                                                                  \
    .type = WEFT_TYPE_REAL,                                                                        \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = "",                                                                                    \
    .doc = doc_ },
  NUMBER_LIST (NUMBER_FIELD)
#undef NUMBER_FIELD
};

struct size_ask {
  const char *text[N_NUMBER]; /* text of each number as typed; NULL: the flag was not given */
  double number[N_NUMBER];    /* NaN: none */
  const char *topologies, *sizes, *site;
  struct weft_cli_figure_ask figure;
};

/* Reads a number. A letter B at the end stands for a billion, as in the names of models and of
 * token sets. */
static gboolean
read_number (struct size_ask *ask, enum number i, GError **error)
{
  const struct weft_field *field = &numbers[i];
  g_autofree char *text = g_strdup (ask->text[i] ? ask->text[i] : field->def);
  union weft_value value;
  size_t length = strlen (text);

  if (length > 1 && text[length - 1] == 'B')
    text[length - 1] = 'G';
  if (!weft_field_parse (field, text, &value, NULL)) {
    g_autofree char *range = weft_field_range (field), *what = weft_field_counts (field);
    return weft_bad_input (error, "--%s: found \"%s\", wanted %s%s", field->name, ask->text[i],
                           range, what);
  }
  ask->number[i] = value.i == WEFT_NONE ? NAN : value.r;
  return TRUE;
}

static gboolean
read_numbers (struct size_ask *ask, GError **error)
{
  for (unsigned i = 0; i < N_NUMBER; i++)
    if (!read_number (ask, i, error))
      return FALSE;
  return TRUE;
}

/* ------------------------------------------------------------------------ sizes */

enum { MOST_SIZES = 64, MOST_GPUS = 1000000 };

static gboolean
read_gpus (const char *text, uint32_t *gpus)
{
  guint64 value;

  if (!g_ascii_string_to_unsigned (text, 10, 1, MOST_GPUS, &value, NULL))
    return FALSE;
  *gpus = (uint32_t) value;
  return TRUE;
}

/* Adds one number, or, for "LOW..HIGH", LOW and all its doublings below HIGH, and HIGH. */
static gboolean
read_size (const char *text, GArray *sizes)
{
  const char *dots = strstr (text, "..");
  g_autofree char *first = dots ? g_strndup (text, (gsize) (dots - text)) : g_strdup (text);
  uint32_t low, high;

  if (!read_gpus (first, &low) || (dots && !read_gpus (dots + 2, &high)) || (dots && high < low))
    return FALSE;
  for (; dots && low < high; low *= 2)
    g_array_append_val (sizes, low);
  if (dots)
    low = high;
  g_array_append_val (sizes, low);
  return TRUE;
}

/* Reads the value of --sizes. The caller frees the array; NULL with an error. */
static GArray *
read_sizes (const char *text, GError **error)
{
  g_autoptr (GArray) sizes = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_auto (GStrv) parts = g_strsplit (text ? text : "", ",", -1);

  for (unsigned i = 0; parts[i]; i++)
    if (!read_size (g_strstrip (parts[i]), sizes) || sizes->len > MOST_SIZES) {
      weft_bad_input (error,
                      "--sizes: found \"%s\", wanted at most %d numbers of GPUs from 1 to %d, as "
                      "64,128,256, or LOW..HIGH for all doublings",
                      parts[i], MOST_SIZES, MOST_GPUS);
      return NULL;
    }
  return g_steal_pointer (&sizes);
}

/* ------------------------------------------------------------------------ topologies */

/* The topology that the settings of the job name; NULL: none. */
static const char *
own_topology (const weft_settings *settings)
{
  const char *name = NULL;

  for (unsigned i = 0; i < weft_settings_count (settings); i++) {
    const struct weft_setting *s = weft_settings_at (settings, i);
    if (g_str_equal (s->section, "cluster") && g_str_equal (s->key, "topology"))
      name = s->value;
  }
  return name;
}

/* Refuses names that are empty or given twice. */
static gboolean
check_names (char *const *names, GError **error)
{
  for (unsigned i = 0; names[i]; i++) {
    if (!*names[i])
      return weft_bad_input (error, "--topologies: found an empty name, wanted names as A,B");
    for (unsigned k = 0; k < i; k++)
      if (g_str_equal (names[i], names[k]))
        return weft_bad_input (error, "--topologies: found %s twice, wanted each topology once",
                               names[i]);
  }
  return TRUE;
}

/* The topologies that the command compares: those of --topologies; without this flag, the topology
 * of the job; if the job names none, those of the site. The caller frees the array with
 * g_strfreev(). */
static char **
find_topologies (const weft_cli_input *input, const struct size_ask *ask, const weft_site *site,
                 GError **error)
{
  const char *own = own_topology (input->settings);
  g_auto (GStrv) names = ask->topologies ? g_strsplit (ask->topologies, ",", -1)
                         : own           ? g_strsplit (own, "\n", 1)
                                         : weft_site_topologies (site);

  for (unsigned i = 0; names[i]; i++)
    g_strstrip (names[i]);
  if (!check_names (names, error))
    return NULL;
  if (names[0])
    return g_steal_pointer (&names);
  weft_bad_input (error, "found no topology: give --topologies A,B, or sections in the site %s",
                  ask->site);
  return NULL;
}

/* ------------------------------------------------------------------------ command */

struct sight {
  gboolean terminal;
  gint64 start;
};

static void
show (void *user, const char *text)
{
  const struct sight *sight = user;
  double seconds = (double) (g_get_monotonic_time () - sight->start) * 1e-6;

  fprintf (stderr, sight->terminal ? "\r%s, %.0f s\033[K" : "weft: %s, %.0f s\n", text, seconds);
}

static struct weft_size_options
options_of (const struct size_ask *ask, const GArray *sizes)
{
  gboolean deadline = !isnan (ask->number[NUMBER_days]);
  double most = ask->number[NUMBER_most_gpus];

  return (struct weft_size_options){
    .tokens = ask->number[NUMBER_tokens],
    .days = ask->number[NUMBER_days],
    .budget = ask->number[NUMBER_budget],
    .batch_tokens = ask->number[NUMBER_batch_tokens],
    .gpus = ask->sizes ? (const uint32_t *) (const void *) sizes->data : NULL,
    .n_gpus = ask->sizes ? sizes->len : 0,
    .most_gpus = !isnan (most) ? (uint32_t) most
                 : deadline    ? 131072
                               : 1024,
    .refinements = (uint32_t) ask->number[NUMBER_refine],
    .finalists = (uint32_t) ask->number[NUMBER_finalists],
    .seed = (uint64_t) ask->number[NUMBER_seed],
    .progress = show,
    .stop = weft_cli_is_interrupted,
  };
}

/* The number of tokens for the model of the job. `settings` may not name a topology yet. */
static gboolean
find_tokens (weft_settings *settings, const char *topology, struct weft_size_options *options,
             GError **error)
{
  struct weft_job job;

  if (!isnan (options->tokens))
    return TRUE;
  weft_settings_add (settings, "cluster", "topology", topology, "--topologies");
  if (!weft_job_assemble (settings, &job, error))
    return FALSE;
  options->tokens = WEFT_SIZE_CHINCHILLA * (double) weft_model_active_parameters (&job.model);
  return TRUE;
}

static gboolean
check_budget (const struct size_ask *ask, const weft_site *site, char *const *topologies,
              GError **error)
{
  union weft_site_fields fields;

  for (unsigned i = 0; topologies[i] && !isnan (ask->number[NUMBER_budget]); i++) {
    weft_site_of (site, topologies[i], &fields);
    if (isnan (fields.gpu_hour_price))
      return weft_bad_input (error, "--budget: site %s gives no gpu_hour_price for %s, wanted one",
                             ask->site, topologies[i]);
  }
  return TRUE;
}

static int
status_of (const weft_size *size)
{
  if (size->stopped)
    return WEFT_CLI_EXIT_BY_SIGINT;
  for (unsigned i = 0; i < size->point->len; i++)
    if (weft_size_at (size->point, i)->found.fate == WEFT_SIZE_FOUND)
      return size->best >= 0 ? 0 : 3;
  return 4;
}

static int
print_size (const struct weft_cli_size_page *page, const weft_cli_input *input,
            const struct weft_cli_figure_ask *ask)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_figure) figure = ask->path ? weft_cli_figure_size (page) : NULL;

  if (input->json)
    weft_cli_size_json (page);
  else
    weft_cli_size_text (page);
  if (figure && !weft_cli_figure_write (ask, figure, &error))
    return weft_cli_fail (error);
  return status_of (page->size);
}

static int
run (const weft_cli_input *input, struct size_ask *ask)
{
  const struct weft_cli_output outputs[] = { { "figure", ask->figure.path } };
  struct sight sight = { isatty (STDERR_FILENO), g_get_monotonic_time () };
  g_autoptr (GError) error = NULL;

  ask->site = ask->site ? ask->site : "example";
  if (!read_numbers (ask, &error) || !weft_cli_figure_check (&ask->figure, &error) ||
      !weft_cli_check_outputs (outputs, 1, NULL, &error))
    return weft_cli_fail (error);
  g_autoptr (GArray) sizes = read_sizes (ask->sizes, &error);
  g_autoptr (weft_site) site = sizes ? weft_site_load (ask->site, &error) : NULL;
  g_auto (GStrv) names = site ? find_topologies (input, ask, site, &error) : NULL;
  struct weft_size_options options;
  if (!names || !check_budget (ask, site, names, &error))
    return weft_cli_fail (error);
  options = options_of (ask, sizes);
  options.user = &sight;
  if (!find_tokens (input->settings, names[0], &options, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_cli_sure) sure = weft_cli_sure_new (&error);
  if (!sure)
    return weft_cli_fail (error);
  weft_cli_catch_interrupt ();
  g_autoptr (weft_size) size =
      weft_size_run (input->settings, (const char *const *) names, site, &options, &error);
  if (sight.terminal)
    fprintf (stderr, "\r\033[K");
  if (!size)
    return weft_cli_fail (error);
  const struct weft_cli_size_page page = { size, &options, sure, ask->site,
                                           !ask->text[NUMBER_tokens] };
  return print_size (&page, input, &ask->figure);
}

static const char about[] =
    "Answers what a training run needs: searches clusters of several topologies and sizes for "
    "their best strategies, and prints days, GPU-hours, cost, energy and CO2 of each, the Pareto "
    "front of days against cost, and the cheapest that meets the deadline and the budget, with "
    "its failures, checkpoints and batch sizes.  With --days, sizes around the deadline are "
    "searched; without it, the smallest cluster on which a strategy fits, and its doublings; with "
    "--sizes, the given sizes; if the job gives gpus or nodes, this size.  Prices, power, failures "
    "and storage are those of the site; the bundled example has invented prices "
    "(sites/README.md).  A search takes seconds to a minute for each cluster; each processor "
    "searches one cluster at a time.  Ctrl-C prints what is known so far, and ends with status "
    "130.  Ends with status 3 if no cluster meets the limits, 4 if no strategy fits on any.";

int
weft_cli_size (int argc, char **argv)
{
  struct size_ask ask = { 0 };
  g_auto (weft_cli_input) input = { 0 };
  const struct weft_cli_flag flags[] = {
#define NUMBER_FLAG(id, flag, def, lo, hi, doc) { flag, "N", doc, NULL, &ask.text[NUMBER_##id] },
    NUMBER_LIST (NUMBER_FLAG)
#undef NUMBER_FLAG
    { "topologies", "A,B", "clusters to compare [that of the job, else those of the site]", NULL,
      &ask.topologies },
    { "sizes", "LIST", "numbers of GPUs: 64,128, or LOW..HIGH for all doublings", NULL,
      &ask.sizes },
    { "site", "FILE", "prices, power, failures, storage: a file, or a bundled name [example]", NULL,
      &ask.site },
    WEFT_CLI_FIGURE_FLAGS (&ask.figure, "days against cost, and the scaling curve"),
  };
  const struct weft_cli_page page = {
    .usage = "weft size [JOB] [--tokens N] [--days N] [--budget N] [flags]",
    .doc = about,
    .examples = "  weft size --model llama3-70b --tokens 2T --days 30\n"
                "  weft size job.ini --days 30 --topologies dgx-h100,dgx-b200 --site mine.ini "
                "--figure front.pdf\n"
                "  weft size --model llama3-8b --topology dgx-h100 --sizes 8..4096\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
  };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input, &ask) : status;
}
