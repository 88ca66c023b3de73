#include "core/job/family.h"

const struct weft_family weft_families[] = {
#define FAMILY(...) { __VA_ARGS__ },
#include "core/model_families.def"
#undef FAMILY
  { .type = NULL },
};

const struct weft_family *
weft_family_of (const union weft_model *model)
{
  const char *name = g_quark_to_string ((GQuark) model->family);

  for (const struct weft_family *f = weft_families; f->type && name; f++)
    if (g_str_equal (f->type, name))
      return f;
  return NULL;
}

char **
weft_family_words (const char *column)
{
  return g_strsplit (column ? column : "", " ", -1);
}
