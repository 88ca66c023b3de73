#include "core/base/error.h"
#include "core/job/strategy.h"
#include "api/inside.h"
#include <string.h>

/* A column that is being filled: `face`, which users see, and the memory of the column. */
struct column {
  weft_column face;
  void *data;
  GPtrArray *texts;   /* for a column of texts: words in the order of their indices */
  GHashTable *number; /* for a column of texts: index of each word, plus 1 */
};

struct weft_open_table {
  size_t rows;
  GPtrArray *column; /* struct column */
};

static void
column_free (void *column)
{
  struct column *c = column;

  g_clear_pointer (&c->number, g_hash_table_unref);
  g_clear_pointer (&c->texts, g_ptr_array_unref);
  g_free (c->data);
  g_free (c);
}

weft_table *
weft_api_table_new (size_t rows)
{
  weft_table *table = g_new0 (weft_table, 1);

  table->rows = rows;
  table->column = g_ptr_array_new_with_free_func (column_free);
  return table;
}

void
weft_table_close (weft_table *table)
{
  if (!table)
    return;
  g_ptr_array_unref (table->column);
  g_free (table);
}

size_t
weft_table_rows (const weft_table *table)
{
  return table ? table->rows : 0;
}

size_t
weft_table_columns (const weft_table *table)
{
  return table ? table->column->len : 0;
}

const weft_column *
weft_table_column (const weft_table *table, size_t i)
{
  if (i >= weft_table_columns (table))
    return NULL;
  struct column *c = table->column->pdata[i];
  if (c->texts) { /* the address of the list changes when a text is added */
    c->face.words = (const char *const *) c->texts->pdata;
    c->face.n_words = c->texts->len;
  }
  return &c->face;
}

/* ------------------------------------------------------------------------ columns */

static struct column *
add (weft_table *table, const weft_column *face, size_t size)
{
  struct column *c = g_new0 (struct column, 1);

  c->face = *face;
  c->face.data = c->data = g_malloc0_n (MAX (table->rows, 1), size);
  g_ptr_array_add (table->column, c);
  return c;
}

int64_t *
weft_api_add_integers (weft_table *table, const char *name, const char *unit, const char *doc)
{
  const weft_column face = { name, unit, doc, WEFT_COLUMN_INTEGERS, NULL, NULL, 0 };

  return add (table, &face, sizeof (int64_t))->data;
}

double *
weft_api_add_reals (weft_table *table, const char *name, const char *unit, const char *doc)
{
  const weft_column face = { name, unit, doc, WEFT_COLUMN_REALS, NULL, NULL, 0 };

  return add (table, &face, sizeof (double))->data;
}

int32_t *
weft_api_add_words (weft_table *table, const char *name, const char *doc, const char *const *words)
{
  const weft_column face = {
    name, "", doc, WEFT_COLUMN_WORDS, NULL, words, g_strv_length ((char **) words)
  };

  return add (table, &face, sizeof (int32_t))->data;
}

size_t
weft_api_add_texts (weft_table *table, const char *name, const char *doc)
{
  const weft_column face = { name, "", doc, WEFT_COLUMN_WORDS, NULL, NULL, 0 };
  struct column *c = add (table, &face, sizeof (int32_t));

  c->texts = g_ptr_array_new_with_free_func (g_free);
  c->number = g_hash_table_new (g_str_hash, g_str_equal);
  memset (c->data, 0xff, table->rows * sizeof (int32_t)); /* -1: no value */
  return table->column->len - 1;
}

void
weft_api_set_text (weft_table *table, size_t column, size_t row, const char *text)
{
  struct column *c = table->column->pdata[column];
  int32_t *index = c->data;

  if (!text)
    return;
  guint known = GPOINTER_TO_UINT (g_hash_table_lookup (c->number, text));
  if (!known) {
    char *copy = g_strdup (text);
    g_ptr_array_add (c->texts, copy);
    known = c->texts->len;
    g_hash_table_insert (c->number, copy, GUINT_TO_POINTER (known));
  }
  index[row] = (int32_t) known - 1;
}

/* -------------------------------------------------------------------------- knobs */

weft_table *
weft_knob_table (void)
{
  static const char *const columns[][2] = {
    { "name", "name of the knob" },
    { "type", "type of its value" },
    { "default", "default value" },
    { "range", "allowed values" },
    { "source", "classes that have it" },
    { "affects", "what it changes" },
    { "doc", "one line" },
  };
  const struct weft_table *knobs = &weft_strategy_table;
  weft_table *table = weft_api_table_new (knobs->n);

  for (unsigned k = 0; k < G_N_ELEMENTS (columns); k++)
    weft_api_add_texts (table, columns[k][0], columns[k][1]);
  for (unsigned i = 0; i < knobs->n; i++) {
    const struct weft_field *field = &knobs->field[i];
    g_autofree char *range = weft_field_range (field);
    const char *const texts[G_N_ELEMENTS (columns)] = { field->name,   weft_type_word (field->type),
                                                        field->def,    range,
                                                        field->source, field->affects,
                                                        field->doc };
    for (unsigned k = 0; k < G_N_ELEMENTS (columns); k++)
      weft_api_set_text (table, k, i, texts[k]);
  }
  return table;
}
