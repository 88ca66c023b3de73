/* family.h - the table of architectures (model_families.def): the meaning of a model_type of a
 * config.json.
 *
 * model_hf.c reads files by it, unit_modules.c names classes by it, train/hugging_face.c finds the
 * names of a family's tensors by it. */
#pragma once
#include "core/job/model.h"

enum {
  WEFT_HF_ASKS_FOR_WINDOW = 1, /* sliding_window holds only where use_sliding_window is true */
  WEFT_HF_EXPERT_WIDTH = 2,    /* intermediate_size is that of an expert, and one is shared */
  WEFT_HF_QKV_BIAS = 4,        /* attention_bias is of queries, keys and values alone */
};

/* A row; what is not given is NULL.  Words of a column are separated by a space; of `fixed`, which
 * has "field=value", the later wins. */
struct weft_family {
  const char *type, *also;
  const char *fixed, *wanted;
  const char *names;
  const char *class, *layer;
  unsigned ways;
};

/* Ends with a row whose type is NULL. */
extern const struct weft_family weft_families[];

/* The family of a model that was read from a file; NULL: it has none. */
const struct weft_family *weft_family_of (const union weft_model *model);

/* The words of a column.  The caller frees them with g_strfreev. */
char **weft_family_words (const char *column);
