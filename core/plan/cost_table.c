#include "core/plan/cost_table.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/suggest.h"
#include <math.h>
#include <string.h>

#define MOST_BYTES (16 << 20)
/* largest valid time of an op; the limit keeps the extrapolation to larger shapes finite */
#define MOST_SECONDS 1e9

struct weft_cost_table {
  GArray *row; /* array of struct weft_measurement */
  gboolean launched[WEFT_N_HOST_COST];
  double launch[WEFT_N_HOST_COST];
};

static const char *const launch_words[] = { WEFT_HOST_COST_LIST (WEFT_WORD_TEXT) NULL };

/* ---------------------------------------------------------------------- text */

static gboolean
read_word (const char *word, const char *const *words, const char *what, int *out, GError **error)
{
  for (int i = 0; words[i]; i++)
    if (strcmp (words[i], word) == 0) {
      *out = i;
      return TRUE;
    }
  const char *near = weft_suggest_strv (word, words);
  return weft_bad_input (error, "found \"%s\", wanted %s%s%s%s", word, what,
                         near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static gboolean
read_dims (const char *text, struct weft_shape *shape, GError **error)
{
  g_auto (GStrv) part = g_strsplit (text, "x", -1);
  guint n = g_strv_length (part);

  if (n > G_N_ELEMENTS (shape->dim))
    return weft_bad_input (error, "found %u dimensions, wanted at most %u", n,
                           (unsigned) G_N_ELEMENTS (shape->dim));
  for (guint i = 0; i < n; i++)
    if (!g_ascii_string_to_unsigned (part[i], 10, 0, (guint64) 1 << 60, &shape->dim[i], error)) {
      g_clear_error (error);
      return weft_bad_input (error, "found dimensions \"%s\", wanted numbers like 128x64", text);
    }
  return TRUE;
}

static gboolean
read_seconds (const char *text, double *seconds, GError **error)
{
  char *end;

  *seconds = g_ascii_strtod (text, &end);
  if (*end || end == text || !(*seconds >= 0 && *seconds <= MOST_SECONDS))
    return weft_bad_input (error, "found \"%s\", wanted seconds", text);
  return TRUE;
}

static gboolean
read_row (char *const *word, struct weft_measurement *m, GError **error)
{
  int kind = 0, dtype = 0, out = 0;
  guint64 ranks;

  *m = (struct weft_measurement){ 0 };
  if (!read_word (word[0], weft_op_words, "an op", &kind, error) ||
      !read_word (word[1], weft_dtype_words, "a type", &dtype, error) ||
      !read_word (word[2], weft_dtype_words, "a type", &out, error))
    return FALSE;
  if (!g_ascii_string_to_unsigned (word[3], 10, 1, 1 << 24, &ranks, NULL))
    return weft_bad_input (error, "found \"%s\", wanted a number of ranks", word[3]);
  m->kind = kind;
  m->ranks = ranks;
  m->shape.dtype = dtype;
  m->shape.out_dtype = out;
  return read_dims (word[4], &m->shape, error) && read_seconds (word[5], &m->seconds, error);
}

static gboolean
read_launch (weft_cost_table *table, char *const *word, GError **error)
{
  int what = 0;

  if (!read_word (word[0], launch_words, "what a host issues", &what, error))
    return FALSE;
  table->launched[what] = TRUE;
  return read_seconds (word[1], &table->launch[what], error);
}

static gboolean
read_line (weft_cost_table *table, char *line, GError **error)
{
  line[strcspn (line, "#")] = '\0';
  g_auto (GStrv) split = g_strsplit_set (g_strstrip (line), " \t", -1);
  g_autoptr (GPtrArray) word = g_ptr_array_new ();
  struct weft_measurement m;

  for (char **at = split; *at; at++)
    if (**at)
      g_ptr_array_add (word, *at);
  if (word->len == 0)
    return TRUE;
  if (word->len == 2)
    return read_launch (table, (char *const *) word->pdata, error);
  if (word->len != 6)
    return weft_bad_input (error, "found %u words, wanted OP TYPE RESULT RANKS DIMENSIONS SECONDS",
                           word->len);
  if (!read_row ((char *const *) word->pdata, &m, error))
    return FALSE;
  g_array_append_val (table->row, m);
  return TRUE;
}

weft_cost_table *
weft_cost_table_parse (const char *text, gssize length, const char *name, GError **error)
{
  g_autoptr (weft_cost_table) table = g_new0 (weft_cost_table, 1);
  /* The table must be valid UTF-8, because messages quote it. */
  g_autofree char *copy = g_utf8_make_valid (text, length);

  table->row = g_array_new (FALSE, FALSE, sizeof (struct weft_measurement));
  g_auto (GStrv) line = g_strsplit (copy, "\n", -1);
  for (guint i = 0; line[i]; i++)
    if (!read_line (table, line[i], error)) {
      g_prefix_error (error, "%s:%u: ", name, i + 1);
      return NULL;
    }
  return g_steal_pointer (&table);
}

weft_cost_table *
weft_cost_table_load (const char *path, GError **error)
{
  gsize length;
  g_autofree char *text = weft_file_read (path, MOST_BYTES, &length, error);

  if (text)
    return weft_cost_table_parse (text, (gssize) length, path, error);
  g_prefix_error (error, "cost_table: ");
  return NULL;
}

void
weft_cost_table_free (weft_cost_table *table)
{
  g_array_unref (table->row);
  g_free (table);
}

double
weft_cost_table_launch (const weft_cost_table *table, enum weft_host_cost what, double otherwise)
{
  return table && table->launched[what] ? table->launch[what] : otherwise;
}

void
weft_cost_table_print_launches (GString *text, const double *seconds)
{
  for (int i = 0; i < WEFT_N_HOST_COST; i++)
    g_string_append_printf (text, "%s %.6g\n", launch_words[i], seconds[i]);
}

void
weft_cost_table_print (GString *text, const struct weft_measurement *m)
{
  uint32_t n = G_N_ELEMENTS (m->shape.dim);

  while (n > 1 && m->shape.dim[n - 1] == 0)
    n--;
  g_string_append_printf (text, "%s %s %s %u ", weft_op_words[m->kind],
                          weft_dtype_words[m->shape.dtype], weft_dtype_words[m->shape.out_dtype],
                          m->ranks);
  for (uint32_t i = 0; i < n; i++)
    g_string_append_printf (text, "%s%" G_GUINT64_FORMAT, i ? "x" : "", m->shape.dim[i]);
  g_string_append_printf (text, " %.6g\n", m->seconds);
}

/* -------------------------------------------------------------------- lookup */

static const struct weft_measurement *
row_at (const weft_cost_table *table, guint i)
{
  return &g_array_index (table->row, struct weft_measurement, i);
}

static gboolean
same_types (const struct weft_measurement *m, enum weft_op_kind kind,
            const struct weft_shape *shape)
{
  return m->kind == kind && m->shape.dtype == shape->dtype &&
         m->shape.out_dtype == shape->out_dtype;
}

/* The number of ranks, of those with which the op was measured, that is nearest to `ranks`; 0 if
 * the op was not measured. */
static uint32_t
nearest_ranks (const weft_cost_table *table, enum weft_op_kind kind, const struct weft_shape *shape,
               uint32_t ranks)
{
  uint32_t best = 0;

  for (guint i = 0; i < table->row->len; i++) {
    const struct weft_measurement *m = row_at (table, i);
    if (same_types (m, kind, shape) &&
        (best == 0 || fabs (log ((double) m->ranks / ranks)) < fabs (log ((double) best / ranks))))
      best = m->ranks;
  }
  return best;
}

double
weft_cost_table_seconds (const weft_cost_table *table, enum weft_op_kind kind,
                         const struct weft_shape *shape, uint32_t ranks, weft_cost_formula formula,
                         const void *user)
{
  uint32_t measured = nearest_ranks (table, kind, shape, ranks);
  double here = formula (user, kind, shape, ranks), nearest = INFINITY, seconds = -1;

  for (guint i = 0; measured && i < table->row->len; i++) {
    const struct weft_measurement *m = row_at (table, i);
    if (!same_types (m, kind, shape) || m->ranks != measured)
      continue;
    if (memcmp (m->shape.dim, shape->dim, sizeof shape->dim) == 0)
      return m->seconds;
    double there = formula (user, kind, &m->shape, ranks);
    double far = here > 0 && there > 0 ? fabs (log (here / there)) : 1e300;
    if (far < nearest) {
      nearest = far;
      seconds = there > 0 ? m->seconds * here / there : m->seconds;
    }
  }
  return seconds;
}
