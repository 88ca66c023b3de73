/* stack.h - a training software stack, such as Megatron-LM, as a file stacks/NAME.ini with the
 * settings of stack.def. */
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

/* Expert weights in fp8, a matrix (n, k). `block`: elements of a row with one scale; 0: one scale
 * for the whole matrix. */
struct weft_stack_codes {
  uint64_t n, k, block;
};

extern const struct weft_table weft_stack_table;

/* Loads stacks/NAME.ini or a path. */
gboolean weft_stack_load (const char *name_or_path, union weft_stack *stack, GError **error);

/* Whether the attention kernels of a stack use matrix units (tensor cores) for query and key heads
 * of `width` elements and value heads of `value` elements, with `bytes` per element. */
gboolean weft_stack_takes_heads (const union weft_stack *stack, uint64_t bytes, uint64_t width,
                                 uint64_t value);

/* Whether a GPU of this compute capability (times ten; 0: unknown) multiplies fp8 expert weights
 * directly. FALSE: the weights are converted to 16 bits before the product. Unknown GPUs count as
 * able. */
gboolean weft_stack_takes_codes (const union weft_stack *stack, int64_t capability,
                                 const struct weft_stack_codes *codes);

/* Whether a list of words in a stack contains `word`. A list is "any", which contains every word,
 * or words separated by spaces. */
gboolean weft_stack_lists (int64_t list, const char *word);

/* Whether every list of words in the stack contains only known words. */
gboolean weft_stack_reads_lists (const union weft_stack *stack);

/* Whether `attention_tiles` has the syntax that stack.def describes. */
gboolean weft_stack_reads_tiles (const union weft_stack *stack);
