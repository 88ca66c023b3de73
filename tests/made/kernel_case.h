/* kernel_case.h - kernel calls with random shapes and operands. Each call exists twice: with
 * doubles for the fp64 reference, and with the types that an executor stores. core/ops.def states
 * the shapes and operands of ops. */
#pragma once
#include "kernels/kernel.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* CMocka requires these headers before its own. */

#include <cmocka.h>

#define KERNEL_CASE_SEQUENCES 9 /* largest number of sequences in a random call */

/* Ops whose shapes other tests draw: MoE ops, and those of test_fp8.c, test_fp8_kernels.c,
 * test_fp8_experts.c, test_context.c, test_unfused_attention.c, test_tensor_kernels.c,
 * test_latent.c, test_optimizer_kernels.c. */
#define KERNEL_CASE_NOT_DRAWN                                                                      \
  "matmul_fp8 matmul_dgrad_fp8 fp8_matmul fp8_matmul_dgrad fp8_matmul_wgrad quantise "             \
  "quantise_delayed quantise_blocks transpose attention_part "                                     \
  "attention_part_bwd attention_merge take_kv put_kv split_sequence join_sequence split_heads "    \
  "join_heads keep_piece scores softmax context context_bwd softmax_bwd scores_bwd dropout "       \
  "dropout_add bias_dropout_add dropout_bwd bias add_positions norm_dgrad norm_wgrad "             \
  "head_norm_dgrad head_norm_wgrad settle join_columns xent_max xent_part xent_end "               \
  "latent_split latent_split_bwd latent_join latent_join_bwd take_part take_heads put_heads "      \
  "adam_8bit muon_momentum muon_take muon_normalise newton_schulz muon_update"

enum { KERNEL_READS = 1, KERNEL_WRITES = 2, KERNEL_MAY_BE_ABSENT = 4 };

struct kernel_argument {
  char name[16];
  unsigned flags;
};

/* One call of an op. Its operands are doubles that the type `dtype` can represent. */
struct kernel_case {
  struct weft_kernel k;
  union weft_model model;
  struct weft_control control;
  struct kernel_argument argument[WEFT_MOST_OPERANDS];
  uint32_t n;
  uint64_t sequences;
  gboolean
      /* Whether the op rounds an intermediate result to its own type: the input of GELU, an
       * embedding before it is scaled, or, on tensor cores, probabilities and score gradients
       * before the next matmul. */
      rounds_inside;
};

/* Whether `name` is one of `names`, separated by blanks. */
gboolean kernel_case_is_one_of (const char *name, const char *names);

/* Whether the operand with this name is a sum over tokens: its op may add to the operand or
 * overwrite it. */
gboolean kernel_case_is_gradient (const char *name);

/* Parses the operands of an op, for example "dy:r x:r dw:rw db:rw?". Returns their number. */
uint32_t kernel_case_arguments (enum weft_op_kind kind, struct kernel_argument *argument);

/* Draws a random call of an op. kernel_case_clear() frees its operands. */
void kernel_case_make (GRand *rand, struct kernel_case *made, enum weft_op_kind kind);
void kernel_case_clear (struct kernel_case *made);

/* Allocates and fills operand `o` again after a test has changed the shape. The memory of the old
 * operand is not freed. */
void kernel_case_make_operand (GRand *rand, struct kernel_case *made, uint32_t o);

/* Fills operand `o` with random values. */
void kernel_case_fill (GRand *rand, struct kernel_case *made, uint32_t o);

/* For a backward op, computes the operands that its forward op saves, so that they agree with the
 * inputs. */
void kernel_case_fit (struct kernel_case *made);

/* Returns a copy of the call with operands in their stored types. Operands that are only written
 * contain NaN. kernel_case_free_memory() frees the operands. */
struct weft_kernel kernel_case_as_stored (const struct kernel_case *made);

/* Returns a copy of the call with operands as doubles, for the fp64 reference.
 * kernel_case_free_memory() frees the operands. */
struct weft_kernel kernel_case_as_doubles (const struct kernel_case *made);

/* Frees the operands of `k`, which is a copy that the functions above have returned. */
void kernel_case_free_memory (const struct kernel_case *made, struct weft_kernel *k);

/* Fails the test if an operand differs from the reference by more than rounding can explain. */
void kernel_case_compare (const struct kernel_case *made, uint32_t o,
                          const struct weft_kernel *found, const struct weft_kernel *wanted);
