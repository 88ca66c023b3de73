/* gelu, its slope, or the sums of a bias gradient are an epilogue of the library's product. If the
 * library does not support the epilogue, or if the product with epilogue is slower than product and
 * kernel, a kernel of Weft runs after the product. Sums that were not measured are left to the
 * kernel, because the library's epilogue is much slower for some sizes
 * (github.com/NVIDIA/CUDALibrarySamples, issue 90). A bias that the library does not add is written
 * first, and the product accumulates. */
#include "kernels/cuda/blas.h"
#include "core/base/error.h"
#include "core/base/words.h"
#include "kernels/cuda/blas_call.h"
#include "kernels/cuda/fp8_scales.h"
#include "kernels/cuda/producer.h"
#include "kernels/cuda/trial.h"
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

/* Key of an algorithm in a hash table. The struct has no padding bytes, because it is hashed and
 * compared as bytes. */
struct shape {
  uint64_t m, n, k;
  /* alignment in bytes (at most 256) of a, b, y, bias and aux; 0: the product has no such
   * operand. apart_sums: the sums of SUMS are brought from aux to their place */
  uint32_t alignment[5];
  uint8_t a_turned, b_turned, accumulate, dtype, y_dtype, scaled, epilogue;
  /* for fp8 products: flags that select the kernel of the library */
  uint8_t b_dtype, codes, apart_sums, pad[2];
};
G_STATIC_ASSERT (sizeof (struct shape) == 56);

struct choice {
  struct shape shape;
  cublasLtMatmulAlgo_t algorithm;
  uint64_t scratch;
  /* bits of enum apart: the library runs the product alone, and kernels of Weft run before or after
   * the product */
  uint64_t apart;
  float ms;       /* measured time; 0: not measured, the library's first suggestion */
  uint32_t tried; /* number of algorithms that were measured */
};
G_STATIC_ASSERT (sizeof (struct choice) == 144); /* no padding: a choice is saved as bytes */

/* APART_LIBRARY: no product of the library at all, but a kernel of Weft for product and epilogue */
enum apart { APART_EPILOGUE = 1, APART_BIAS = 2, APART_LIBRARY = 4 };

struct weft_cuda_blas {
  cublasLtHandle_t handle;
  GHashTable *choices; /* shape -> choice */
  GHashTable *loaded;  /* set of struct choice * whose kernels load_product() has loaded */
  int arch;            /* 10 * major + minor */
  uint64_t processors; /* multiprocessors of the GPU */
  gboolean only_prepare;
  gboolean said;      /* a message has said that products are not measured */
  const char *broken; /* why no product can run any more; NULL: products run */
  /* names library, driver and GPU, as in the first line of the file of algorithms */
  char machine[360];
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

static gboolean
is_summed (const struct weft_cuda_gemm *g)
{
  return g->epilogue == WEFT_CUDA_SUMS;
}

static gboolean
is_gated (const struct weft_cuda_gemm *g)
{
  return g->epilogue == WEFT_CUDA_GATE;
}

static struct shape
shape_of (const struct weft_cuda_gemm *g)
{
  return (struct shape){ .m = g->m,
                         .n = g->n,
                         .k = g->k,
                         .alignment = { weft_trial_alignment (g->a), weft_trial_alignment (g->b),
                                        weft_trial_alignment (g->y), weft_trial_alignment (g->bias),
                                        weft_trial_alignment (g->aux) },
                         .a_turned = g->a_turned,
                         .b_turned = g->b_turned,
                         .accumulate = g->accumulate,
                         .dtype = g->dtype,
                         .y_dtype = g->y_dtype,
                         .scaled = g->scale != NULL,
                         .epilogue = g->epilogue,
                         .b_dtype = weft_blas_b_dtype (g),
                         .codes = (uint8_t) (g->block | g->square << 1 | g->fast),
                         .apart_sums = g->aux != g->sums.data && is_summed (g) };
}

/* ---------------------------------------------------------------------------- a product */

/* Refuses fp8 products that cuBLASLt does not support: rows of the factors must begin at multiples
 * of sixteen bytes, and a bias of fp32 sums must be bf16 (cuBLAS 13, cublasLtMatmul, "FP8
 * kernels"). */
static const char *
refuse_codes (const struct weft_cuda_blas *blas, const struct weft_cuda_gemm *g)
{
  const char *refused = g->a_scale ? weft_fp8_refused (blas->arch, g->block) : NULL;

  if (!g->a_scale || refused)
    return refused;
  if (g->m % 16 || g->n % 16 || g->k % 16)
    return "fp8 matmuls need multiples of 16 in all dimensions: the tokens of a microbatch and "
           "the widths of the model on a rank";
  if (weft_trial_alignment (g->a) < 16 || weft_trial_alignment (g->b) < 16 ||
      weft_trial_alignment (g->y) < 16)
    return "fp8 matmuls need operands at addresses that are multiples of 16 bytes";
  if (g->bias && g->y_dtype == WEFT_FP32)
    return "fp8 matmuls with fp32 results do not support a bias";
  return NULL;
}

/* Returns the product g without the epilogue or without the bias, which a kernel of Weft computes.
 * APART_EPILOGUE: the product is stored where the epilogue reads it. APART_BIAS: the bias is
 * already in y, and the product adds to y. */
static struct weft_cuda_gemm
plain_of (const struct weft_cuda_gemm *g, uint64_t apart)
{
  struct weft_cuda_gemm plain = *g;

  if (apart & APART_BIAS) {
    plain.bias = NULL;
    plain.accumulate = TRUE;
  }
  if (!(apart & APART_EPILOGUE))
    return plain;
  if ((g->epilogue == WEFT_CUDA_GELU && g->aux) || is_gated (g))
    plain.y = g->aux;
  plain.epilogue = WEFT_CUDA_PLAIN;
  plain.aux = plain.sums.data = NULL;
  return plain;
}

static const char *
run (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const weft_blas_call *c,
     const struct choice *choice)
{
  const float given[] = { 1, g->accumulate ? 1 : 0 }, *factor = g->scale ? g->scale : given;

  return weft_blas_text (cublasLtMatmul (on->blas->handle, c->desc, factor, g->b, c->a, g->a, c->b,
                                         factor + 1, g->y, c->y, g->y, c->y, &choice->algorithm,
                                         on->scratch, choice->scratch, (cudaStream_t) on->stream));
}

/* Runs a product with bias and epilogue. If kernels of Weft compute these, c describes the product
 * alone. While kernels are only loaded, the product is skipped, because load_product() has loaded
 * its kernel. */
static const char *
run_all (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const weft_blas_call *c,
         const struct choice *choice)
{
  struct weft_cuda_gemm product = plain_of (g, choice->apart), whole = product;
  const char *error = NULL;

  if (choice->apart & APART_LIBRARY)
    return weft_cuda_gated (on, g);
  whole.bias = g->bias;
  if (choice->apart & APART_BIAS)
    error = weft_cuda_put_bias (on, &whole);
  if (!error && !weft_cuda_loads_only ())
    error = run (on, &product, c, choice);
  if (!error && choice->apart & APART_EPILOGUE)
    error = weft_cuda_follow (on, g);
  else if (!error && is_summed (g))
    error = weft_cuda_bring_sums (on, g);
  return error;
}

/* ----------------------------------------------------------------------- choosing an algorithm */

/* An algorithm is measured again if its first time is at most this factor above the least. */
#define CLOSE 1.15f

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

/* Sets the limits for the algorithms that the library's heuristic suggests: scratch size,
 * alignments, and no algorithm that adds partial sums in order of arrival. The library's matrix A
 * is Weft's b. */
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

/* Stores the algorithms that the library's heuristic suggests in `found`, best first, and their
 * number in *n. */
static const char *
guess (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const weft_blas_call *c,
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
  return weft_blas_text (status);
}

/* parts_tried: numbers of parts into which the inner dimension is cut. CUT_BASES: number of
 * suggestions of the heuristic for which this is tried. */
static const int32_t parts_tried[] = { 2, 3, 4, 6, 8, 12, 16 };
enum { CUT_BASES = 4, MOST_CUT = CUT_BASES * G_N_ELEMENTS (parts_tried) };
/* Elements of the largest tile of the library, and the shortest inner dimension that is cut. */
enum { TILE_ELEMENTS = 128 * 256, LEAST_INNER = 4096 };

/* Whether the tiles of a product leave multiprocessors idle for a long time. Epilogues and scales
 * are left to the heuristic. */
static gboolean
is_cut (const struct weft_cuda_blas *blas, const struct weft_cuda_gemm *g)
{
  return g->k >= LEAST_INNER && g->m * g->n / TILE_ELEMENTS < 2 * blas->processors &&
         !g->epilogue && !g->bias && !g->scale && !g->a_scale;
}

/* Cuts the inner dimension of an algorithm into parts, whose fp32 sums are added in order. FALSE:
 * the library does not support it, or it needs more scratch than there is. */
static gboolean
cut (const struct weft_cuda_launch *on, const weft_blas_call *c, int32_t parts,
     cublasLtMatmulHeuristicResult_t *found)
{
  const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasLtMatmulHeuristicResult_t checked;

  if (cublasLtMatmulAlgoConfigSetAttribute (&found->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                            sizeof parts) != CUBLAS_STATUS_SUCCESS ||
      cublasLtMatmulAlgoConfigSetAttribute (&found->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                            &scheme, sizeof scheme) != CUBLAS_STATUS_SUCCESS ||
      cublasLtMatmulAlgoCheck (on->blas->handle, c->desc, c->a, c->b, c->y, c->y, &found->algo,
                               &checked) != CUBLAS_STATUS_SUCCESS)
    return FALSE;
  found->workspaceSize = checked.workspaceSize;
  return checked.workspaceSize <= MIN (on->scratch_bytes, WEFT_BLAS_SCRATCH);
}

/* Appends the first suggestions with their inner dimension cut, and returns the new number. */
static int
add_cut (const struct weft_cuda_launch *on, const weft_blas_call *c,
         cublasLtMatmulHeuristicResult_t *found, int n)
{
  int bases = MIN (n, CUT_BASES);

  for (int base = 0; base < bases; base++)
    for (size_t i = 0; i < G_N_ELEMENTS (parts_tried); i++) {
      found[n] = found[base];
      n += cut (on, c, parts_tried[i], &found[n]);
    }
  return n;
}

struct attempt {
  const struct weft_cuda_launch *on;
  const struct weft_cuda_gemm *g;
  const weft_blas_call *c;
  const struct choice *choice;
};

static const char *
run_attempt (const void *user)
{
  const struct attempt *t = user;
  return run_all (t->on, t->g, t->c, t->choice);
}

/* Milliseconds of an attempt: of one run, or of the fastest of several. */
static float
time_attempt (const struct attempt *t, gboolean glance)
{
  float took = (glance ? weft_trial_glance : weft_trial_time) (run_attempt, t, t->on->stream);

  if (took == WEFT_TRIAL_HUNG && !t->on->blas->broken) {
    t->on->blas->broken = "a matmul of cuBLASLt did not end while algorithms were timed";
    g_printerr ("weft: the matmul of %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT
                " x %" G_GUINT64_FORMAT " did not end within %g s\n",
                t->g->m, t->g->n, t->g->k, weft_trial_limit);
  }
  return took;
}

/* Says once that the heuristic chooses, because there is no memory for operands. */
static void
say_unmeasured (struct weft_cuda_blas *blas, const struct weft_cuda_gemm *g)
{
  if (!blas->said)
    g_printerr ("weft: no GPU memory is left to time matmuls: that of %" G_GUINT64_FORMAT
                " x %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT
                ", and perhaps others, use cuBLASLt's first suggestion, which may be slower\n",
                g->m, g->n, g->k);
  blas->said = TRUE;
}

/* ----------------------------------------------------------------- operands for timing */

/* Buffers that products read and write while they are measured. */
typedef struct operands {
  struct weft_cuda_gemm gemm;
  void *block[6];
} operands;

static void
operands_clear (operands *o)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (o->block); i++)
    weft_trial_free (o->block[i]);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (operands, operands_clear)

static gboolean
make_operands (operands *o, const struct weft_cuda_gemm *g)
{
  const void *y = NULL, *aux = NULL, *sums = NULL;
  const gboolean brings = g->sums.data != g->aux;

  o->gemm = *g;
  gboolean ok =
      weft_trial_block (&o->block[0], g->a, g->m * g->k, g->dtype, &o->gemm.a) &&
      weft_trial_block (&o->block[1], g->b, g->k * g->n, weft_blas_b_dtype (g), &o->gemm.b) &&
      weft_trial_block (&o->block[2], g->y, g->m * g->n, g->y_dtype, &y) &&
      weft_trial_block (&o->block[3], g->bias, g->n, g->y_dtype, &o->gemm.bias) &&
      weft_trial_block (&o->block[4], g->aux, is_summed (g) ? g->m : g->m * g->n, g->y_dtype,
                        &aux) &&
      weft_trial_block (&o->block[5], brings ? g->sums.data : NULL, g->sums.n, g->sums.dtype,
                        &sums) &&
      cudaDeviceSynchronize () == cudaSuccess;
  o->gemm.y = (void *) (uintptr_t) y;
  o->gemm.aux = (void *) (uintptr_t) aux;
  o->gemm.sums.data = brings ? (void *) (uintptr_t) sums : o->gemm.aux;
  return ok;
}

/* Milliseconds that a choice takes on operands with the sizes of g; negative: the product
 * failed. */
static float
time_of (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g,
         const struct choice *choice)
{
  g_auto (operands) o = { 0 };
  g_auto (weft_blas_call) c = { 0 };

  if (!make_operands (&o, g))
    return -1;
  struct weft_cuda_gemm product = plain_of (&o.gemm, choice->apart);
  const struct attempt attempt = { on, &o.gemm, &c, choice };
  return weft_blas_call_init (&c, &product) ? -1 : time_attempt (&attempt, FALSE);
}

/* Milliseconds that each of n algorithms takes; negative: it failed, or it is left out because
 * took[i] was not within CLOSE of `least`. A negative `least`: all are measured, with one run.
 * Returns the least of them; negative: none. */
static float
time_all (const struct attempt *on_operands, const cublasLtMatmulHeuristicResult_t *found, int n,
          float least, float *took)
{
  float now = -1;

  for (int i = 0; i < n; i++) {
    const struct choice tried = { .algorithm = found[i].algo, .scratch = found[i].workspaceSize };
    struct attempt attempt = *on_operands;
    gboolean left_out = least >= 0 && (took[i] < 0 || took[i] > least * CLOSE);
    attempt.choice = &tried;
    took[i] = left_out || attempt.on->blas->broken ? -1 : time_attempt (&attempt, least < 0);
    now = took[i] >= 0 && (now < 0 || took[i] < now) ? took[i] : now;
  }
  return now;
}

/* Measures n algorithms, and sets algorithm, scratch, ms and tried of a choice to those of the
 * fastest one. Only those that are close to the fastest in one run are measured in several. Leaves
 * the choice unchanged if no algorithm can be measured. */
static void
take_fastest (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g,
              const cublasLtMatmulHeuristicResult_t *found, int n, struct choice *choice)
{
  float took[WEFT_BLAS_CANDIDATES + MOST_CUT];
  g_auto (operands) o = { 0 };
  g_auto (weft_blas_call) c = { 0 };

  if (!make_operands (&o, g)) {
    say_unmeasured (on->blas, g);
    return;
  }
  if (weft_blas_call_init (&c, &o.gemm))
    return;
  const struct attempt attempt = { on, &o.gemm, &c, NULL };
  float least = time_all (&attempt, found, n, -1, took);
  for (int i = 0; i < n; i++)
    choice->tried += took[i] >= 0;
  least = least < 0 ? least : time_all (&attempt, found, n, least, took);
  for (int i = n - 1; i >= 0 && least >= 0; i--)
    if (took[i] == least) {
      choice->algorithm = found[i].algo;
      choice->scratch = found[i].workspaceSize;
      choice->ms = least;
    }
}

static const struct choice *
remember (struct weft_cuda_blas *blas, const struct choice *choice)
{
  struct choice *kept = g_memdup2 (choice, sizeof *choice);

  g_hash_table_replace (blas->choices, &kept->shape, kept);
  return kept;
}

/* Chooses an algorithm by measurement. NULL: no algorithm runs; *error is the reason. */
static const struct choice *
choose (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const char **error)
{
  cublasLtMatmulHeuristicResult_t found[WEFT_BLAS_CANDIDATES + MOST_CUT + 1];
  g_auto (weft_blas_call) c = { 0 };
  int n = 0;

  *error = weft_blas_call_init (&c, g);
  if (!*error)
    *error = guess (on, g, &c, found, &n);
  if (*error)
    return NULL;
  if (on->blas->only_prepare && is_cut (on->blas, g))
    n = add_cut (on, &c, found, n);
  struct choice choice = { .shape = shape_of (g),
                           .algorithm = found[0].algo,
                           .scratch = found[0].workspaceSize };
  if (on->blas->only_prepare)
    take_fastest (on, g, found, n, &choice);
  return remember (on->blas, &choice);
}

/* Whether the algorithm of a choice fits into the scratch of this launch. Before the first step,
 * also whether the library still accepts an algorithm that was loaded from a file. */
static gboolean
still_runs (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g,
            const struct choice *choice)
{
  struct weft_cuda_gemm product = plain_of (g, choice->apart);
  cublasLtMatmulHeuristicResult_t found;
  g_auto (weft_blas_call) c = { 0 };

  if (choice->apart & APART_LIBRARY)
    return weft_cuda_gated_takes (on, g);
  if (choice->scratch > on->scratch_bytes || !on->blas->only_prepare)
    return choice->scratch <= on->scratch_bytes;
  return !weft_blas_call_init (&c, &product) &&
         cublasLtMatmulAlgoCheck (on->blas->handle, c.desc, c.a, c.b, c.y, c.y, &choice->algorithm,
                                  &found) == CUBLAS_STATUS_SUCCESS &&
         found.workspaceSize <= choice->scratch;
}

static const struct choice *
known_of (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  struct shape shape = shape_of (g);
  const struct choice *known = g_hash_table_lookup (on->blas->choices, &shape);

  return known && still_runs (on, g, known) ? known : NULL;
}

/* Stores the choice for g: the algorithm of the plain product, with the bits `apart` for the
 * kernels that Weft runs beside it. */
static const struct choice *
remember_apart (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g,
                const struct choice *product, enum apart apart)
{
  struct choice choice = *product;

  choice.shape = shape_of (g);
  choice.apart |= apart;
  return remember (on->blas, &choice);
}

/* The choice for a product without epilogue. If the library cannot add the bias, a kernel of Weft
 * adds it. */
static const struct choice *
choice_of (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const char **error)
{
  const struct weft_cuda_gemm bare = plain_of (g, APART_BIAS);
  const struct choice *found = known_of (on, g);

  *error = NULL;
  if (found || (found = choose (on, g, error)) || !g->bias || g->scale)
    return found;
  found = choice_of (on, &bare, error);
  return found ? remember_apart (on, g, found, APART_BIAS) : NULL;
}

/* Whether the library may compute the epilogue. */
static gboolean
may_fuse (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  return !is_summed (g) || (g->aux && on->blas->only_prepare);
}

/* The choice for a product with a gate: two kernels, or the one of gated.cu if it was measured to
 * be faster, or with WEFT_WARPGROUPS=producer. `apart`: the choice of two. */
static const struct choice *
choice_of_gated (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g,
                 const struct choice *apart)
{
  struct choice one = *apart, two = *apart;

  one.apart |= APART_LIBRARY;
  if (on->warpgroups == WEFT_WARPGROUPS_PRODUCER && weft_cuda_gated_takes (on, g))
    return remember_apart (on, g, &one, APART_LIBRARY);
  if (on->blas->only_prepare && weft_cuda_gated_takes (on, g)) {
    float both = time_of (on, g, &two), together = time_of (on, g, &one);
    two.ms = MAX (both, 0);
    one.ms = MAX (together, 0);
    if (together >= 0 && (both < 0 || together < both))
      return remember_apart (on, g, &one, APART_LIBRARY);
  }
  return remember_apart (on, g, &two, APART_EPILOGUE);
}

/* The choice for a product with an epilogue. The library fuses the epilogue if it supports this and
 * if the fused product is not slower. */
static const struct choice *
choice_with (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const char **error)
{
  struct weft_cuda_gemm plain = plain_of (g, APART_EPILOGUE);
  const struct choice *known = known_of (on, g);

  *error = NULL;
  if (known)
    return known;
  const struct choice *product = choice_of (on, &plain, error);
  if (!product)
    return NULL;
  struct choice apart = *product;
  apart.apart |= APART_EPILOGUE;
  if (is_gated (g))
    return choice_of_gated (on, g, &apart);
  const struct choice *one = may_fuse (on, g) ? choose (on, g, error) : NULL;
  *error = NULL;
  if (one && on->blas->only_prepare) {
    float together = time_of (on, g, one), both = time_of (on, g, &apart);
    apart.ms = MAX (both, 0);
    if (together < 0 || (both >= 0 && both < together))
      one = NULL;
  }
  return one ? one : remember_apart (on, g, &apart, APART_EPILOGUE);
}

/* Runs the product once, because the library loads a kernel at its first run. If there is no memory
 * for operands, the kernel is loaded in the first step. */
static void
load_product (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g,
              const struct choice *choice)
{
  g_auto (operands) o = { 0 };
  g_auto (weft_blas_call) c = { 0 };

  if (choice->apart & APART_LIBRARY ||
      !g_hash_table_add (on->blas->loaded, (void *) (uintptr_t) choice) || !make_operands (&o, g))
    return;
  struct weft_cuda_gemm product = plain_of (&o.gemm, choice->apart);
  if (!weft_blas_call_init (&c, &product) && !run (on, &product, &c, choice))
    (void) cudaDeviceSynchronize ();
}

const char *
weft_cuda_multiply (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm)
{
  const char *error = refuse_codes (on->blas, gemm);
  g_auto (weft_blas_call) c = { 0 };

  if (error)
    return error;
  if (on->blas->broken)
    return on->blas->broken;
  const struct choice *choice = (gemm->epilogue ? choice_with : choice_of) (on, gemm, &error);
  if (error || on->blas->broken || on->blas->only_prepare)
    return error ? error : on->blas->broken;
  if (weft_cuda_loads_only ())
    load_product (on, gemm, choice);
  struct weft_cuda_gemm product = plain_of (gemm, choice->apart);
  error = weft_blas_call_init (&c, &product);
  return error ? error : run_all (on, gemm, &c, choice);
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

/* ----------------------------------------------------------------------- creation and file */

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
  *error = found == cudaSuccess ? weft_blas_text (cublasLtCreate (&blas->handle))
                                : cudaGetErrorString (found);
  if (*error)
    return NULL;
  g_snprintf (blas->machine, sizeof blas->machine,
              "cublasLt %zu, driver for CUDA %d, %s, sm_%d%d, %d SMs", cublasLtGetVersion (),
              driver, device.name, device.major, device.minor, device.multiProcessorCount);
  blas->arch = 10 * device.major + device.minor;
  blas->processors = (uint64_t) device.multiProcessorCount;
  blas->choices = g_hash_table_new_full (hash_shape, same_shape, NULL, g_free);
  blas->loaded = g_hash_table_new (NULL, NULL);
  return g_steal_pointer (&blas);
}

void
weft_blas_free (struct weft_cuda_blas *blas)
{
  if (!blas)
    return;
  (void) cublasLtDestroy (blas->handle);
  g_hash_table_unref (blas->choices);
  g_hash_table_unref (blas->loaded);
  g_free (blas);
}

/* Appends the settings of an algorithm; cublasLt.h explains the numbers. */
static void
describe_algorithm (const cublasLtMatmulAlgo_t *algorithm, GString *words)
{
  static const struct {
    const char *word;
    cublasLtMatmulAlgoConfigAttributes_t attribute;
    size_t bytes;
  } settings[] = {
    { "algorithm", CUBLASLT_ALGO_CONFIG_ID, 4 },
    { "tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4 },
    { "stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4 },
    { "split_k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4 },
    { "reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4 },
    { "swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4 },
    { "custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4 },
    { "inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2 },
    { "cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2 },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (settings); i++) {
    uint32_t value = 0;
    size_t bytes = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute (algorithm, settings[i].attribute, &value,
                                              settings[i].bytes, &bytes) == CUBLAS_STATUS_SUCCESS)
      g_string_append_printf (words, " %s=%u", settings[i].word, value);
  }
}

static void
describe_choice (const void *bytes, GString *words)
{
  struct choice choice;
  const struct shape *s = &choice.shape;

  memcpy (&choice, bytes, sizeof choice);
  g_string_append_printf (words,
                          "m=%" G_GUINT64_FORMAT " n=%" G_GUINT64_FORMAT " k=%" G_GUINT64_FORMAT
                          " type=%s out=%s a_turned=%d b_turned=%d accumulate=%d epilogue=%d"
                          " bias=%d apart=%d",
                          s->m, s->n, s->k, weft_dtype_words[s->dtype],
                          weft_dtype_words[s->y_dtype], s->a_turned, s->b_turned, s->accumulate,
                          s->epilogue, s->alignment[3] > 0, (int) choice.apart);
  describe_algorithm (&choice.algorithm, words);
  g_string_append_printf (words, " scratch=%" G_GUINT64_FORMAT " tried=%u ms=%.5f", choice.scratch,
                          choice.tried, (double) choice.ms);
  if (choice.ms > 0)
    g_string_append_printf (words, " tflops=%.1f",
                            2e-9 * (double) s->m * (double) s->n * (double) s->k / choice.ms);
}

static struct weft_trial_file
file_of (const struct weft_cuda_blas *blas, const char *path)
{
  return (struct weft_trial_file){ .path = path,
                                   .machine = blas->machine,
                                   .what = "algorithm of a matrix product",
                                   .bytes = sizeof (struct choice),
                                   .describe = describe_choice };
}

gboolean
weft_blas_save (const struct weft_cuda_blas *blas, const char *path, GError **error)
{
  const struct weft_trial_file file = file_of (blas, path);

  return weft_trial_save (&file, blas->choices, error);
}

static void
take_choice (void *user, const void *bytes)
{
  (void) remember (user, bytes);
}

gboolean
weft_blas_load (struct weft_cuda_blas *blas, const char *path, uint32_t *found, GError **error)
{
  struct weft_trial_file file = file_of (blas, path);

  file.take = take_choice;
  file.user = blas;
  return weft_trial_load (&file, found, error);
}

const char *
weft_blas_machine (const struct weft_cuda_blas *blas)
{
  return blas->machine;
}

char *
weft_blas_path (const struct weft_cuda_blas *blas)
{
  return weft_trial_path ("products", blas->machine);
}
