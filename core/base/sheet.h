/* sheet.h - .ini files of measured or published numbers, whose keys are the rows of one table:
 * topologies/NAME.ini and stacks/NAME.ini.
 *
 * With `prefixed`, key `memory` of section [gpu] is field gpu_memory; otherwise the key is the name
 * of the field. Fields that are not optional must be given: missing numbers are not guessed.
 *
 * Where `has_kinds` is set, row `kind` names the kind of the file. A field that belongs to one kind
 * is not required in files of other kinds, and is refused there.
 *
 * Where `inherits` is set, key `base` of the first section names another file: all fields that a
 * file does not give, except its name, have the values of its base. */
#pragma once
#include "core/base/conf.h"

struct weft_sheet {
  const struct weft_table *table;
  const char *folder;          /* folder of bundled files, below the data folder */
  const char *const *sections; /* NULL-terminated */
  gboolean prefixed, has_kinds;
  unsigned kind;
  gboolean inherits;
  unsigned name; /* row of the file's name; used if `inherits` is set */
};

#define WEFT_SHEET_SUFFIX ".ini"

extern const struct weft_sheet weft_cluster_sheet; /* values: struct weft_cluster, .f.at */
extern const struct weft_sheet weft_stack_sheet;   /* values: union weft_stack, .at */

/* Initializers of struct weft_field for rows of a .def file.  Arguments after `doc_` initialize
 * further members, by name. */
#define WEFT_ROW_TEXT(id, def_, doc_, ...)                                                         \
  { .name = #id, .type = WEFT_TYPE_TEXT, .def = def_, .unit = "", .doc = doc_, __VA_ARGS__ },
#define WEFT_ROW_WORD(id, def_, words_, doc_, ...)                                                 \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_WORD,                                                                        \
    .def = def_,                                                                                   \
    .words = words_,                                                                               \
    .unit = "",                                                                                    \
    .doc = doc_,                                                                                   \
    __VA_ARGS__ },
#define WEFT_ROW_NUMBER(id, type_, def_, lo_, hi_, unit_, doc_, ...)                               \
  { .name = #id,                                                                                   \
    .type = type_,                                                                                 \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = unit_,                                                                                 \
    .doc = doc_,                                                                                   \
    __VA_ARGS__ },

/* Where a value comes from; NULL, NULL: the default of the table. */
struct weft_sheet_from {
  const weft_conf *conf;
  const struct weft_conf_entry *entry;
};

/* A file together with its bases. */
typedef struct weft_sheet_file {
  const struct weft_sheet *sheet;
  GPtrArray *conf;              /* weft_conf *: the file, its base, the base of that and so on */
  union weft_value *values;     /* by row of the table */
  struct weft_sheet_from *from; /* by row of the table */
} weft_sheet_file;

/* Reads a bundled name or a path.  The caller frees the result. */
weft_sheet_file *weft_sheet_file_load (const struct weft_sheet *sheet, const char *name_or_path,
                                       GError **error);
void weft_sheet_file_free (weft_sheet_file *file);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_sheet_file, weft_sheet_file_free)

/* Reads a bundled name or a path into one value for each row of the table.  A field may
 * not exceed its sibling FIELD_spec, where there is one: no software exceeds the printed peak. */
gboolean weft_sheet_load (const struct weft_sheet *sheet, const char *name_or_path,
                          union weft_value *values, GError **error);

/* Names of the bundled files, sorted, NULL-terminated. The caller frees with g_strfreev(). */
char **weft_sheet_names (const struct weft_sheet *sheet);

/* Whether files of the kind that `values` name have the field in row `row` of the table. */
gboolean weft_sheet_has (const struct weft_sheet *sheet, const union weft_value *values,
                         unsigned row);

/* weft_sheet_has(), with an error that names the kind and the field if the field is not allowed. */
gboolean weft_sheet_check_kind (const struct weft_sheet *sheet, const union weft_value *values,
                                unsigned row, GError **error);

/* The row of the field with this section and key, or -1. */
int weft_sheet_find (const struct weft_sheet *sheet, const char *section, const char *key);

/* The section and the key of the field in row `row`.  The key is the field's name, without the
 * section as prefix if the sheet is `prefixed`. */
const char *weft_sheet_section (const struct weft_sheet *sheet, unsigned row);
const char *weft_sheet_key (const struct weft_sheet *sheet, unsigned row);
