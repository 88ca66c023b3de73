#include "planner/site.h"
#include "core/base/error.h"
#include "core/base/sheet.h"
#include "core/base/suggest.h"
#include <math.h>
#include <string.h>

static const struct weft_field fields[] = {
#define SITE_TEXT(id, def_, doc_) WEFT_ROW_TEXT (id, def_, doc_)
#define SITE_REAL(id, def_, lo_, hi_, unit_, doc_)                                                 \
  WEFT_ROW_NUMBER (id, WEFT_TYPE_REAL, def_, lo_, hi_, unit_, doc_)
#define SITE_BOOL(id, def_, doc_)                                                                  \
  { .name = #id, .type = WEFT_TYPE_BOOL, .def = def_, .unit = "", .doc = doc_ },
#include "planner/site.def"
};

const struct weft_table weft_site_table = { "site field", fields, G_N_ELEMENTS (fields) };

#define ALL "all"

/* ------------------------------------------------------------------------ checks */

static gboolean
is_file_name (const char *section)
{
  return g_str_has_suffix (section, WEFT_SHEET_SUFFIX);
}

static gboolean
check_section (const char *section, GError **error)
{
  g_auto (GStrv) names = weft_sheet_names (&weft_cluster_sheet);

  if (weft_same_name (section, ALL) || is_file_name (section))
    return TRUE;
  for (unsigned i = 0; names[i]; i++)
    if (weft_same_name (section, names[i]))
      return TRUE;
  g_autofree char *near = weft_suggest_part (section, (const char *const *) names);
  return weft_bad_input (error,
                         "unknown section [%s], wanted [all], the name of a bundled topology, or "
                         "the file name of a topology with .ini%s%s%s",
                         section, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static gboolean
check_entry (const struct weft_conf_entry *entry, GError **error)
{
  union weft_value value;
  int row = weft_table_find (&weft_site_table, entry->key);

  if (!check_section (entry->section, error))
    return FALSE;
  if (row < 0)
    return weft_table_unknown (&weft_site_table, entry->key, error);
  return weft_field_parse (&fields[row], entry->value, &value, error);
}

static weft_site *
site_of (weft_conf *conf, GError **error)
{
  if (!conf)
    return NULL;
  weft_site *site = g_new0 (weft_site, 1);
  site->conf = conf;
  for (unsigned i = 0; i < conf->n_entry; i++)
    if (!check_entry (&conf->entry[i], error)) {
      weft_conf_blame (conf, &conf->entry[i], error);
      weft_site_free (site);
      return NULL;
    }
  return site;
}

weft_site *
weft_site_load (const char *name_or_path, GError **error)
{
  g_autofree char *path = weft_data_find (WEFT_SITE_FOLDER, name_or_path, WEFT_SHEET_SUFFIX, error);

  return path ? site_of (weft_conf_load (path, error), error) : NULL;
}

weft_site *
weft_site_parse (const char *text, const char *name, GError **error)
{
  return site_of (weft_conf_parse (text, -1, name, error), error);
}

void
weft_site_free (weft_site *site)
{
  weft_conf_free (site->conf);
  g_free (site);
}

/* ------------------------------------------------------------------------ values */

static gboolean
is_of (const char *section, const char *topology)
{
  g_autofree char *file = g_path_get_basename (topology);

  return is_file_name (section) ? g_str_equal (section, file) : weft_same_name (section, topology);
}

/* Sets the fields that the sections of `topology` give; NULL: the fields of section [all]. */
static void
read_sections (const weft_site *site, const char *topology, union weft_site_fields *out)
{
  for (unsigned i = 0; i < site->conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &site->conf->entry[i];
    int row = weft_table_find (&weft_site_table, entry->key);
    if (topology ? is_of (entry->section, topology) : weft_same_name (entry->section, ALL))
      weft_field_parse (&fields[row], entry->value, &out->at[row], NULL);
  }
}

void
weft_site_of (const weft_site *site, const char *topology, union weft_site_fields *out)
{
  weft_table_defaults (&weft_site_table, out->at);
  read_sections (site, NULL, out);
  read_sections (site, topology, out);
  for (unsigned i = 0; i < WEFT_N_SITE_FIELD; i++)
    if (fields[i].type == WEFT_TYPE_REAL && out->at[i].i == WEFT_NONE)
      out->at[i].r = NAN;
}

/* The path of a topology relative to the folder of the site file, or the bundled name of the
 * topology. The caller frees the text. */
static char *
topology_path (const weft_site *site, const char *section)
{
  g_autofree char *folder = g_path_get_dirname (site->conf->name);

  return is_file_name (section) ? g_build_filename (folder, section, NULL) : g_strdup (section);
}

char **
weft_site_topologies (const weft_site *site)
{
  GPtrArray *names = g_ptr_array_new ();

  for (unsigned i = 0; i < site->conf->n_entry; i++) {
    const char *section = site->conf->entry[i].section;
    g_autofree char *path = topology_path (site, section);
    if (!weft_same_name (section, ALL) &&
        !g_ptr_array_find_with_equal_func (names, path, g_str_equal, NULL))
      g_ptr_array_add (names, g_steal_pointer (&path));
  }
  g_ptr_array_add (names, NULL);
  return (char **) g_ptr_array_free (names, FALSE);
}
