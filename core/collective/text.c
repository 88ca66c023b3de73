#include "core/collective/text.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/suggest.h"
#include "core/collective/expression.h"
#include <string.h>

#define WORD WEFT_WORD_TEXT
const char *const weft_collective_words[] = { WEFT_COLLECTIVE_LIST (WORD) NULL };

struct line {
  uint32_t number, indent;
  const char *text; /* without indentation, comment and blanks at its end */
};

struct weft_algo_text {
  char *name, *copy; /* copy: the lines point into it */
  GArray *line;      /* struct line, without blank lines */
  enum weft_collective collective;
  int protocol;
};

/* A run of the text by one rank. */
struct run {
  const weft_algo_text *text;
  uint32_t rank, channel;
  weft_algo *a;
  GArray *steps; /* struct weft_algo_step */
  struct weft_variables v;
  gboolean check; /* only the notation is checked: every block runs once */
  const struct line *line;
  const char *at; /* position in the line */
  uint32_t n_run; /* lines that were run */
  GError **error;
};

/* A text whose loops run longer is refused. */
enum { MOST_LINES = 1 << 22 };

/* The variables that every text has. */
enum { VARIABLE_N, VARIABLE_CHUNKS, VARIABLE_R, N_GIVEN };

static gboolean
blame (const struct run *run)
{
  g_prefix_error (run->error, "%s:%u: ", run->text->name, run->line->number);
  return FALSE;
}

static gboolean
wanted (const struct run *run, const char *what)
{
  g_autofree char *start = g_strndup (run->at, 40), *found = g_strescape (start, NULL);

  weft_bad_input (run->error, "found \"%s\", wanted %s", found, what);
  return blame (run);
}

static void
skip_blanks (struct run *run)
{
  while (*run->at == ' ' || *run->at == '\t')
    run->at++;
}

/* Passes a word or a sign; FALSE without an error if the line has another one there. */
static gboolean
pass (struct run *run, const char *word)
{
  gsize length = strlen (word);

  skip_blanks (run);
  if (!g_str_has_prefix (run->at, word) ||
      (g_ascii_isalpha (*word) && (g_ascii_isalnum (run->at[length]) || run->at[length] == '_')))
    return FALSE;
  run->at += length;
  return TRUE;
}

static gboolean
expect (struct run *run, const char *word)
{
  return pass (run, word) || wanted (run, word);
}

static gboolean
expect_end (struct run *run)
{
  skip_blanks (run);
  return *run->at == '\0' || wanted (run, "the end of the line");
}

static gboolean
read_value (struct run *run, int64_t *value)
{
  return weft_expression_read (&run->at, &run->v, run->check, value, run->error) || blame (run);
}

/* Reads a new name and makes it a variable. */
static gboolean
read_variable (struct run *run)
{
  skip_blanks (run);
  const char *name = run->at;
  while (g_ascii_isalpha (*run->at) || *run->at == '_' ||
         (run->at > name && g_ascii_isdigit (*run->at)))
    run->at++;
  if (run->at == name)
    return wanted (run, "a name");
  g_autofree char *word = g_strndup (name, run->at - name);
  if (weft_variables_find (&run->v, word, run->at - name) >= 0 ||
      run->v.n == WEFT_MOST_VARIABLES) {
    run->at = name;
    return wanted (run, "a name that is not in use yet, and at most 16 names");
  }
  run->v.name[run->v.n] = g_intern_string (word);
  run->v.value[run->v.n++] = 1;
  return TRUE;
}

static uint32_t
wrap (int64_t value, uint32_t n)
{
  int64_t rest = value % (int64_t) n;
  return (uint32_t) (rest < 0 ? rest + n : rest);
}

/* ------------------------------------------------------------------- steps */

static gboolean
read_step (struct run *run, int kind, const char *preposition)
{
  int64_t chunk, peer;

  if (!read_value (run, &chunk) || !expect (run, preposition) || !read_value (run, &peer) ||
      !expect_end (run))
    return FALSE;
  if (run->check)
    return TRUE;
  struct weft_algo_step step = { .rank = run->rank,
                                      .channel = run->channel,
                                      .peer = wrap (peer, run->a->n),
                                      .chunk = wrap (chunk, run->a->n_chunks),
                                      .line = run->line->number,
                                      .kind = kind };
  if (run->steps->len == WEFT_MOST_ALGORITHM_STEPS || step.peer == step.rank) {
    weft_bad_input (run->error,
                    step.peer == step.rank
                        ? "rank %u sends to itself, wanted another rank"
                        : "rank %u: found more steps than %u in total",
                    run->rank, WEFT_MOST_ALGORITHM_STEPS);
    return blame (run);
  }
  g_array_append_val (run->steps, step);
  return TRUE;
}

static gboolean
read_channel (struct run *run)
{
  int64_t channel;

  if (!read_value (run, &channel) || !expect_end (run))
    return FALSE;
  if (!run->check && (channel < 0 || channel >= WEFT_MOST_CHANNELS)) {
    weft_bad_input (run->error, "found channel %" G_GINT64_FORMAT ", wanted 0 to %d", channel,
                    WEFT_MOST_CHANNELS - 1);
    return blame (run);
  }
  run->channel = run->check ? 0 : (uint32_t) channel;
  run->a->n_channels = MAX (run->a->n_channels, run->channel + 1);
  return TRUE;
}

static gboolean
read_let (struct run *run)
{
  int64_t value;

  if (!read_variable (run) || !expect (run, "=") || !read_value (run, &value) ||
      !expect_end (run))
    return FALSE;
  run->v.value[run->v.n - 1] = value;
  return TRUE;
}

/* ------------------------------------------------------------------ blocks */

static gboolean run_lines (struct run *run, uint32_t first, uint32_t end);

/* The line after the block that belongs to a line: the lines below it that are indented further. */
static uint32_t
block_end (const struct run *run, uint32_t at)
{
  const struct line *line = &g_array_index (run->text->line, struct line, 0);
  uint32_t end = at + 1;

  while (end < run->text->line->len && line[end].indent > line[at].indent)
    end++;
  return end;
}

/* Runs the block of line `at` once. Its variables and its channel end with it. */
static gboolean
run_block (struct run *run, uint32_t at)
{
  uint32_t n = run->v.n, channel = run->channel;

  if (!run_lines (run, at + 1, block_end (run, at)))
    return FALSE;
  run->v.n = n;
  run->channel = channel;
  return TRUE;
}

static gboolean
run_for (struct run *run, uint32_t at)
{
  int64_t from, to, times = 1;
  uint32_t n = run->v.n;

  if (!read_variable (run))
    return FALSE;
  if (!expect (run, "in") || !read_value (run, &from) || !expect (run, "..") ||
      !read_value (run, &to) || (pass (run, "times") && !read_value (run, &times)) ||
      !expect_end (run))
    return FALSE;
  if (!run->check && times != 1 && (times < 1 || from < 1)) {
    weft_bad_input (run->error, "found a start or a factor below 1, wanted at least 1");
    return blame (run);
  }
  for (int64_t i = from; i <= to; i = times > 1 ? i * times : i + 1) {
    run->v.value[n] = i;
    if (!run_block (run, at))
      return FALSE;
    if (run->check)
      break;
  }
  run->v.n = n;
  return TRUE;
}

static gboolean
run_if (struct run *run, uint32_t at)
{
  int64_t holds;

  if (!read_value (run, &holds) || !expect_end (run))
    return FALSE;
  return !(holds || run->check) || run_block (run, at);
}

static gboolean
run_line (struct run *run, uint32_t at)
{
  static const struct {
    const char *word, *preposition;
    int kind;
  } steps[] = { { "send", "to", WEFT_STEP_SEND },
                { "copy", "from", WEFT_STEP_COPY },
                { "add", "from", WEFT_STEP_ADD } };

  run->line = &g_array_index (run->text->line, struct line, at);
  run->at = run->line->text;
  if (++run->n_run > MOST_LINES)
    return wanted (run, "loops that run fewer lines in total");
  for (unsigned i = 0; i < G_N_ELEMENTS (steps); i++)
    if (pass (run, steps[i].word))
      return read_step (run, steps[i].kind, steps[i].preposition);
  if (pass (run, "channel"))
    return read_channel (run);
  if (pass (run, "let"))
    return read_let (run);
  if (pass (run, "for"))
    return run_for (run, at);
  if (pass (run, "if"))
    return run_if (run, at);
  return wanted (run, "send, copy, add, channel, let, for or if");
}

static gboolean
run_lines (struct run *run, uint32_t first, uint32_t end)
{
  for (uint32_t at = first, next; at < end; at = next) {
    const struct line *line = &g_array_index (run->text->line, struct line, at);
    gboolean opens = g_str_has_prefix (line->text, "for ") || g_str_has_prefix (line->text, "if ");
    next = block_end (run, at);
    if (!run_line (run, at))
      return FALSE;
    if ((next > at + 1) != opens) {
      run->line = line;
      weft_bad_input (run->error, opens ? "found no lines that are indented below this one"
                                        : "found lines below that are indented further; only "
                                          "for and if have such lines");
      return blame (run);
    }
  }
  return TRUE;
}

/* --------------------------------------------------------------- first lines */

enum { FIRST_COLLECTIVE, FIRST_CHUNKS, FIRST_PROTOCOL, N_FIRST };
static const char *const first_words[N_FIRST] = { "collective", "chunks", "protocol" };

static struct run
run_new (const weft_algo_text *text, weft_algo *a, GError **error)
{
  struct run run = { .text = text, .a = a, .error = error };

  run.v = (struct weft_variables){ .n = VARIABLE_CHUNKS, .name = { "n", "chunks", "r" } };
  run.v.value[VARIABLE_N] = a->n;
  return run;
}

static gboolean
read_word (struct run *run, const char *const *words, int *index)
{
  for (*index = 0; words[*index]; ++*index)
    if (pass (run, words[*index]))
      return expect_end (run);
  g_autofree char *all = g_strjoinv (", ", (char **) (uintptr_t) words);
  return wanted (run, all);
}

static gboolean
read_chunks (struct run *run)
{
  int64_t chunks;

  if (!read_value (run, &chunks) || !expect_end (run))
    return FALSE;
  if (!run->check && (chunks < 1 || chunks > WEFT_MOST_CHUNKS)) {
    weft_bad_input (run->error, "found %" G_GINT64_FORMAT " chunks, wanted 1 to %d", chunks,
                    WEFT_MOST_CHUNKS);
    return blame (run);
  }
  run->a->n_chunks = (uint32_t) chunks;
  return TRUE;
}

/* Reads the lines before the steps. Sets *first to the first step. */
static gboolean
read_first_lines (struct run *run, uint32_t *first)
{
  gboolean seen[N_FIRST] = { FALSE };
  int word, value = 0;

  run->a->protocol = -1;
  for (*first = 0; *first < run->text->line->len; ++*first) {
    run->line = &g_array_index (run->text->line, struct line, *first);
    run->at = run->line->text;
    for (word = 0; word < N_FIRST && !pass (run, first_words[word]); word++)
      ;
    if (word == N_FIRST)
      break;
    if (seen[word])
      return wanted (run, "each of collective, chunks and protocol once");
    seen[word] = TRUE;
    if (word == FIRST_CHUNKS ? !read_chunks (run)
                             : !read_word (run, word == FIRST_COLLECTIVE ? weft_collective_words
                                                                         : weft_protocol_words,
                                           &value))
      return FALSE;
    if (word == FIRST_COLLECTIVE)
      run->a->collective = value;
    if (word == FIRST_PROTOCOL)
      run->a->protocol = value;
  }
  if (seen[FIRST_COLLECTIVE] && seen[FIRST_CHUNKS] && *first < run->text->line->len)
    return TRUE;
  return weft_bad_input (run->error,
                         "%s: found no line that begins with \"%s\": the first lines are "
                         "\"collective WORD\" and \"chunks NUMBER\", then steps follow",
                         run->text->name,
                         !seen[FIRST_COLLECTIVE] ? "collective"
                         : !seen[FIRST_CHUNKS]   ? "chunks"
                                                 : "send");
}

/* ------------------------------------------------------------------- files */

static void
add_line (weft_algo_text *text, char *start, uint32_t number)
{
  struct line line = { .number = number };
  char *comment = strchr (start, '#');

  if (comment)
    *comment = '\0';
  g_strchomp (start);
  while (start[line.indent] == ' ' || start[line.indent] == '\t')
    line.indent++;
  line.text = start + line.indent;
  if (*line.text)
    g_array_append_val (text->line, line);
}

static void
split_lines (weft_algo_text *text)
{
  uint32_t number = 1;

  for (char *at = text->copy, *end; at; at = end, number++) {
    end = strchr (at, '\n');
    if (end)
      *end++ = '\0';
    add_line (text, at, number);
  }
}

/* Checks the notation of the whole text, and reads the words of its first lines. */
static gboolean
check_notation (weft_algo_text *text, GError **error)
{
  weft_algo a = { .n = 1 };
  struct run run = run_new (text, &a, error);
  uint32_t first;

  run.check = TRUE;
  if (!read_first_lines (&run, &first))
    return FALSE;
  text->collective = a.collective;
  text->protocol = a.protocol;
  run.v.n = N_GIVEN;
  return run_lines (&run, first, text->line->len);
}

weft_algo_text *
weft_algo_parse (const char *source, const char *name, GError **error)
{
  g_autoptr (weft_algo_text) text = g_new0 (weft_algo_text, 1);

  text->name = g_strdup (name);
  text->copy = g_strdup (source);
  text->line = g_array_new (FALSE, FALSE, sizeof (struct line));
  split_lines (text);
  return check_notation (text, error) ? g_steal_pointer (&text) : NULL;
}

weft_algo_text *
weft_algo_load (const char *path, GError **error)
{
  gsize length;
  g_autofree char *text = weft_file_read (path, 1 << 20, &length, error);

  if (!text || !weft_file_check_text (text, length, path, error))
    return NULL;
  return weft_algo_parse (text, path, error);
}

void
weft_algo_text_free (weft_algo_text *text)
{
  g_free (text->name);
  g_free (text->copy);
  g_array_unref (text->line);
  g_free (text);
}

enum weft_collective
weft_algo_collective (const weft_algo_text *text)
{
  return text->collective;
}

static gboolean
check_counts (const weft_algo_text *text, const weft_algo *a, GError **error)
{
  gboolean owned = a->collective == WEFT_COLLECTIVE_REDUCE_SCATTER ||
                   a->collective == WEFT_COLLECTIVE_ALL_GATHER;

  if (a->n > WEFT_MOST_ALGORITHM_RANKS)
    return weft_bad_input (error, "%s: found %u ranks, wanted at most %d", text->name, a->n,
                           WEFT_MOST_ALGORITHM_RANKS);
  return !owned || a->n_chunks % a->n == 0 ||
         weft_bad_input (error,
                         "%s: found %u chunks for %u ranks, wanted equally many of each rank "
                         "in %s",
                         text->name, a->n_chunks, a->n, weft_collective_words[a->collective]);
}

gboolean
weft_algo_expand (const weft_algo_text *text, uint32_t n, weft_algo *a,
                       GError **error)
{
  uint32_t first;

  a->name = g_path_get_basename (text->name);
  a->n = n;
  a->n_channels = 1;
  struct run run = run_new (text, a, error);
  if (!read_first_lines (&run, &first) || !check_counts (text, a, error))
    return FALSE;
  run.steps = g_array_new (FALSE, FALSE, sizeof (struct weft_algo_step));
  gboolean good = TRUE;
  for (run.rank = 0; run.rank < n && good; run.rank++) {
    run.v.n = N_GIVEN;
    run.v.value[VARIABLE_CHUNKS] = a->n_chunks;
    run.v.value[VARIABLE_R] = run.rank;
    run.channel = 0;
    good = run_lines (&run, first, text->line->len);
  }
  a->n_step = run.steps->len;
  a->step = (struct weft_algo_step *) (void *) g_array_free (run.steps, FALSE);
  return good;
}
