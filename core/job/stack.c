#include "core/job/stack.h"
#include "core/base/conf.h"
#include "core/base/sheet.h"

/* All but the name is optional: a file may state only what it knows better than stack.def. */
static const struct weft_field fields[] = {
#define FIELD_TEXT WEFT_ROW_TEXT
#define FIELD_INT(id, def_, lo_, hi_, doc_)                                                        \
  WEFT_ROW_NUMBER (id, WEFT_TYPE_INT, def_, lo_, hi_, "", doc_, .optional = TRUE)
#define FIELD_REAL(id, def_, lo_, hi_, unit_, doc_)                                                \
  WEFT_ROW_NUMBER (id, WEFT_TYPE_REAL, def_, lo_, hi_, unit_, doc_, .optional = TRUE)
#include "core/stack.def"
};

const struct weft_table weft_stack_table = { "stack field", fields, G_N_ELEMENTS (fields) };

static const char *const sections[] = { "stack", NULL };

const struct weft_sheet weft_stack_sheet = {
  .table = &weft_stack_table,
  .folder = "stacks",
  .sections = sections,
};

gboolean
weft_stack_load (const char *name_or_path, union weft_stack *stack, GError **error)
{
  return weft_sheet_load (&weft_stack_sheet, name_or_path, stack->at, error);
}

char **
weft_stack_names (void)
{
  return weft_data_names (weft_stack_sheet.folder, WEFT_SHEET_SUFFIX);
}
