/* kernel_case.h - calls of ops with random shapes and operands, for tests of kernels: the same call
 * as doubles, for the fp64 reference, and as an executor stores it.  Shapes and operands are those
 * that core/program/op.h lists. */
#pragma once
#include "kernels/kernel.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* CMocka wants those before itself. */

#include <cmocka.h>

#define KERNEL_CASE_SEQUENCES 9 /* of a batch, at most */

/* Ops whose shapes are not drawn here but by tests of their own, beside those of experts:
 * test_fp8.c, test_fp8_kernels.c, test_fp8_experts.c, test_context.c, test_unfused_attention.c,
 * test_tensor_kernels.c, test_latent.c. */
#define KERNEL_CASE_NOT_DRAWN                                                                      \
  "matmul_fp8 matmul_dgrad_fp8 fp8_matmul fp8_matmul_dgrad fp8_matmul_wgrad quantise "             \
  "quantise_delayed quantise_blocks transpose attention_part "                                     \
  "attention_part_bwd attention_merge take_kv put_kv split_sequence join_sequence split_heads "    \
  "join_heads keep_piece scores softmax context context_bwd softmax_bwd scores_bwd dropout "       \
  "dropout_add dropout_bwd bias add_positions norm_dgrad norm_wgrad head_norm_dgrad "              \
  "head_norm_wgrad settle join_columns xent_max xent_part xent_end latent_split latent_split_bwd " \
  "latent_join latent_join_bwd take_part take_heads put_heads"

enum { KERNEL_READS = 1, KERNEL_WRITES = 2, KERNEL_MAY_BE_ABSENT = 4 };

struct kernel_argument {
  char name[16];
  unsigned flags;
};

/* One call of an op, with all operands as doubles: what their stored type can hold. */
struct kernel_case {
  struct weft_kernel k;
  union weft_model model;
  struct weft_control control;
  struct kernel_argument argument[WEFT_MOST_OPERANDS];
  uint32_t n;
  uint64_t sequences;
  gboolean
      rounds_inside; /* what gelu is of is rounded to the op's type; probabilities, and gradients of
                             scores, before the next product, as tensor cores take them */
};

/* Whether `names`, words with a blank between them, has the name. */
gboolean kernel_case_is_one_of (const char *name, const char *names);

/* Sums over tokens, which accumulate or do not. */
gboolean kernel_case_is_gradient (const char *name);

/* "dy:r x:r dw:rw db:rw?" of an op: how many. */
uint32_t kernel_case_arguments (enum weft_op_kind kind, struct kernel_argument *argument);

/* A random call; kernel_case_clear() frees its operands. */
void kernel_case_make (GRand *rand, struct kernel_case *made, enum weft_op_kind kind);
void kernel_case_clear (struct kernel_case *made);

/* One operand of it again, whose shape has changed; random values for one. */
void kernel_case_make_operand (GRand *rand, struct kernel_case *made, uint32_t o);
void kernel_case_fill (GRand *rand, struct kernel_case *made, uint32_t o);

/* What forward left for backward is made to fit its input. */
void kernel_case_fit (struct kernel_case *made);

/* The same call in memory of its own, which kernel_case_free_memory() frees: as an executor stores
 * it, NaN where it is only written; and as doubles. */
struct weft_kernel kernel_case_as_stored (const struct kernel_case *made);
struct weft_kernel kernel_case_as_doubles (const struct kernel_case *made);
void kernel_case_free_memory (const struct kernel_case *made, struct weft_kernel *k);

/* Fails where an operand is further from the reference's than rounding explains. */
void kernel_case_compare (const struct kernel_case *made, uint32_t o,
                          const struct weft_kernel *found, const struct weft_kernel *wanted);
