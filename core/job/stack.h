/* stack.h - a training software stack: stacks/NAME.ini, with the settings of stack.def. */
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

/* Weights of experts in fp8: (n, k), with one scale for `block` elements of a row, 0: for all. */
struct weft_stack_codes {
  uint64_t n, k, block;
};

extern const struct weft_table weft_stack_table;
gboolean weft_stack_load (const char *name_or_path, union weft_stack *stack, GError **error);

/* What kernels of a stack take, as its file says: heads of `width` and values of `value` (both in
 * elements of `bytes` each) that attention multiplies on matrix units; and experts' fp8 codes that
 * a GPU of that compute capability (times ten; 0: unknown, taken for one that can) multiplies as
 * they are. */
gboolean weft_stack_takes_heads (const union weft_stack *stack, uint64_t bytes, uint64_t width,
                                 uint64_t value);
gboolean weft_stack_takes_codes (const union weft_stack *stack, int64_t capability,
                                 const struct weft_stack_codes *codes);

/* Whether `attention_tiles` is written as stack.def says. */
gboolean weft_stack_reads_tiles (const union weft_stack *stack);
