/* family.h - the table of architectures (model_families.def): the meaning of a model_type of a
 * config.json.
 *
 * model_hf.c reads config files by this table, unit_modules.c finds the names of classes in it, and
 * train/hugging_face.c finds the names of tensors. */
#pragma once
#include "core/job/model.h"

enum {
  /* the config key sliding_window applies only if the key use_sliding_window is true */
  WEFT_HF_ASKS_FOR_WINDOW = 1,
  /* intermediate_size is the width of an expert; every MoE layer has one shared expert */
  WEFT_HF_EXPERT_WIDTH = 2,
  /* attention_bias adds biases to queries, keys and values, but not to the output projection */
  WEFT_HF_QKV_BIAS = 4,
};

/* A row of model_families.def, which explains the columns. A column that is not given is NULL.
 * Words of a column are separated by a space. The words of `fixed` are "field=value"; if two words
 * set the same field, the later word applies. */
struct weft_family {
  const char *type, *also;
  const char *fixed, *wanted;
  const char *names;
  const char *class, *layer;
  unsigned ways;
};

/* All families, in the order of model_families.def; the type of the last row is NULL. */
extern const struct weft_family weft_families[];

/* The family of a model that was read from a config.json; NULL for other models. */
const struct weft_family *weft_family_of (const union weft_model *model);

/* The words in a column of the table. The caller frees them with g_strfreev(). */
char **weft_family_words (const char *column);
