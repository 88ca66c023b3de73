/* family.h - the table of architectures (model_families.def): the meaning of a model_type of a
 * config.json.
 *
 * model_hf.c uses the table to read files, unit_modules.c to name classes, and train/hugging_face.c
 * to find the names of tensors. */
#pragma once
#include "core/job/model.h"

enum {
  WEFT_HF_ASKS_FOR_WINDOW = 1, /* sliding_window applies only if use_sliding_window is true */
  WEFT_HF_EXPERT_WIDTH = 2,    /* intermediate_size is the width of an expert; one expert is
                                  shared */
  WEFT_HF_QKV_BIAS = 4,        /* attention_bias adds biases to queries, keys and values only */
};

/* A row; model_families.def explains the columns.  A column that is not given is NULL.  Words of a
 * column are separated by a space.  The words of `fixed` are "field=value"; later words
 * override. */
struct weft_family {
  const char *type, *also;
  const char *fixed, *wanted;
  const char *names;
  const char *class, *layer;
  unsigned ways;
};

/* All families; the type of the last row is NULL. */
extern const struct weft_family weft_families[];

/* The family of a model that was read from a config.json; NULL for other models. */
const struct weft_family *weft_family_of (const union weft_model *model);

/* The words of a column.  The caller frees them with g_strfreev. */
char **weft_family_words (const char *column);
