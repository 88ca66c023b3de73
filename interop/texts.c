#include "interop/texts.h"

static const struct part {
  const char *section;
  const struct weft_table *table;
  size_t values; /* position of the values in struct weft_job */
} parts[] = {
  { "model", &weft_model_table, offsetof (struct weft_job, model) },
  { "train", &weft_train_table, offsetof (struct weft_job, train) },
  { "strategy", &weft_strategy_table, offsetof (struct weft_job, strategy) },
};

static const union weft_value *
values_of (const struct weft_job *job, const struct part *part)
{
  return (const union weft_value *) (const void *) ((const char *) job + part->values);
}

unsigned
weft_texts_count (void)
{
  unsigned n = 0;

  for (unsigned p = 0; p < G_N_ELEMENTS (parts); p++)
    n += parts[p].table->n;
  return n;
}

const struct weft_field *
weft_texts_field (unsigned i, const char **section)
{
  unsigned p = 0;

  while (i >= parts[p].table->n)
    i -= parts[p++].table->n;
  if (section)
    *section = parts[p].section;
  return &parts[p].table->field[i];
}

int
weft_texts_find (const char *name)
{
  int before = 0;

  for (unsigned p = 0; p < G_N_ELEMENTS (parts); p++) {
    int row = weft_table_find (parts[p].table, name);
    if (row >= 0)
      return parts[p].table->field[row].type == WEFT_TYPE_METHOD ? -1 : before + row;
    before += (int) parts[p].table->n;
  }
  return -1;
}

/* Appends the texts of one section. */
static void
append_texts (GPtrArray *texts, const struct weft_table *table, const union weft_value *value)
{
  for (unsigned i = 0; i < table->n; i++)
    g_ptr_array_add (texts, table->field[i].type == WEFT_TYPE_METHOD
                                ? g_strdup ("")
                                : weft_field_print (&table->field[i], value[i]));
}

char **
weft_texts_of (const struct weft_job *job)
{
  GPtrArray *texts = g_ptr_array_new ();

  for (unsigned p = 0; p < G_N_ELEMENTS (parts); p++)
    append_texts (texts, parts[p].table, values_of (job, &parts[p]));
  g_ptr_array_add (texts, NULL);
  return (char **) g_ptr_array_free (texts, FALSE);
}

char **
weft_texts_defaults (void)
{
  static struct weft_job job; /* large */
  static gsize ready;

  if (g_once_init_enter (&ready)) {
    for (unsigned p = 0; p < G_N_ELEMENTS (parts); p++)
      weft_table_defaults (parts[p].table,
                           (union weft_value *) (void *) ((char *) &job + parts[p].values));
    g_once_init_leave (&ready, 1);
  }
  return weft_texts_of (&job);
}

char *
weft_texts_print (unsigned i, const char *text)
{
  const struct weft_field *field = weft_texts_field (i, NULL);
  union weft_value value;

  return weft_field_parse (field, text, &value, NULL) ? weft_field_print (field, value) : NULL;
}

char *
weft_texts_int (gint64 value)
{
  return g_strdup_printf ("%" G_GINT64_FORMAT, value);
}

char *
weft_texts_positive (gint64 value)
{
  return value > 0 ? weft_texts_int (value) : NULL;
}
