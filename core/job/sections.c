/* Sections of a job, and the settings that flags name. */
#include "core/job/sections.h"
#include "core/base/suggest.h"

static const struct weft_field train_fields[] = {
#define FIELD_TEXT(id, def_, doc_)                                                                 \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_TEXT,                                                                        \
    .def = def_,                                                                                   \
    .unit = "",                                                                                    \
    .source = "Weft",                                                                              \
    .affects = "program memory",                                                                   \
    .aliases = "",                                                                                 \
    .doc = doc_ },
#define FIELD_INT(id, def_, lo_, hi_, doc_)                                                        \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_INT,                                                                         \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = "",                                                                                    \
    .source = "Weft",                                                                              \
    .affects = "program memory",                                                                   \
    .aliases = "",                                                                                 \
    .doc = doc_ },
#define FIELD_WORD(id, def_, words_, doc_)                                                         \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_WORD,                                                                        \
    .def = def_,                                                                                   \
    .unit = "",                                                                                    \
    .words = words_,                                                                               \
    .source = "Weft",                                                                              \
    .affects = "program memory cost",                                                              \
    .aliases = "",                                                                                 \
    .doc = doc_ },
#define FIELD_BOOL(id, def_, doc_)                                                                 \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_BOOL,                                                                        \
    .def = def_,                                                                                   \
    .unit = "",                                                                                    \
    .source = "Weft",                                                                              \
    .affects = "program",                                                                          \
    .aliases = "",                                                                                 \
    .doc = doc_ },
#define FIELD_REAL(id, def_, lo_, hi_, unit_, doc_)                                                \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_REAL,                                                                        \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = unit_,                                                                                 \
    .source = "Weft",                                                                              \
    .affects = "program",                                                                          \
    .aliases = "",                                                                                 \
    .doc = doc_ },
#include "core/train.def"
};

const struct weft_table weft_train_table = { "training field", train_fields, WEFT_N_TRAIN_FIELD };

const struct weft_section weft_sections[WEFT_N_SECTION] = {
  { "model", &weft_model_table, offsetof (struct weft_job, model) },
  { "cluster", &weft_cluster_table, offsetof (struct weft_job, cluster.f) },
  { "train", &weft_train_table, offsetof (struct weft_job, train) },
  { "stack", &weft_stack_table, offsetof (struct weft_job, stack) },
  { "strategy", &weft_strategy_table, offsetof (struct weft_job, strategy) },
};

const struct weft_part_key weft_part_keys[WEFT_N_PART_KEY] = {
  { "model", "config", "model" },  { "cluster", "topology", "topology" },
  { "cluster", "nodes", "nodes" }, { "cluster", "gpus", "gpus" },
  { "stack", "name", "stack" },    { "strategy", WEFT_LAYERS_PER_CHUNK, WEFT_LAYERS_PER_CHUNK },
};

const struct weft_section *
weft_section_find (const char *name)
{
  for (size_t i = 0; i < WEFT_N_SECTION; i++)
    if (weft_same_name (weft_sections[i].name, name))
      return &weft_sections[i];
  return NULL;
}

const struct weft_part_key *
weft_part_key_find (const char *section, const char *key)
{
  for (size_t i = 0; i < WEFT_N_PART_KEY; i++)
    if (weft_same_name (weft_part_keys[i].section, section) &&
        weft_same_name (weft_part_keys[i].key, key))
      return &weft_part_keys[i];
  return NULL;
}

union weft_value *
weft_section_values (struct weft_job *job, const struct weft_section *section)
{
  return (union weft_value *) (void *) ((char *) job + section->values);
}

gboolean
weft_job_flag (const char *flag, const char **section, const char **key, gboolean *boolean)
{
  *boolean = FALSE;
  for (size_t i = 0; i < WEFT_N_PART_KEY; i++)
    if (weft_same_name (weft_part_keys[i].flag, flag) ||
        (i == 0 && weft_same_name (weft_part_keys[i].key, flag))) {
      *section = weft_part_keys[i].section;
      *key = weft_part_keys[i].key;
      return TRUE;
    }
  for (size_t i = 0; i < WEFT_N_SECTION; i++) {
    int row = weft_table_find (weft_sections[i].table, flag);
    if (row < 0 || weft_sections[i].table->field[row].type == WEFT_TYPE_METHOD)
      continue;
    *section = weft_sections[i].name;
    *key = weft_sections[i].table->field[row].name;
    *boolean = weft_sections[i].table->field[row].type == WEFT_TYPE_BOOL;
    return TRUE;
  }
  return FALSE;
}
