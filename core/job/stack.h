/* stack.h - what a training software stack does with a strategy: stacks/NAME.ini, whose rows stand
 * in stack.def. */
#pragma once
#include "core/base/field.h"

enum weft_stack_field {
#define FIELD_TEXT(name, ...) WEFT_STACK_##name,
#define FIELD_INT(name, ...) WEFT_STACK_##name,
#define FIELD_REAL(name, ...) WEFT_STACK_##name,
#include "core/stack.def"
  WEFT_N_STACK_FIELD
};

union weft_stack {
  struct {
#define FIELD_TEXT(name, ...) int64_t name;
#define FIELD_INT(name, ...) int64_t name;
#define FIELD_REAL(name, ...) double name;
#include "core/stack.def"
  };
  union weft_value at[WEFT_N_STACK_FIELD];
};

extern const struct weft_table weft_stack_table;
gboolean weft_stack_load (const char *name_or_path, union weft_stack *stack, GError **error);
char **weft_stack_names (void);
