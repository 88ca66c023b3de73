/* expert_layer.h - a whole layer of experts, op by op, with random shapes and inputs: by the fp64
 * references, by the CPU or by a device. */
#pragma once
#include "tests/made/cuda_case.h"

/* What it reads and makes.  FLOATS are in the layer's type, others as they are. */
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

/* Sizes that dimensions and arrays are made of. */
struct sizes {
  uint64_t t, e, k, h, f, w, l, r, capacity, padded;
};

struct layer {
  struct sizes s;
  union weft_model model;
  enum weft_dtype dtype, grad_dtype;
  gboolean canonical, doubles;
  const struct cuda_case_device *device; /* NULL: the CPU */
  gboolean again;                        /* what the device is told */
  uint32_t parts;
  struct weft_operand at[N_ARRAY + 1];
};

/* A random layer; some have a capacity, over which tokens are dropped.  Its arrays are not there
 * yet. */
void expert_layer_choose (GRand *rand, struct layer *l, gboolean drops);

/* One number of a list. */
int64_t expert_layer_pick (GRand *rand, const char *choices);

/* Room for all arrays, as NaN; random inputs; the inputs of another layer, from a token of it
 * on. */
void expert_layer_open (struct layer *l);
void expert_layer_close (struct layer *l);
void expert_layer_fill (GRand *rand, struct layer *l);
void expert_layer_copy_inputs (const struct layer *from, struct layer *to, uint64_t token);

/* All its ops. */
void expert_layer_run (struct layer *l);

double expert_layer_get (const struct layer *l, enum array a, uint64_t i);
void expert_layer_set (struct layer *l, enum array a, uint64_t i, double value);

const char *expert_layer_name (enum array a);

/* Elements of rows that somebody is in. */
uint64_t expert_layer_in_use (const struct layer *l, enum array a);

/* A choice that only rounding made is another layer: scores that lie next to each other. */
gboolean expert_layer_same_choice (const struct layer *a, const struct layer *b);

/* Fail where they differ. */
void expert_layer_compare (const struct layer *found, const struct layer *wanted, double tolerance);
void expert_layer_same_bits (const struct layer *a, const struct layer *b);
