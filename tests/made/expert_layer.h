/* expert_layer.h - runs a whole MoE layer op by op with random shapes and inputs, on the fp64
 * references, the CPU kernels or a device. */
#pragma once
#include "tests/made/cuda_case.h"

/* The arrays of an expert layer: A (name, number of elements). A capital letter in a number of
 * elements stands for the field of struct sizes with the same small letter: T is the number of
 * tokens t, H the hidden size h. */
#define ARRAYS(A)                                                                                  \
  A (X, T *H)                                                                                      \
  A (WR, E *H)                                                                                     \
  A (W1, E *W *F *H)                                                                               \
  A (W2, E *H *F) A (DM, T *H) A (LOGITS, T *E) A (SCORES, T *E) A (CHOICE, T *K) A (PROB, T *K)   \
      A (COUNTS, E *L) A (ROW, T *K) A (XP, R *H) A (PP, R) A (U, R *W *F) A (ACT, R *F)           \
          A (YP, R *H) A (M, T *H) A (DYP, R *H) A (DW2, E *H *F) A (DACT, R *F) A (DU, R *W *F)   \
              A (DPP, R) A (DW1, E *W *F *H) A (DXP, R *H) A (DX, T *H) A (DPROB, T *K)            \
                  A (DLOGITS, T *E) A (DXR, T *H) A (DWR, E *H)
enum array {
#define ID(name, size) name,
  ARRAYS (ID)
#undef ID
      N_ARRAY,
  NONE = N_ARRAY
};

/* Sizes of dimensions. t: tokens; e: experts; k: experts per token; h: hidden size; f: hidden size
 * of an expert; w: 2 if fc1 has a gate, else 1; l: leaves (kernels/leaves.h) of a sum over tokens,
 * 1 in fast order; r: rows of all experts together. capacity: limit of the rows of an expert, 0: no
 * limit. padded: whether every expert has exactly `capacity` rows. */
struct sizes {
  uint64_t t, e, k, h, f, w, l, r, capacity, padded;
};

struct layer {
  struct sizes s;
  union weft_model model;
  enum weft_dtype dtype, grad_dtype;
  gboolean canonical, doubles;
  const struct cuda_case_device *device; /* device that runs the layer; NULL: the CPU */
  /* TRUE: the second run on the device, which gets this flag */
  gboolean again;
  uint32_t parts;
  struct weft_operand at[N_ARRAY + 1];
};

/* Draws sizes and types of a layer. Arrays are not allocated yet. `drops`: the layer has an expert
 * capacity, so that tokens can be dropped. */
void expert_layer_choose (GRand *rand, struct layer *l, gboolean drops);

/* Returns a random number out of a list, such as "1 2 4". */
int64_t expert_layer_pick (GRand *rand, const char *choices);

/* Allocates all arrays of the layer and fills them with NaN. expert_layer_close() frees them. */
void expert_layer_open (struct layer *l);
void expert_layer_close (struct layer *l);

/* Fills inputs and weights of the layer with random numbers. */
void expert_layer_fill (GRand *rand, struct layer *l);

/* Copies the weights of `from`, and its inputs from token number `token` on, to `to`, which may
 * have fewer tokens. */
void expert_layer_copy_inputs (const struct layer *from, struct layer *to, uint64_t token);

/* Runs all ops of the layer, forward and backward. */
void expert_layer_run (struct layer *l);

/* Read or write element i of an array of the layer, as a double. */
double expert_layer_get (const struct layer *l, enum array a, uint64_t i);
void expert_layer_set (struct layer *l, enum array a, uint64_t i, double value);

const char *expert_layer_name (enum array a);

/* Returns the number of elements of an array in rows that hold a token. */
uint64_t expert_layer_in_use (const struct layer *l, enum array a);

/* Whether both layers chose the same experts for all tokens. Rounding can change the order of close
 * scores and thus the choice. */
gboolean expert_layer_same_choice (const struct layer *a, const struct layer *b);

/* Fails the test if an array of the two layers differs by more than `tolerance`. */
void expert_layer_compare (const struct layer *found, const struct layer *wanted, double tolerance);

/* Fails the test if the arrays of the two layers differ in any bit. */
void expert_layer_same_bits (const struct layer *a, const struct layer *b);
