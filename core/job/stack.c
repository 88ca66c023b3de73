#include "core/job/stack.h"
#include "core/base/conf.h"
#include "core/base/sheet.h"

static const struct weft_field fields[] = {
#define FIELD_TEXT WEFT_ROW_TEXT
#define FIELD_INT WEFT_ROW_INT
#define FIELD_REAL WEFT_ROW_REAL
#include "core/stack.def"
};

const struct weft_table weft_stack_table = { "stack field", fields, G_N_ELEMENTS (fields) };

static const char *const sections[] = { "stack", NULL };

/* All but the name: a file may state only what it knows better than stack.def. */
static const unsigned optional[] = {
#define FIELD_TEXT(id, ...)
#define FIELD_INT(id, ...) WEFT_STACK_##id,
#define FIELD_REAL(id, ...) WEFT_STACK_##id,
#include "core/stack.def"
};

const struct weft_sheet weft_stack_sheet = {
  .table = &weft_stack_table,
  .folder = "stacks",
  .sections = sections,
  .optional = optional,
  .n_optional = G_N_ELEMENTS (optional),
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
