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
  const char *folder;          /* name of the folder of bundled files, inside the data folder */
  const char *const *sections; /* NULL-terminated */
  gboolean prefixed, has_kinds;
  unsigned kind;
  gboolean inherits;
  /* row of the field that holds the name of a sheet file; read only if `inherits` is set */
  unsigned name;
};

#define WEFT_SHEET_SUFFIX ".ini"

/* its values are the field f.at of struct weft_cluster */
extern const struct weft_sheet weft_cluster_sheet;
/* its values are the field `at` of union weft_stack */
extern const struct weft_sheet weft_stack_sheet;

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

/* The file and the entry that a value comes from; both NULL if the value is the default of the
 * table. */
struct weft_sheet_from {
  const weft_conf *conf;
  const struct weft_conf_entry *entry;
};

/* A sheet file together with the files that it inherits from (its bases). */
typedef struct weft_sheet_file {
  const struct weft_sheet *sheet;
  /* array of weft_conf *: the file, then the file that it inherits from, and so on */
  GPtrArray *conf;
  union weft_value *values;     /* value of each field, by row of sheet->table */
  /* indexed by row of sheet->table: the file and line that the value comes from */
  struct weft_sheet_from *from;
} weft_sheet_file;

/* Reads a sheet file, given by its bundled name or its path. The caller frees the result. NULL with
 * an error on failure. */
weft_sheet_file *weft_sheet_file_load (const struct weft_sheet *sheet, const char *name_or_path,
                                       GError **error);
void weft_sheet_file_free (weft_sheet_file *file);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_sheet_file, weft_sheet_file_free)

/* Reads a sheet file, given by its bundled name or its path, and stores one value for each row of
 * the table. A value larger than that of the field FIELD_spec, if this field exists, is an error:
 * no software exceeds the rate that the vendor prints. */
gboolean weft_sheet_load (const struct weft_sheet *sheet, const char *name_or_path,
                          union weft_value *values, GError **error);

/* Names of the bundled files, sorted, NULL-terminated. The caller frees with g_strfreev(). */
char **weft_sheet_names (const struct weft_sheet *sheet);

/* Whether a sheet file may set the field in row `row` of the table. Some fields exist only in files
 * of some kinds; `values` contains the kind of this file. */
gboolean weft_sheet_has (const struct weft_sheet *sheet, const union weft_value *values,
                         unsigned row);

/* Like weft_sheet_has(), but sets an error if the field is not allowed. The error names the kind of
 * the file and the field. */
gboolean weft_sheet_check_kind (const struct weft_sheet *sheet, const union weft_value *values,
                                unsigned row, GError **error);

/* The row of the field with this section and key; -1 if no field matches. */
int weft_sheet_find (const struct weft_sheet *sheet, const char *section, const char *key);

/* The section of the file, and the key in this section, of the field in row `row`. The key is the
 * name of the field; if sheet->prefixed is set, the key lacks the section at its begin. */
const char *weft_sheet_section (const struct weft_sheet *sheet, unsigned row);
const char *weft_sheet_key (const struct weft_sheet *sheet, unsigned row);
