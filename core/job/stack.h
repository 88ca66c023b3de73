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

/* Values of fp8_weight_lifetime. */
enum weft_fp8_lifetime {
  WEFT_FP8_FOR_OP,
  WEFT_FP8_FOR_MICROBATCH,
  WEFT_FP8_FOR_STEP,
  WEFT_FP8_ALWAYS /* software has no 16-bit weights: their bytes stand for codes of both
                   * orientations */
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

/* Shape of expert weights that are stored in fp8, a matrix (n, k). `block`: number of elements of a
 * row that share a scale; 0: one scale for the whole matrix. */
struct weft_stack_codes {
  uint64_t n, k, block;
};

extern const struct weft_table weft_stack_table;

/* Loads the stack in stacks/NAME.ini, or in a file given by its path. */
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
