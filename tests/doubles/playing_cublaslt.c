#include "tests/doubles/playing_cublaslt.h"
#include "core/base/words.h"
#include "kernels/float.h"
#include "kernels/fp8.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <glib.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct playing_cublaslt playing_cublaslt = { .arch = 90, .fastest = 0 };

enum { N_ANSWERS = 3, DEFAULT_ALIGNMENT = 256, MAGIC = 0x706c6179 };
enum { MOST_PARTS = 8 /* into which the library cuts an inner dimension */ };

/* ---------------------------------------------------------------------------- attributes */

/* The attributes of a cuBLASLt descriptor, by number. cublasLt.h defines the size of each
 * attribute. */
struct attributes {
  uint64_t value[64];
};

struct description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  struct attributes at;
};

struct layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t ld;
};

static cublasStatus_t
set_attribute (struct attributes *to, const uint8_t *sizes, unsigned attribute, const void *value,
               size_t bytes)
{
  if (attribute >= G_N_ELEMENTS (to->value) || sizes[attribute] != bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  to->value[attribute] = 0;
  memcpy (&to->value[attribute], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                const void *value, size_t bytes)
{
  static const uint8_t sizes[64] = {
    [CUBLASLT_MATMUL_DESC_POINTER_MODE] = 4,    [CUBLASLT_MATMUL_DESC_TRANSA] = 4,
    [CUBLASLT_MATMUL_DESC_TRANSB] = 4,          [CUBLASLT_MATMUL_DESC_EPILOGUE] = 4,
    [CUBLASLT_MATMUL_DESC_BIAS_POINTER] = 8,    [CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER] = 8,
    [CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD] = 8, [CUBLASLT_MATMUL_DESC_A_SCALE_POINTER] = 8,
    [CUBLASLT_MATMUL_DESC_B_SCALE_POINTER] = 8, [CUBLASLT_MATMUL_DESC_FAST_ACCUM] = 1,
    [CUBLASLT_MATMUL_DESC_A_SCALE_MODE] = 4,    [CUBLASLT_MATMUL_DESC_B_SCALE_MODE] = 4
  };

  return set_attribute (&((struct description *) (void *) desc)->at, sizes, (unsigned) attribute,
                        value, bytes);
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute (cublasLtMatmulPreference_t preference,
                                      cublasLtMatmulPreferenceAttributes_t attribute,
                                      const void *value, size_t bytes)
{
  static const uint8_t sizes[64] = { [CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES] = 8,
                                     [CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK] = 4,
                                     [CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = 4,
                                     [CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES] = 4,
                                     [CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES] = 4,
                                     [CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES] = 4 };

  return set_attribute ((struct attributes *) (void *) preference, sizes, (unsigned) attribute,
                        value, bytes);
}

cublasStatus_t
cublasLtMatmulDescCreate (cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                          cudaDataType_t scale)
{
  struct description *d = g_new0 (struct description, 1);

  d->compute = compute;
  d->scale = scale;
  d->at.value[CUBLASLT_MATMUL_DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
  *out = (cublasLtMatmulDesc_t) (void *) d;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescDestroy (cublasLtMatmulDesc_t desc)
{
  g_free (desc);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutCreate (cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                            uint64_t columns, int64_t ld)
{
  const struct layout layout = { type, rows, columns, ld };

  if (rows == 0 || columns == 0 || (uint64_t) ld < rows)
    return CUBLAS_STATUS_INVALID_VALUE;
  *out = (cublasLtMatrixLayout_t) g_memdup2 (&layout, sizeof layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutDestroy (cublasLtMatrixLayout_t layout)
{
  g_free (layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceCreate (cublasLtMatmulPreference_t *out)
{
  struct attributes *p = g_new0 (struct attributes, 1);

  p->value[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK] = CUBLASLT_REDUCTION_SCHEME_MASK;
  for (int i = 0; i < 4; i++)
    p->value[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i] = DEFAULT_ALIGNMENT;
  *out = (cublasLtMatmulPreference_t) (void *) p;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceDestroy (cublasLtMatmulPreference_t preference)
{
  g_free (preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtCreate (cublasLtHandle_t *handle)
{
  *handle = (cublasLtHandle_t) (void *) &playing_cublaslt;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtDestroy (cublasLtHandle_t handle)
{
  (void) handle;
  return CUBLAS_STATUS_SUCCESS;
}

size_t
cublasLtGetVersion (void)
{
  return 130100;
}

const char *
cublasLtGetStatusString (cublasStatus_t status)
{
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "an invalid value";
}

/* ------------------------------------------------------------------------------ a problem */

/* A matmul: y (m, n) = a b, column-major. a and b may be transposed. */
struct problem {
  const struct layout *a, *b, *y;
  uint64_t m, n, k;
  gboolean a_turned, b_turned;
  uint32_t epilogue, mode[2]; /* mode: scaling of a and of b (cublasLtMatmulMatrixScale_t) */
  gboolean fast;
  const uint8_t *bias, *aux, *scale[2];
  int64_t aux_ld;
};

static struct problem
problem_of (cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
            cublasLtMatrixLayout_t y)
{
  const uint64_t *v = ((const struct description *) (const void *) desc)->at.value;
  struct problem p = { .a = (const void *) a, .b = (const void *) b, .y = (const void *) y };

  p.a_turned = v[CUBLASLT_MATMUL_DESC_TRANSA] == CUBLAS_OP_T;
  p.b_turned = v[CUBLASLT_MATMUL_DESC_TRANSB] == CUBLAS_OP_T;
  p.m = p.a_turned ? p.a->columns : p.a->rows;
  p.k = p.a_turned ? p.a->rows : p.a->columns;
  p.n = p.b_turned ? p.b->rows : p.b->columns;
  p.epilogue = (uint32_t) v[CUBLASLT_MATMUL_DESC_EPILOGUE];
  p.fast = v[CUBLASLT_MATMUL_DESC_FAST_ACCUM] != 0;
  p.bias = (const uint8_t *) v[CUBLASLT_MATMUL_DESC_BIAS_POINTER];
  p.aux = (const uint8_t *) v[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER];
  p.aux_ld = (int64_t) v[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD];
  for (int i = 0; i < 2; i++) {
    p.mode[i] = (uint32_t) v[CUBLASLT_MATMUL_DESC_A_SCALE_MODE + i];
    p.scale[i] = (const uint8_t *) v[CUBLASLT_MATMUL_DESC_A_SCALE_POINTER + i];
  }
  return p;
}

static gboolean
is_code (cudaDataType_t type)
{
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static uint64_t
size_of (cudaDataType_t type)
{
  return is_code (type) ? 1 : type == CUDA_R_32F ? 4 : 2;
}

static gboolean
is_consistent (const struct problem *p)
{
  uint64_t terms = p->b_turned ? p->b->columns : p->b->rows;

  return terms == p->k && p->y->rows == p->m && p->y->columns == p->n;
}

static gboolean
has_types (const struct problem *p)
{
  cudaDataType_t a = p->a->type, b = p->b->type, y = p->y->type;

  if (is_code (a))
    return is_code (b) && !(a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2) && !is_code (y);
  return a == b && (y == a || (y == CUDA_R_32F && !is_code (y)));
}

static gboolean
has_scales (const struct problem *p)
{
  const uint32_t row = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                 square = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                 mx = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  gboolean codes = is_code (p->a->type);

  for (int i = 0; i < 2; i++)
    if ((p->scale[i] != NULL) != codes || (p->mode[i] && (uintptr_t) p->scale[i] % 16))
      return FALSE;
  if (!p->mode[0] && !p->mode[1])
    return !codes || playing_cublaslt.arch >= 89;
  if (p->mode[0] == mx || p->mode[1] == mx)
    return p->mode[0] == p->mode[1] && playing_cublaslt.arch >= 100;
  return (p->mode[0] == row || p->mode[0] == square) &&
         (p->mode[1] == row || p->mode[1] == square) &&
         !(p->mode[0] == square && p->mode[1] == square) && playing_cublaslt.arch / 10 == 9 &&
         !p->fast;
}

/* Whether a matmul meets the conditions of cuBLASLt for fp8: m, n, k, row lengths and addresses are
 * multiples of 16; a is transposed and b is not. */
static gboolean
has_room_for_codes (const struct problem *p, const uint64_t alignment[4])
{
  gboolean aligned = p->a->ld % 16 == 0 && p->b->ld % 16 == 0 &&
                     (uint64_t) p->y->ld * size_of (p->y->type) % 16 == 0 && p->m % 16 == 0 &&
                     p->n % 16 == 0 && p->k % 16 == 0;

  for (int i = 0; i < 4; i++)
    aligned = aligned && alignment[i] >= 16;
  return aligned && p->a_turned && !p->b_turned;
}

enum { BIAS_GRADIENTS = CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB };

/* Whether cuBLASLt supports the epilogue. An fp8 matmul with fp32 output requires a bf16 bias; no
 * caller passes one, so a bias is refused. The fp8 documentation lists no bias gradients. */
static gboolean
has_epilogue (const struct problem *p)
{
  gboolean adds = p->epilogue & CUBLASLT_EPILOGUE_BIAS, has_aux = p->epilogue & 128;

  if (adds && (!p->bias || p->m == 1 || (is_code (p->a->type) && p->y->type == CUDA_R_32F)))
    return FALSE;
  if (p->epilogue & BIAS_GRADIENTS)
    return p->bias && !is_code (p->a->type) && !playing_cublaslt.no_gradients &&
           (p->epilogue == CUBLASLT_EPILOGUE_BGRADA || p->epilogue == CUBLASLT_EPILOGUE_BGRADB);
  return !has_aux || (p->aux && (uintptr_t) p->aux % 16 == 0 && p->aux_ld % 8 == 0 &&
                      (uint64_t) p->aux_ld >= p->m);
}

static cublasStatus_t
judge (const struct problem *p, const struct description *d, const uint64_t alignment[4])
{
  if (d->compute != CUBLAS_COMPUTE_32F || d->scale != CUDA_R_32F || !is_consistent (p))
    return CUBLAS_STATUS_INVALID_VALUE;
  for (int i = 0; i < 4; i++)
    if (alignment[i] < size_of (i == 0   ? p->a->type
                                : i == 1 ? p->b->type
                                         : p->y->type) ||
        (alignment[i] & (alignment[i] - 1)))
      return CUBLAS_STATUS_INVALID_VALUE;
  if (!has_types (p) || !has_scales (p) || !has_epilogue (p) ||
      (is_code (p->a->type) && !has_room_for_codes (p, alignment)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---------------------------------------------------------------------------- algorithms */

/* An algorithm that the heuristic has suggested. It is valid only for the matmul for which it was
 * suggested, and for addresses with the stated alignment. parts: of the inner dimension; 0: not
 * cut. */
struct algorithm {
  uint32_t magic, number;
  int32_t parts;
  uint32_t scheme;
  uint64_t mark, workspace;
  uint16_t alignment[5]; /* of a, b, c, y and of the bias or its gradient (BIAS_POINTER) */
};
G_STATIC_ASSERT (sizeof (struct algorithm) <= sizeof (cublasLtMatmulAlgo_t));

static uint16_t
alignment_of (const void *at)
{
  uintptr_t value = (uintptr_t) at | DEFAULT_ALIGNMENT;
  return (uint16_t) (value & -value);
}

static uint64_t
mark_of (const struct problem *p)
{
  const uint64_t of[] = { p->m,
                          p->n,
                          p->k,
                          p->a_turned,
                          p->b_turned,
                          p->epilogue,
                          p->mode[0],
                          p->mode[1],
                          p->a->type,
                          p->b->type,
                          p->y->type,
                          (uint64_t) p->a->ld,
                          (uint64_t) p->b->ld,
                          (uint64_t) p->y->ld,
                          p->fast };
  uint64_t mark = 5381;

  for (unsigned i = 0; i < G_N_ELEMENTS (of); i++)
    mark = mark * 1000003 + of[i];
  return mark;
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y,
                                cublasLtMatmulPreference_t preference, int most,
                                cublasLtMatmulHeuristicResult_t *found, int *n)
{
  const uint64_t *wanted = ((const struct attributes *) (const void *) preference)->value;
  const uint64_t *alignment = wanted + CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  const struct problem p = problem_of (desc, a, b, y);
  cublasStatus_t status = judge (&p, (const void *) desc, alignment);

  g_assert (handle && c == y);
  playing_cublaslt.n_heuristics++;
  /* Split-k with in-place reduction adds the partial sums in no fixed order, so callers must
   * exclude it. */
  g_assert (
      !(wanted[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK] & CUBLASLT_REDUCTION_SCHEME_INPLACE));
  *n = 0;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < MIN (most, N_ANSWERS); i++) {
    struct algorithm algorithm = { .magic = MAGIC, .number = (uint32_t) i, .mark = mark_of (&p) };
    algorithm.workspace = i + 1 < N_ANSWERS ? playing_cublaslt.wants : 0;
    for (int j = 0; j < 4; j++)
      algorithm.alignment[j] = (uint16_t) alignment[j];
    algorithm.alignment[4] = alignment_of (p.bias);
    if (algorithm.workspace > wanted[CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES])
      continue;
    found[*n] = (cublasLtMatmulHeuristicResult_t){ .workspaceSize = algorithm.workspace };
    memcpy (&found[(*n)++].algo, &algorithm, sizeof algorithm);
  }
  playing_cublaslt.n_candidates += (uint64_t) *n;
  return status == CUBLAS_STATUS_SUCCESS && *n == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

/* Each part of the inner dimension has its own fp32 sums. */
static uint64_t
workspace_of (const struct algorithm *a, const struct problem *p)
{
  return a->workspace + (a->parts > 1 ? (uint64_t) a->parts * p->m * p->n * sizeof (float) : 0);
}

cublasStatus_t
cublasLtMatmulAlgoConfigSetAttribute (cublasLtMatmulAlgo_t *algo,
                                      cublasLtMatmulAlgoConfigAttributes_t attribute,
                                      const void *value, size_t bytes)
{
  struct algorithm algorithm;

  memcpy (&algorithm, algo, sizeof algorithm);
  g_assert (bytes == 4);
  if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
    memcpy (&algorithm.parts, value, bytes);
  else if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)
    memcpy (&algorithm.scheme, value, bytes);
  else
    return CUBLAS_STATUS_INVALID_VALUE;
  memcpy (algo, &algorithm, sizeof algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

/* Settings of an algorithm: its number, and 0 for everything else. Knows no cluster shape, as
 * releases of cuBLASLt before Hopper. */
cublasStatus_t
cublasLtMatmulAlgoConfigGetAttribute (const cublasLtMatmulAlgo_t *algo,
                                      cublasLtMatmulAlgoConfigAttributes_t attribute, void *out,
                                      size_t bytes, size_t *written)
{
  struct algorithm algorithm;

  memcpy (&algorithm, algo, sizeof algorithm);
  if (attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID || algorithm.magic != MAGIC)
    return CUBLAS_STATUS_INVALID_VALUE;
  uint32_t value = attribute == CUBLASLT_ALGO_CONFIG_ID ? algorithm.number : 0;
  memcpy (out, &value, MIN (bytes, sizeof value));
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulAlgoCheck (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y,
                         const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
  const struct problem p = problem_of (desc, a, b, y);
  struct algorithm algorithm;

  (void) handle, (void) c;
  playing_cublaslt.n_checks++;
  memcpy (&algorithm, algo, sizeof algorithm);
  *result = (cublasLtMatmulHeuristicResult_t){ .workspaceSize = workspace_of (&algorithm, &p) };
  return algorithm.magic == MAGIC && algorithm.mark == mark_of (&p) && !playing_cublaslt.forgets &&
                 algorithm.parts <= MOST_PARTS
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* --------------------------------------------------------------------------- arithmetic */

static enum weft_dtype
dtype_of (cudaDataType_t type)
{
  return type == CUDA_R_32F       ? WEFT_FP32
         : type == CUDA_R_16BF    ? WEFT_BF16
         : type == CUDA_R_8F_E4M3 ? WEFT_FP8
         : type == CUDA_R_8F_E5M2 ? WEFT_E5M2
                                  : WEFT_FP16;
}

static float
load (const void *data, cudaDataType_t type, uint64_t i)
{
  float room;
  return *weft_floats (data, dtype_of (type), i, 1, &room);
}

/* Returns the scale of an element of matrix a or b: row or column `outer`, position `term` of the
 * summed dimension. */
static float
scale_at (const struct problem *p, int which, uint64_t outer, uint64_t term)
{
  uint64_t outers = which ? p->n : p->m, blocks = (p->k + 127) / 128;
  const float *f = (const float *) (const void *) p->scale[which];

  switch (p->mode[which]) {
  case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
    return f[term / 128 * outers + outer];
  case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
    return f[outer / 128 * ((blocks + 3) / 4 * 4) + term / 128];
  case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: {
    uint64_t inner = term / 32, of_row = ((p->k + 31) / 32 + 3) / 4 * 4;
    uint64_t tile = (inner / 4 * 4 + outer / 128 * of_row) * 128;
    return weft_e8m0_float (
        p->scale[which][tile + outer % 32 * 16 + outer % 128 / 32 * 4 + inner % 4]);
  }
  default:
    return *f;
  }
}

static float
dot (const struct problem *p, const void *a, const void *b, const uint64_t at[2])
{
  float sum = 0;

  for (uint64_t t = 0; t < p->k; t++) {
    uint64_t i = p->a_turned ? t + at[0] * (uint64_t) p->a->ld : at[0] + t * (uint64_t) p->a->ld;
    uint64_t j = p->b_turned ? at[1] + t * (uint64_t) p->b->ld : t + at[1] * (uint64_t) p->b->ld;
    float x = load (a, p->a->type, i), y = load (b, p->b->type, j);
    if (is_code (p->a->type))
      x *= scale_at (p, 0, at[0], t), y *= scale_at (p, 1, at[1], t);
    sum += x * y;
  }
  return sum;
}

#define ROOT_2_PI 0.79788456f
#define CUBE 0.044715f

static float
gelu (float x)
{
  return 0.5f * x * (1 + tanhf (ROOT_2_PI * (x + CUBE * x * x * x)));
}

static float
gelu_slope (float x)
{
  float t = tanhf (ROOT_2_PI * (x + CUBE * x * x * x));

  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * ROOT_2_PI * (1 + 3 * CUBE * x * x);
}

static float
finish (const struct problem *p, float x, uint64_t row, uint64_t column)
{
  uint64_t at = row + column * (uint64_t) p->aux_ld;

  if (p->epilogue & CUBLASLT_EPILOGUE_BIAS)
    x += load (p->bias, p->y->type, row);
  if (p->epilogue == CUBLASLT_EPILOGUE_DGELU)
    return x * gelu_slope (load (p->aux, p->y->type, at));
  if (!(p->epilogue & CUBLASLT_EPILOGUE_GELU))
    return x;
  if (p->epilogue & 128)
    weft_store ((void *) (uintptr_t) p->aux, dtype_of (p->y->type), at, 1, &x);
  return gelu (x);
}

/* Stores a bias gradient: the sums over k of the columns of b, or of the rows of a, in the type of
 * y. Nothing is added to. */
static void
leave_gradient (const struct problem *p, const void *a, const void *b)
{
  gboolean of_b = p->epilogue == CUBLASLT_EPILOGUE_BGRADB;
  const struct layout *l = of_b ? p->b : p->a;
  gboolean along = of_b ? !p->b_turned : p->a_turned; /* terms are contiguous */

  for (uint64_t i = 0; i < (of_b ? p->n : p->m); i++) {
    float sum = 0;
    for (uint64_t t = 0; t < p->k; t++)
      sum +=
          load (of_b ? b : a, l->type, along ? t + i * (uint64_t) l->ld : i + t * (uint64_t) l->ld);
    weft_store ((void *) (uintptr_t) p->bias, dtype_of (p->y->type), i, 1, &sum);
  }
}

static float now; /* milliseconds that all matmuls so far have taken */

static gboolean
is_on_stack (const void *at)
{
  int here;
  return ABS ((intptr_t) at - (intptr_t) &here) < 1 << 20;
}

static gboolean
is_aligned (const void *at, uint64_t to)
{
  return (uintptr_t) at % to == 0;
}

cublasStatus_t
cublasLtMatmul (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                cublasLtMatrixLayout_t c_layout, void *y, cublasLtMatrixLayout_t y_layout,
                const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                cudaStream_t stream)
{
  const uint64_t *v = ((const struct description *) (const void *) desc)->at.value;
  const struct problem p = problem_of (desc, a_layout, b_layout, y_layout);
  float factor[] = { *(const float *) alpha, *(const float *) beta };
  struct algorithm with;
  uint64_t alignment[4];

  memcpy (&with, algo, sizeof with);
  g_assert (handle && stream && c == y && c_layout == y_layout);
  g_assert (is_on_stack (alpha) ==
            (v[CUBLASLT_MATMUL_DESC_POINTER_MODE] != CUBLASLT_POINTER_MODE_DEVICE));
  g_assert (is_aligned (workspace, 256));
  g_assert (with.parts < 2 || with.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  if (with.magic != MAGIC || with.mark != mark_of (&p) || bytes < workspace_of (&with, &p) ||
      !is_aligned (a, with.alignment[0]) || !is_aligned (b, with.alignment[1]) ||
      !is_aligned (y, with.alignment[3]) || !is_aligned (p.bias, with.alignment[4]))
    return CUBLAS_STATUS_INVALID_VALUE;
  for (int i = 0; i < 4; i++)
    alignment[i] = with.alignment[i];
  if (judge (&p, (const void *) desc, alignment) != CUBLAS_STATUS_SUCCESS)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  memset (workspace, 0xff, workspace_of (&with, &p));
  playing_cublaslt.n_products++;
  playing_cublaslt.n_gradients += (p.epilogue & BIAS_GRADIENTS) != 0;
  playing_cublaslt.parts = with.parts;
  now += (with.number == playing_cublaslt.fastest ? 1 : 2) +
         (playing_cublaslt.fast_parts && with.parts != playing_cublaslt.fast_parts ? 4 : 0) +
         (playing_cublaslt.dear_epilogues && p.epilogue & (CUBLASLT_EPILOGUE_GELU | BIAS_GRADIENTS)
              ? 10
              : 0);
  if (p.epilogue & BIAS_GRADIENTS)
    leave_gradient (&p, a, b);
  for (uint64_t column = 0; column < p.n; column++)
    for (uint64_t row = 0; row < p.m; row++) {
      uint64_t at = row + column * (uint64_t) p.y->ld;
      float sum = factor[0] * dot (&p, a, b, (const uint64_t[]){ row, column });
      if (factor[1] != 0)
        sum += factor[1] * load (y, p.y->type, at);
      sum = finish (&p, sum, row, column);
      weft_store (y, dtype_of (p.y->type), at, 1, &sum);
    }
  return CUBLAS_STATUS_SUCCESS;
}

/* ------------------------------------------------------------------------ CUDA's runtime */

cudaError_t
cudaGetDevice (int *device)
{
  *device = 0;
  return cudaSuccess;
}

cudaError_t
cudaGetDeviceProperties (struct cudaDeviceProp *out, int device)
{
  (void) device;
  *out = (struct cudaDeviceProp){ .major = playing_cublaslt.arch / 10,
                                  .minor = playing_cublaslt.arch % 10,
                                  .multiProcessorCount = 132 };
  g_strlcpy (out->name, "a GPU that is played", sizeof out->name);
  return cudaSuccess;
}

cudaError_t
cudaDriverGetVersion (int *version)
{
  *version = 13000;
  return cudaSuccess;
}

const char *
cudaGetErrorString (cudaError_t error)
{
  return error == cudaSuccess ? "no error" : "an error";
}

cudaError_t
cudaGetLastError (void)
{
  return cudaSuccess;
}

/* Allocates memory aligned to 256 bytes, as cudaMalloc() of CUDA does. */
cudaError_t
cudaMalloc (void **out, size_t bytes)
{
  if (playing_cublaslt.no_memory)
    return cudaErrorMemoryAllocation;
  return posix_memalign (out, 256, MAX (bytes, 1)) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t
cudaFree (void *block)
{
  playing_cublaslt.n_freed += block != NULL;
  free (block);
  return cudaSuccess;
}

cudaError_t
cudaMemcpy (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
  (void) kind;
  memcpy (to, from, bytes);
  return cudaSuccess;
}

cudaError_t
cudaDeviceSynchronize (void)
{
  return cudaSuccess;
}

cudaError_t
cudaEventCreate (cudaEvent_t *event)
{
  *event = (cudaEvent_t) (void *) g_new0 (float, 1);
  return cudaSuccess;
}

cudaError_t
cudaEventDestroy (cudaEvent_t event)
{
  g_free (event);
  return cudaSuccess;
}

cudaError_t
cudaEventRecord (cudaEvent_t event, cudaStream_t stream)
{
  (void) stream;
  *(float *) (void *) event = now;
  return cudaSuccess;
}

cudaError_t
cudaEventQuery (cudaEvent_t event)
{
  (void) event;
  return playing_cublaslt.hangs && playing_cublaslt.n_products >= playing_cublaslt.hangs
             ? cudaErrorNotReady
             : cudaSuccess;
}

cudaError_t
cudaEventElapsedTime (float *ms, cudaEvent_t begin, cudaEvent_t end)
{
  *ms = *(const float *) (const void *) end - *(const float *) (const void *) begin;
  return cudaSuccess;
}
