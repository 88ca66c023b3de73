/* Matrices of cuBLASLt lie column by column, so that y = a b of rows is y^T = b^T a^T for it: what is
 * `b` here is its A, and rows are its leading dimension. */
#include "kernels/cuda/blas.h"
#include "core/base/error.h"
#include "core/base/words.h"
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

/* What an algorithm is chosen for.  No padding: it is hashed and compared as bytes. */
struct shape {
  uint64_t m, n, k;
  uint32_t alignment[4]; /* of a, b, y, bias: bytes, at most 256; bias 0: none */
  uint8_t a_turned, b_turned, accumulate, dtype, y_dtype, scaled;
  uint8_t b_dtype, codes; /* of fp8: what else says which kernel it is */
};

struct choice {
  struct shape shape;
  cublasLtMatmulAlgo_t algorithm;
  uint64_t scratch;
};

struct weft_cuda_blas {
  cublasLtHandle_t handle;
  GHashTable *choices; /* by shape */
  int arch;            /* 10 * major + minor */
  gboolean only_prepare;
  char machine[360]; /* library, driver and GPU, as files say them */
};

/* ------------------------------------------------------------------------------ choices */

static guint
hash_shape (gconstpointer data)
{
  const uint8_t *byte = data;
  guint hash = 5381;

  for (size_t i = 0; i < sizeof (struct shape); i++)
    hash = hash * 33 + byte[i];
  return hash;
}

static gboolean
same_shape (gconstpointer a, gconstpointer b)
{
  return memcmp (a, b, sizeof (struct shape)) == 0;
}

/* The largest power of two, up to 256, that an address is a multiple of. */
static uint32_t
alignment_of (const void *at)
{
  uintptr_t bits = (uintptr_t) at | 256;
  return at ? (uint32_t) (bits & (~bits + 1)) : 0;
}

static uint8_t
b_dtype_of (const struct weft_cuda_gemm *g)
{
  return g->b_scale ? g->b_dtype : g->dtype;
}

static struct shape
shape_of (const struct weft_cuda_gemm *g)
{
  return (struct shape){ .m = g->m,
                         .n = g->n,
                         .k = g->k,
                         .alignment = { alignment_of (g->a), alignment_of (g->b),
                                        alignment_of (g->y), alignment_of (g->bias) },
                         .a_turned = g->a_turned,
                         .b_turned = g->b_turned,
                         .accumulate = g->accumulate,
                         .dtype = g->dtype,
                         .y_dtype = g->y_dtype,
                         .scaled = g->scale != NULL,
                         .b_dtype = b_dtype_of (g),
                         .codes = (uint8_t) (g->block | g->square << 1 | g->fast) };
}

/* ---------------------------------------------------------------------------- a product */

/* What cuBLASLt is told of a product. */
typedef struct call {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, y; /* a: of its A, which is our b */
} call;

static void
call_clear (struct call *c)
{
  if (c->desc)
    cublasLtMatmulDescDestroy (c->desc);
  if (c->a)
    cublasLtMatrixLayoutDestroy (c->a);
  if (c->b)
    cublasLtMatrixLayoutDestroy (c->b);
  if (c->y)
    cublasLtMatrixLayoutDestroy (c->y);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (call, call_clear)

static cudaDataType_t
type_of (uint8_t dtype)
{
  return dtype == WEFT_FP32   ? CUDA_R_32F
         : dtype == WEFT_BF16 ? CUDA_R_16BF
         : dtype == WEFT_FP8  ? CUDA_R_8F_E4M3
         : dtype == WEFT_E5M2 ? CUDA_R_8F_E5M2
                              : CUDA_R_16F;
}

/* A matrix of rows and columns as it lies in memory, row by row. */
static cublasStatus_t
describe (cublasLtMatrixLayout_t *layout, uint8_t dtype, uint64_t rows, uint64_t columns)
{
  return cublasLtMatrixLayoutCreate (layout, type_of (dtype), columns, rows, (int64_t) columns);
}

static const char *
text_of (cublasStatus_t status)
{
  return status == CUBLAS_STATUS_SUCCESS ? NULL : cublasLtGetStatusString (status);
}

static cublasStatus_t
set_bias (cublasLtMatmulDesc_t desc, const struct weft_cuda_gemm *g)
{
  const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  cublasStatus_t status = cublasLtMatmulDescSetAttribute (desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                          &epilogue, sizeof epilogue);

  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  return cublasLtMatmulDescSetAttribute (desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias,
                                         sizeof g->bias);
}

/* Factors that the device reads. */
static cublasStatus_t
set_scale (cublasLtMatmulDesc_t desc)
{
  const cublasLtPointerMode_t mode = CUBLASLT_POINTER_MODE_DEVICE;

  return cublasLtMatmulDescSetAttribute (desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode,
                                         sizeof mode);
}

/* Of codes: where their scales are, what these are of, and whether sums may lose bits on the way.  The
 * library's A is our b. */
static cublasStatus_t
set_codes (cublasLtMatmulDesc_t desc, const struct weft_cuda_gemm *g)
{
  const int32_t row = g->block == 0    ? CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
                      : g->block == 32 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
                                       : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  const int32_t other = g->square ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : row;
  const int8_t fast = (int8_t) g->fast;
  const struct {
    cublasLtMatmulDescAttributes_t attribute;
    const void *value;
    size_t bytes;
  } wanted[] = {
    { CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b_scale, sizeof g->b_scale },
    { CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a_scale, sizeof g->a_scale },
    { CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &other, sizeof other },
    { CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &row, sizeof row },
    { CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast },
  };
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

  for (unsigned i = 0; i < G_N_ELEMENTS (wanted) && status == CUBLAS_STATUS_SUCCESS; i++)
    status = cublasLtMatmulDescSetAttribute (desc, wanted[i].attribute, wanted[i].value,
                                             wanted[i].bytes);
  return status;
}

/* Which GPUs have tensor cores for which scales (cuBLAS 13, "Narrow precision data types usage"); their
 * rows are read sixteen bytes at a time. */
static const char *
refuse_codes (const struct weft_cuda_blas *blas, const struct weft_cuda_gemm *g)
{
  if (!g->a_scale)
    return NULL;
  if (blas->arch < 89)
    return "precision fp8 wants a GPU with tensor cores for fp8: Ada, Hopper or newer";
  if (g->block == 32 && blas->arch < 100)
    return "fp8_recipe mxfp8 wants a GPU whose tensor cores take scales of 32 elements, Blackwell "
           "or "
           "newer; found an older one: take delayed or tensorwise, or blockwise on Hopper";
  if (g->block == 128 && blas->arch / 10 != 9)
    return "fp8_recipe blockwise has products on Hopper alone; found another GPU: take delayed or "
           "tensorwise, or mxfp8 on Blackwell";
  if (g->m % 16 || g->n % 16 || g->k % 16)
    return "products in fp8 want rows, columns and terms that are multiples of 16: tokens of a "
           "microbatch and the widths of the model on a rank";
  return NULL;
}

static const char *
call_init (struct call *c, const struct weft_cuda_gemm *g)
{
  const cublasOperation_t turn_a = g->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t turn_b = g->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasStatus_t status[9] = { cublasLtMatmulDescCreate (&c->desc, CUBLAS_COMPUTE_32F,
                                                         CUDA_R_32F) };

  if (status[0] != CUBLAS_STATUS_SUCCESS)
    return text_of (status[0]);
  status[1] =
      cublasLtMatmulDescSetAttribute (c->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turn_a, sizeof turn_a);
  status[2] =
      cublasLtMatmulDescSetAttribute (c->desc, CUBLASLT_MATMUL_DESC_TRANSB, &turn_b, sizeof turn_b);
  status[3] = g->b_turned ? describe (&c->a, b_dtype_of (g), g->n, g->k)
                          : describe (&c->a, b_dtype_of (g), g->k, g->n);
  status[4] =
      g->a_turned ? describe (&c->b, g->dtype, g->k, g->m) : describe (&c->b, g->dtype, g->m, g->k);
  status[5] = describe (&c->y, g->y_dtype, g->m, g->n);
  status[6] = g->bias ? set_bias (c->desc, g) : CUBLAS_STATUS_SUCCESS;
  status[7] = g->scale ? set_scale (c->desc) : CUBLAS_STATUS_SUCCESS;
  status[8] = g->a_scale ? set_codes (c->desc, g) : CUBLAS_STATUS_SUCCESS;
  for (unsigned i = 1; i < G_N_ELEMENTS (status); i++)
    if (status[i] != CUBLAS_STATUS_SUCCESS)
      return text_of (status[i]);
  return NULL;
}

static const char *
run (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const struct call *c,
     const struct choice *choice)
{
  const float given[] = { 1, g->accumulate ? 1 : 0 }, *factor = g->scale ? g->scale : given;

  return text_of (cublasLtMatmul (on->blas->handle, c->desc, factor, g->b, c->a, g->a, c->b,
                                  factor + 1, g->y, c->y, g->y, c->y, &choice->algorithm,
                                  on->scratch, choice->scratch, (cudaStream_t) on->stream));
}

/* ------------------------------------------------------------------------ finding an algorithm */

typedef cublasLtMatmulPreference_t preference;

static void
preference_clear (preference *p)
{
  if (*p)
    cublasLtMatmulPreferenceDestroy (*p);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (preference, preference_clear)

static cublasStatus_t
want (preference p, cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes)
{
  return cublasLtMatmulPreferenceSetAttribute (p, attribute, value, bytes);
}

/* A is our b. */
static cublasStatus_t
set_preferences (preference p, const struct shape *s, uint64_t scratch)
{
  const uint32_t no_races = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const struct {
    cublasLtMatmulPreferenceAttributes_t attribute;
    const void *value;
    size_t bytes;
  } wanted[] = {
    { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch, sizeof scratch },
    { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_races, sizeof no_races },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &s->alignment[1], sizeof *s->alignment },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &s->alignment[0], sizeof *s->alignment },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &s->alignment[2], sizeof *s->alignment },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &s->alignment[2], sizeof *s->alignment },
  };
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

  for (unsigned i = 0; i < G_N_ELEMENTS (wanted) && status == CUBLAS_STATUS_SUCCESS; i++)
    status = want (p, wanted[i].attribute, wanted[i].value, wanted[i].bytes);
  return status;
}

/* The library's guesses, the best first. */
static const char *
guess (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const struct call *c,
       cublasLtMatmulHeuristicResult_t found[WEFT_BLAS_CANDIDATES], int *n)
{
  struct shape shape = shape_of (g);
  g_auto (preference) p = NULL;
  cublasStatus_t status = cublasLtMatmulPreferenceCreate (&p);

  if (status == CUBLAS_STATUS_SUCCESS)
    status = set_preferences (p, &shape, MIN (on->scratch_bytes, WEFT_BLAS_SCRATCH));
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulAlgoGetHeuristic (on->blas->handle, c->desc, c->a, c->b, c->y, c->y, p,
                                             WEFT_BLAS_CANDIDATES, found, n);
  if (status == CUBLAS_STATUS_SUCCESS && *n == 0)
    return "cuBLASLt has no algorithm for a matrix product of this shape and alignment";
  return text_of (status);
}

enum { N_RUNS = 5 };

/* Milliseconds of the fastest of some runs; negative: it does not run. */
static float
fastest_of (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const struct call *c,
            const struct choice *choice)
{
  cudaEvent_t begin = NULL, end = NULL;
  float least = -1, took;
  gboolean ok = cudaEventCreate (&begin) == cudaSuccess && cudaEventCreate (&end) == cudaSuccess &&
                !run (on, g, c, choice);

  for (int i = 0; ok && i < N_RUNS; i++) {
    ok = cudaEventRecord (begin, (cudaStream_t) on->stream) == cudaSuccess &&
         !run (on, g, c, choice) &&
         cudaEventRecord (end, (cudaStream_t) on->stream) == cudaSuccess &&
         cudaEventSynchronize (end) == cudaSuccess &&
         cudaEventElapsedTime (&took, begin, end) == cudaSuccess;
    least = ok && (least < 0 || took < least) ? took : least;
  }
  if (begin)
    (void) cudaEventDestroy (begin);
  if (end)
    (void) cudaEventDestroy (end);
  return ok ? least : -1;
}

/* ------------------------------------------------------------------------ operands to measure with */

#define PATTERN (1u << 20) /* elements */

/* What products read and write while they are measured.  Zeros would draw less power and be quicker,
 * and the memory of a plan holds what must stay. */
typedef struct operands {
  struct weft_cuda_gemm gemm;
  void *block[4];
} operands;

static void
operands_clear (operands *o)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (o->block); i++)
    (void) cudaFree (o->block[i]);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (operands, operands_clear)

static uint64_t
size_of (uint8_t dtype)
{
  return weft_dtype_bytes ((enum weft_dtype) dtype);
}

/* From 0.5 to 1 and of both signs: the bits of such a number, in halves or whole; of codes from 1 to 2. */
static void
fill_pattern (uint8_t dtype, void *out)
{
  uint32_t seed = 1;

  for (uint32_t i = 0; i < PATTERN; i++) {
    seed = seed * 1664525 + 1013904223;
    if (dtype == WEFT_FP32)
      ((uint32_t *) out)[i] = (seed & 0x807fffff) | 0x3f000000;
    else if (dtype == WEFT_FP8)
      ((uint8_t *) out)[i] = (uint8_t) ((seed >> 24 & 0x87) | 0x38);
    else if (dtype == WEFT_E5M2)
      ((uint8_t *) out)[i] = (uint8_t) ((seed >> 24 & 0x83) | 0x3c);
    else if (dtype == WEFT_BF16)
      ((uint16_t *) out)[i] = (uint16_t) ((seed >> 16 & 0x807f) | 0x3f00);
    else
      ((uint16_t *) out)[i] = (uint16_t) ((seed >> 16 & 0x83ff) | 0x3800);
  }
}

/* A block like the one at `like`, as aligned as that is, full of random numbers. */
static gboolean
make_block (void **block, const void *like, uint64_t n, uint8_t dtype, const void **at)
{
  uint64_t bytes = n * size_of (dtype), done = MIN (bytes, PATTERN * size_of (dtype));
  uint32_t offset = alignment_of (like) % 256;
  g_autofree uint8_t *pattern = g_malloc (PATTERN * size_of (dtype));

  if (!like)
    return TRUE;
  if (cudaMalloc (block, bytes + offset) != cudaSuccess) {
    (void) cudaGetLastError (); /* which the next call would tell otherwise */
    return FALSE;
  }
  uint8_t *to = (uint8_t *) *block + offset;
  fill_pattern (dtype, pattern);
  gboolean ok = cudaMemcpy (to, pattern, done, cudaMemcpyHostToDevice) == cudaSuccess;
  for (; ok && done < bytes; done += MIN (done, bytes - done))
    ok = cudaMemcpy (to + done, to, MIN (done, bytes - done), cudaMemcpyDeviceToDevice) ==
         cudaSuccess;
  *at = to;
  return ok;
}

static gboolean
make_operands (operands *o, const struct weft_cuda_gemm *g)
{
  const void *y = NULL;

  o->gemm = *g;
  gboolean ok = make_block (&o->block[0], g->a, g->m * g->k, g->dtype, &o->gemm.a) &&
                make_block (&o->block[1], g->b, g->k * g->n, b_dtype_of (g), &o->gemm.b) &&
                make_block (&o->block[2], g->y, g->m * g->n, g->y_dtype, &y) &&
                make_block (&o->block[3], g->bias, g->n, g->y_dtype, &o->gemm.bias) &&
                cudaDeviceSynchronize () == cudaSuccess;
  o->gemm.y = (void *) (uintptr_t) y;
  return ok;
}

/* The fastest of them, or the first. */
static int
fastest (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g,
         const cublasLtMatmulHeuristicResult_t *found, int n)
{
  g_auto (operands) o = { 0 };
  g_auto (call) c = { 0 };
  float least = -1;
  int best = 0;

  if (!make_operands (&o, g) || call_init (&c, &o.gemm))
    return 0;
  for (int i = 0; i < n; i++) {
    const struct choice tried = { .algorithm = found[i].algo, .scratch = found[i].workspaceSize };
    float took = fastest_of (on, &o.gemm, &c, &tried);
    if (took >= 0 && (least < 0 || took < least)) {
      least = took;
      best = i;
    }
  }
  return best;
}

static const char *
choose (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const struct call *c,
        gboolean measure)
{
  cublasLtMatmulHeuristicResult_t found[WEFT_BLAS_CANDIDATES];
  int n = 0;
  const char *error = guess (on, g, c, found, &n);

  if (error)
    return error;
  int best = measure && n > 1 ? fastest (on, g, found, n) : 0;
  struct choice *choice = g_new0 (struct choice, 1);
  *choice = (struct choice){ shape_of (g), found[best].algo, found[best].workspaceSize };
  g_hash_table_replace (on->blas->choices, &choice->shape, choice);
  return NULL;
}

const char *
weft_cuda_multiply (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm)
{
  struct shape shape = shape_of (gemm);
  g_auto (call) c = { 0 };
  const char *error = refuse_codes (on->blas, gemm);

  error = error ? error : call_init (&c, gemm);
  if (!error && !g_hash_table_contains (on->blas->choices, &shape))
    error = choose (on, gemm, &c, on->blas->only_prepare);
  if (error || on->blas->only_prepare)
    return error;
  return run (on, gemm, &c, g_hash_table_lookup (on->blas->choices, &shape));
}

void
weft_blas_only_prepare (struct weft_cuda_blas *blas, gboolean on)
{
  blas->only_prepare = on;
}

uint32_t
weft_blas_count (const struct weft_cuda_blas *blas)
{
  return g_hash_table_size (blas->choices);
}

/* --------------------------------------------------------------------------- life and file */

struct weft_cuda_blas *
weft_blas_new (const char **error)
{
  g_autofree struct weft_cuda_blas *blas = g_new0 (struct weft_cuda_blas, 1);
  struct cudaDeviceProp device;
  int number = 0, driver = 0;
  cudaError_t found = cudaGetDevice (&number);

  if (found == cudaSuccess)
    found = cudaGetDeviceProperties (&device, number);
  if (found == cudaSuccess)
    found = cudaDriverGetVersion (&driver);
  *error =
      found == cudaSuccess ? text_of (cublasLtCreate (&blas->handle)) : cudaGetErrorString (found);
  if (*error)
    return NULL;
  g_snprintf (blas->machine, sizeof blas->machine,
              "cublasLt %zu, driver for CUDA %d, %s, sm_%d%d, %d SMs", cublasLtGetVersion (),
              driver, device.name, device.major, device.minor, device.multiProcessorCount);
  blas->arch = 10 * device.major + device.minor;
  blas->choices = g_hash_table_new_full (hash_shape, same_shape, NULL, g_free);
  return g_steal_pointer (&blas);
}

void
weft_blas_free (struct weft_cuda_blas *blas)
{
  if (!blas)
    return;
  (void) cublasLtDestroy (blas->handle);
  g_hash_table_unref (blas->choices);
  g_free (blas);
}

static void
append_bytes (GString *text, const void *data, size_t bytes)
{
  for (size_t i = 0; i < bytes; i++)
    g_string_append_printf (text, "%02x", ((const uint8_t *) data)[i]);
}

static gboolean
take_bytes (const char *text, void *data, size_t bytes)
{
  if (strlen (text) != 2 * bytes)
    return FALSE;
  for (size_t i = 0; i < bytes; i++) {
    int high = g_ascii_xdigit_value (text[2 * i]), low = g_ascii_xdigit_value (text[2 * i + 1]);
    if (high < 0 || low < 0)
      return FALSE;
    ((uint8_t *) data)[i] = (uint8_t) (high << 4 | low);
  }
  return TRUE;
}

gboolean
weft_blas_save (const struct weft_cuda_blas *blas, const char *path, GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);
  GHashTableIter iter;
  gpointer choice;

  g_string_append_printf (text, "%s\n", blas->machine);
  g_hash_table_iter_init (&iter, blas->choices);
  while (g_hash_table_iter_next (&iter, NULL, &choice)) {
    append_bytes (text, choice, sizeof (struct choice));
    g_string_append_c (text, '\n');
  }
  return g_file_set_contents (path, text->str, (gssize) text->len, error);
}

gboolean
weft_blas_load (struct weft_cuda_blas *blas, const char *path, uint32_t *found, GError **error)
{
  g_autofree char *text = NULL;

  *found = 0;
  if (!g_file_get_contents (path, &text, NULL, error))
    return FALSE;
  g_auto (GStrv) line = g_strsplit (text, "\n", -1);
  for (guint i = 1; line[0] && g_str_equal (line[0], blas->machine) && line[i]; i++) {
    g_autofree struct choice *choice = g_new0 (struct choice, 1);
    if (!*line[i])
      continue;
    if (!take_bytes (line[i], choice, sizeof *choice))
      return weft_bad_input (error,
                             "%s:%u: found no algorithm of a matrix product, wanted %zu hex digits",
                             path, i + 1, 2 * sizeof *choice);
    struct choice *kept = g_steal_pointer (&choice);
    g_hash_table_replace (blas->choices, &kept->shape, kept);
    ++*found;
  }
  return TRUE;
}

char *
weft_blas_path (const struct weft_cuda_blas *blas)
{
  g_autofree char *hash = g_compute_checksum_for_string (G_CHECKSUM_SHA256, blas->machine, -1);
  g_autofree char *name = g_strdup_printf ("products-%.16s.txt", hash);

  return g_build_filename (g_get_user_cache_dir (), "weft", name, NULL);
}
