#include "core/job/stages.h"
#include "core/job/pipeline.h"
#include <string.h>

/* ----------------------------------------------------- pipeline_model_parallel_layout */

/* Limits of pipeline_model_parallel_layout, enough for any model: 4096 layers, 1024 ranks with 255
 * chunks each. */
enum { MOST_SYMBOLS = 1 << 19, MOST_TIMES = 1 << 16, MOST_DEPTH = 8 };

static gboolean read_symbols (const char **at, uint32_t depth, GString *out);

/* Reads the optional repetition "*12" after a symbol or a closing parenthesis; *times is 1 if there
 * is none. */
static gboolean
read_times (const char **at, uint32_t *times)
{
  char *end = NULL;

  *times = 1;
  if (**at != '*')
    return TRUE;
  if (!g_ascii_isdigit (*++*at))
    return FALSE;
  guint64 n = g_ascii_strtoull (*at, &end, 10);
  *at = end;
  *times = (uint32_t) MIN (n, MOST_TIMES);
  return n > 0 && n <= MOST_TIMES;
}

static gboolean
read_item (const char **at, uint32_t depth, GString *out)
{
  g_autoptr (GString) item = g_string_new (NULL);
  uint32_t times;

  if (**at == '(') {
    ++*at;
    if (depth == MOST_DEPTH || !read_symbols (at, depth + 1, item) || *(*at)++ != ')')
      return FALSE;
  } else if (**at && strchr ("EtmL|", **at)) {
    g_string_append_c (item, *(*at)++);
  } else {
    return FALSE;
  }
  if (!read_times (at, &times) || out->len + item->len * times > MOST_SYMBOLS)
    return FALSE;
  while (times-- > 0)
    g_string_append_len (out, item->str, item->len);
  return TRUE;
}

static gboolean
read_symbols (const char **at, uint32_t depth, GString *out)
{
  while (**at && **at != ')') {
    if (**at == ',' || **at == ' ')
      ++*at;
    else if (!read_item (at, depth, out))
      return FALSE;
  }
  return TRUE;
}

static const char *
layout_text (const struct weft_job *job)
{
  const char *text = g_quark_to_string ((GQuark) job->strategy.pipeline_model_parallel_layout);
  return text && *text && !g_str_equal (text, "none") ? text : NULL;
}

/* The symbols of each stage in pipeline_model_parallel_layout. NULL if the text is malformed; *rest
 * is then the text from the error on. */
static char **
read_layout (const char *text, const char **rest)
{
  g_autoptr (GString) symbols = g_string_new (NULL);

  *rest = text;
  if (!read_symbols (rest, 0, symbols) || **rest)
    return NULL;
  return g_strsplit (symbols->str, "|", -1);
}

static uint32_t
count (const char *symbols, char symbol)
{
  uint32_t n = 0;

  for (; *symbols; symbols++)
    n += *symbols == symbol;
  return n;
}

uint32_t
weft_job_layout_stages (const struct weft_job *job)
{
  const char *text = layout_text (job), *rest;
  g_auto (GStrv) stage = text ? read_layout (text, &rest) : NULL;

  return stage ? g_strv_length (stage) : 0;
}

/* --------------------------------------------------------------------------- by ranks */

/* Number of layers, over all chunks, of the first rank (0), the last rank (1) and every other rank
 * (2). FALSE if the remaining layers cannot be divided evenly among the other ranks. */
static gboolean
layers_of_ranks (const struct weft_job *job, int64_t layers[3])
{
  const union weft_strategy *k = &job->strategy;
  int64_t rest = job->model.num_layers, others = k->pipeline_model_parallel_size;

  layers[0] = k->decoder_first_pipeline_num_layers;
  layers[1] = k->decoder_last_pipeline_num_layers;
  for (int end = 0; end < 2; end++)
    if (layers[end] != WEFT_NONE) {
      rest -= layers[end];
      others--;
    }
  if (rest < 0 || (others <= 0 ? rest > 0 || others < 0 : rest % others != 0))
    return FALSE;
  layers[2] = others > 0 ? rest / others : 0;
  for (int end = 0; end < 2; end++)
    layers[end] = layers[end] == WEFT_NONE ? layers[2] : layers[end];
  return TRUE;
}

static gboolean
names_ranks (const struct weft_job *job)
{
  return job->strategy.decoder_first_pipeline_num_layers != WEFT_NONE ||
         job->strategy.decoder_last_pipeline_num_layers != WEFT_NONE;
}

/* ------------------------------------------------------------------------------ stages */

uint32_t *
weft_job_stage_layers (const struct weft_job *job, const uint32_t *rank, uint32_t n_stages)
{
  const union weft_strategy *k = &job->strategy;
  const char *text = layout_text (job), *rest;
  g_auto (GStrv) layout = text ? read_layout (text, &rest) : NULL;
  gboolean embedding = k->account_for_embedding_in_pipeline_split,
           loss = k->account_for_loss_in_pipeline_split;
  uint32_t p = (uint32_t) k->pipeline_model_parallel_size, *layers = g_new (uint32_t, n_stages);
  int64_t ranks[3];
  gboolean by_ranks = names_ranks (job) && layers_of_ranks (job, ranks);

  for (uint32_t i = 0; i < n_stages; i++)
    if (layout)
      layers[i] = count (layout[i], 't');
    else if (by_ranks)
      layers[i] = ranks[rank[i] == 0 ? 0 : rank[i] + 1 == p ? 1 : 2] / (n_stages / p);
    else
      layers[i] = (job->model.num_layers + embedding + loss) / n_stages - (embedding && i == 0) -
                  (loss && i + 1 == n_stages);
  return layers;
}

/* Number of stages of one copy of the model. */
static int64_t
n_stages (const struct weft_job *job)
{
  return job->strategy.pipeline_model_parallel_size * weft_job_chunks (job);
}

uint32_t
weft_job_most_layers (const struct weft_job *job)
{
  const char *text = layout_text (job), *rest;
  g_auto (GStrv) layout = text ? read_layout (text, &rest) : NULL;
  const union weft_strategy *k = &job->strategy;
  int64_t ranks[3], most = 0;

  for (uint32_t stage = 0; layout && layout[stage]; stage++)
    most = MAX (most, count (layout[stage], 't'));
  if (text)
    return (uint32_t) most;
  if (names_ranks (job))
    return layers_of_ranks (job, ranks)
               ? (uint32_t) MAX (MAX (ranks[0], ranks[1]), ranks[2]) / weft_job_chunks (job)
               : 0;
  return (uint32_t) ((job->model.num_layers + k->account_for_embedding_in_pipeline_split +
                      k->account_for_loss_in_pipeline_split) /
                     n_stages (job));
}

/* --------------------------------------------------------------------------- problems */

static char *
layout_problem (const struct weft_job *job, const char *text)
{
  const char *rest;
  g_auto (GStrv) stage = read_layout (text, &rest);
  uint32_t n = stage ? g_strv_length (stage) : 0, layers = 0, mtp = 0, ends = 0;

  if (!stage)
    return g_strdup_printf ("\"%s\" has a syntax error at \"%.20s\"", text, rest);
  if (n != n_stages (job))
    return g_strdup_printf ("%u stages", n);
  for (uint32_t i = 0; i < n; i++) {
    layers += count (stage[i], 't');
    mtp += count (stage[i], 'm');
    ends += count (stage[i], 'E') + count (stage[i], 'L');
    if (!*stage[i])
      return g_strdup_printf ("stage %u is empty", i);
  }
  if (layers != job->model.num_layers || mtp != job->model.mtp_num_layers)
    return g_strdup_printf ("%u layers and %u of multi-token prediction", layers, mtp);
  if (count (stage[n - 1], 'm') != mtp)
    return g_strdup_printf ("\"%s\" has multi-token prediction on a stage without the head", text);
  if (ends != 2 || *stage[0] != 'E' || !g_str_has_suffix (stage[n - 1], "L"))
    return g_strdup_printf ("\"%s\" without one E at the start and one L at the end", text);
  return NULL;
}

static char *
ranks_problem (const struct weft_job *job)
{
  const int64_t chunks = weft_job_chunks (job);
  int64_t ranks[3];

  if (job->strategy.pipeline_model_parallel_size == 1)
    return g_strdup ("layers of the first or last rank, but only one pipeline rank");
  if (!layers_of_ranks (job, ranks))
    return g_strdup ("the remaining layers do not divide evenly");
  for (int i = 0; i < 3; i++)
    if (ranks[i] % chunks)
      return g_strdup_printf ("%" G_GINT64_FORMAT " layers for %" G_GINT64_FORMAT
                              " chunks per rank",
                              ranks[i], chunks);
  return NULL;
}

char *
weft_job_stages_problem (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  gboolean embedding = k->account_for_embedding_in_pipeline_split,
           loss = k->account_for_loss_in_pipeline_split;
  const char *text = layout_text (job);
  int64_t layers = job->model.num_layers + embedding + loss;

  if (!!text + names_ranks (job) + (embedding || loss) > 1)
    return g_strdup ("more than one of: a layout, layers of the first or last rank, and counted "
                     "ends");
  if (text)
    return layout_problem (job, text);
  if (names_ranks (job))
    return ranks_problem (job);
  if (layers % n_stages (job))
    return g_strdup_printf ("%" G_GINT64_FORMAT " layers%s for %" G_GINT64_FORMAT " stages", layers,
                            embedding || loss ? " (including counted ends)" : "", n_stages (job));
  return NULL;
}
