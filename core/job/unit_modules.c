#include "core/job/unit_modules.h"
#include "core/job/family.h"
#include "core/base/suggest.h"
#include <string.h>

static const struct unit {
  const char *word, *class;
} units[WEFT_N_UNIT] = {
#define WEFT_UNIT_ROW(id, word, class, doc) [id] = { word, class },
  WEFT_UNIT_LIST (WEFT_UNIT_ROW)
#undef WEFT_UNIT_ROW
};

/* The transformers class of a part of a layer (models/FAMILY/modeling_FAMILY.py), or NULL if there
 * is none. The caller frees the text. */
static char *
path_of (const struct weft_family *family, enum weft_unit unit)
{
  const char *part[WEFT_N_UNIT] = { [WEFT_UNIT_ATTENTION] = "Attention", [WEFT_UNIT_MLP] = "MLP" };

  if (!family || !family->class)
    return NULL;
  part[WEFT_UNIT_LAYER] = family->layer ? family->layer : "DecoderLayer";
  return part[unit] ? g_strdup_printf ("transformers.models.%s.modeling_%s.%s%s", family->type,
                                       family->type, family->class, part[unit])
                    : NULL;
}

static gboolean
is_class (const char *name, const char *path)
{
  const char *last = path ? strrchr (path, '.') : NULL;
  return last && (g_str_equal (name, path) || g_str_equal (name, last + 1));
}

static int
find (const char *name, const union weft_model *model)
{
  for (int unit = 0; unit < WEFT_N_UNIT; unit++) {
    g_autofree char *path = path_of (weft_family_of (model), unit);
    if (g_str_equal (name, units[unit].word) || is_class (name, units[unit].class) ||
        is_class (name, path))
      return unit;
  }
  return g_str_equal (name, "transformer_layer") ? WEFT_UNIT_LAYER : -1;
}

uint32_t
weft_unit_modules (const char *text, const union weft_model *model, char **unknown)
{
  g_auto (GStrv) name = g_strsplit_set (text ? text : "", ", ", -1);
  uint32_t set = 0;

  for (uint32_t i = 0; name[i]; i++) {
    if (!*name[i] || g_str_equal (name[i], "none"))
      continue;
    int unit = find (name[i], model);
    if (unit >= 0)
      set |= 1u << unit;
    else if (unknown && !*unknown)
      *unknown = g_strdup (name[i]);
  }
  return set;
}

char *
weft_unit_modules_problem (const char *name, const union weft_model *model)
{
  g_autoptr (GPtrArray) known = g_ptr_array_new_with_free_func (g_free);
  const struct weft_family *family = weft_family_of (model);

  for (int unit = 0; unit < WEFT_N_UNIT; unit++) {
    g_ptr_array_add (known, g_strdup (units[unit].word));
    char *path = path_of (family, unit);
    if (path)
      g_ptr_array_add (known, path);
  }
  g_ptr_array_add (known, NULL);
  char **names = (char **) known->pdata;
  const char *near = weft_suggest_strv (name, (const char *const *) names);
  g_autofree char *list = g_strjoinv (", ", names);
  return g_strdup_printf ("found %s%s%s%s; this model has %s", name, near ? ", did you mean " : "",
                          near ? near : "", near ? "?" : "", list);
}
