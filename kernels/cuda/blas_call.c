#include "kernels/cuda/blas_call.h"
#include "core/base/words.h"

void
weft_blas_call_clear (weft_blas_call *c)
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
static cudaDataType_t
type_of (uint8_t dtype)
{
  return dtype == WEFT_FP32   ? CUDA_R_32F
         : dtype == WEFT_BF16 ? CUDA_R_16BF
         : dtype == WEFT_FP8  ? CUDA_R_8F_E4M3
         : dtype == WEFT_E5M2 ? CUDA_R_8F_E5M2
                              : CUDA_R_16F;
}

/* Describes a row-major matrix to the library, whose matrices are column-major. */
static cublasStatus_t
describe (cublasLtMatrixLayout_t *layout, uint8_t dtype, uint64_t rows, uint64_t columns)
{
  return cublasLtMatrixLayoutCreate (layout, type_of (dtype), columns, rows, (int64_t) columns);
}

const char *
weft_blas_text (cublasStatus_t status)
{
  return status == CUBLAS_STATUS_SUCCESS ? NULL : cublasLtGetStatusString (status);
}

static cublasLtEpilogue_t
epilogue_of (const struct weft_cuda_gemm *g)
{
  static const cublasLtEpilogue_t gelu[2][2] = {
    { CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS },
    { CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS },
  };

  if (g->epilogue == WEFT_CUDA_GELU_SLOPE)
    return CUBLASLT_EPILOGUE_DGELU;
  if (g->epilogue == WEFT_CUDA_SUMS)
    return CUBLASLT_EPILOGUE_BGRADB;
  return g->epilogue == WEFT_CUDA_GELU ? gelu[g->aux != NULL][g->bias != NULL]
         : g->bias                     ? CUBLASLT_EPILOGUE_BIAS
                                       : CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t
set_epilogue (cublasLtMatmulDesc_t desc, const struct weft_cuda_gemm *g)
{
  const cublasLtEpilogue_t epilogue = epilogue_of (g);
  const int64_t row = (int64_t) g->n;
  const gboolean sums = g->epilogue == WEFT_CUDA_SUMS;
  const void *bias = sums ? g->aux : g->bias, *aux = sums ? NULL : g->aux;
  const struct {
    gboolean is;
    cublasLtMatmulDescAttributes_t attribute;
    const void *value;
    size_t bytes;
  } wanted[] = {
    { TRUE, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue },
    { bias != NULL, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias },
    { aux != NULL, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux },
    { aux != NULL, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &row, sizeof row },
  };
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

  for (unsigned i = 0; i < G_N_ELEMENTS (wanted) && status == CUBLAS_STATUS_SUCCESS; i++)
    if (wanted[i].is)
      status = cublasLtMatmulDescSetAttribute (desc, wanted[i].attribute, wanted[i].value,
                                               wanted[i].bytes);
  return status;
}

/* Sets the pointer mode: alpha and beta are passed as device pointers. */
static cublasStatus_t
set_scale (cublasLtMatmulDesc_t desc)
{
  const cublasLtPointerMode_t mode = CUBLASLT_POINTER_MODE_DEVICE;

  return cublasLtMatmulDescSetAttribute (desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode,
                                         sizeof mode);
}

/* For fp8 products: passes the addresses and modes of the scales, and whether accumulation with
 * reduced precision is allowed. The library's matrix A is Weft's b. */
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

const char *
weft_blas_call_init (weft_blas_call *c, const struct weft_cuda_gemm *g)
{
  const cublasOperation_t turn_a = g->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t turn_b = g->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasStatus_t status[9] = { cublasLtMatmulDescCreate (&c->desc, CUBLAS_COMPUTE_32F,
                                                         CUDA_R_32F) };

  if (status[0] != CUBLAS_STATUS_SUCCESS)
    return weft_blas_text (status[0]);
  status[1] =
      cublasLtMatmulDescSetAttribute (c->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turn_a, sizeof turn_a);
  status[2] =
      cublasLtMatmulDescSetAttribute (c->desc, CUBLASLT_MATMUL_DESC_TRANSB, &turn_b, sizeof turn_b);
  status[3] = g->b_turned ? describe (&c->a, weft_blas_b_dtype (g), g->n, g->k)
                          : describe (&c->a, weft_blas_b_dtype (g), g->k, g->n);
  status[4] =
      g->a_turned ? describe (&c->b, g->dtype, g->k, g->m) : describe (&c->b, g->dtype, g->m, g->k);
  status[5] = describe (&c->y, g->y_dtype, g->m, g->n);
  status[6] = set_epilogue (c->desc, g);
  status[7] = g->scale ? set_scale (c->desc) : CUBLAS_STATUS_SUCCESS;
  status[8] = g->a_scale ? set_codes (c->desc, g) : CUBLAS_STATUS_SUCCESS;
  for (unsigned i = 1; i < G_N_ELEMENTS (status); i++)
    if (status[i] != CUBLAS_STATUS_SUCCESS)
      return weft_blas_text (status[i]);
  return NULL;
}
