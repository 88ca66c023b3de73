/* warpgroup.cuh - products of 64 x 16 by 16 x N 16-bit elements on the tensor cores of compute
 * capability 9.0 with fp32 sums: wgmma.mma_async of PTX, issued by four warps together, the first
 * of which has a number divisible by four (PTX ISA, "Asynchronous warpgroup level matrix
 * instructions").
 *
 * The right matrix, and the left one unless it is in registers, is read from shared memory
 * asynchronously. The protocol for a thread:
 *
 *   products_begin    before the first product of a batch, and after registers were written; call
 *                     hold() on what was written, or the compiler may write it later
 *   multiply_...      sums and fragments must not be touched until the product was waited for
 *   products_commit   closes a group: the products since the last commit
 *   products_wait<n>  waits for all but the newest n groups; then call hold() on the sums to read
 *
 * Tiles written by cp.async are visible to products after tiles_arrive().
 *
 * Sums and fragments lie in registers as in fragments.cuh: warp w of the four holds rows 16 w to
 * 16 w + 15, and of each eight columns, a lane holds the elements of c[4] in fragments.cuh.
 *
 * A tile in shared memory of N rows consists of panels of 64 columns, each N rows of 128 bytes; in
 * a row, 16-byte word c is stored in place c ^ row % 8, so that neither row nor column accesses
 * have bank conflicts: the 128-byte swizzle of descriptors ("Matrix Descriptor Format"; "Strides").
 * A tile begins at a multiple of 1024 bytes. It holds a left or a right matrix, either with the
 * rows of the matrix as its rows, or transposed, with one row per term. */
#pragma once
#include "kernels/cuda/fragments.cuh"

enum {
  GROUP = 128 /* number of threads in a warpgroup */,
  PANEL = 64 /* columns */,
  TERMS = 16 /* of a product */
};

/* ------------------------------------------------------------------------ descriptors */

enum {
  ATOM = 1024 /* size in bytes of 8 rows of a panel */,
  ROW = 128,
  WORD = 16 /* number of bytes that are one unit of the fields of a matrix descriptor */
};

/* Matrix descriptor. Bits 0 to 13: address; from 16: bytes from panel to panel (transposed); from
 * 32: bytes from eight rows to the next; from 62: layout (1: 128-byte swizzle). */
static __device__ __forceinline__ uint64_t
described (uint32_t at, uint64_t panel_bytes)
{
  return at % (1 << 18) / WORD | panel_bytes / WORD << 16 | (uint64_t) (ATOM / WORD) << 32 |
         (uint64_t) 1 << 62;
}

/* Offset of the 16 terms from 16 k on, in a tile of N rows. */
template <int N>
static __device__ __forceinline__ uint64_t
terms_at (int k)
{
  const int each = PANEL / TERMS;

  return (uint64_t) (k / each * N * ROW + k % each * TERMS * 2) / WORD;
}

static __device__ __forceinline__ uint64_t
turned_terms_at (int k)
{
  return (uint64_t) (k * TERMS * ROW) / WORD;
}

/* Whether the target architecture has warpgroup instructions (sm_90a, or the emulator). For other
 * architectures, the body of a kernel that needs these instructions is compiled to a trap; the host
 * never launches the kernel there. */
#if defined(WEFT_CUDA_EMULATOR) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WEFT_HAS_WARPGROUPS true
#else
#define WEFT_HAS_WARPGROUPS false
#endif

static __device__ __forceinline__ void
no_warpgroups (void)
{
#ifndef WEFT_CUDA_EMULATOR
  asm volatile ("trap;");
#endif
}

#ifdef WEFT_CUDA_EMULATOR
#define WEFT_TILES_SHARED(type, name) WEFT_DYNAMIC_SHARED (type, name)

static inline uint32_t
shared_at (const void *at)
{
  return (uint32_t) ((const uint8_t *) at - emulated_shared);
}

template <class T>
static inline float
decoded (uint16_t bits)
{
  T x;
  x.bits = bits;
  return to_float (x);
}

template <class T, int N, bool TURNED_A, bool TURNED_B>
static inline void
multiply_tiles (float (&sum)[N / 8][4], uint64_t a, uint64_t b, bool adds)
{
  emulated_multiply ({ sum[0], N, NULL, a, b, TURNED_A, TURNED_B, adds, decoded<T> });
}

template <class T, int N, bool TURNED_B>
static inline void
multiply_fragments (float (&sum)[N / 8][4], const uint32_t (&a)[4], uint64_t b)
{
  emulated_multiply ({ sum[0], N, a, 0, b, false, TURNED_B, true, decoded<T> });
}

#define products_begin emulated_products_begin
#define products_commit emulated_products_commit

template <int OPEN>
static inline void
products_wait (void)
{
  emulated_products_wait (OPEN);
}

static inline void
copies_are_seen (void)
{
  emulated_copies_are_seen ();
}

template <int N>
static inline void
hold (float (&)[N][4])
{
}

template <int N>
static inline void
hold (uint32_t (&)[N][4])
{
}
#else
#define WEFT_TILES_SHARED(type, name)                                                              \
  extern __shared__ __align__ (1024) uint8_t weft_tiles[];                                         \
  type *name = (type *) weft_tiles

static __device__ __forceinline__ uint32_t
shared_at (const void *at)
{
  return (uint32_t) __cvta_generic_to_shared (at);
}

/* Operands of the instructions: sums, then factors. */
#define REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS_32                                                                               \
  REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_64                                                                               \
  REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
               "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS_128                                                                              \
  REGISTERS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83," \
               "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,"   \
               "%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,"  \
               "%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define SUMS_4(s, i) "+f"(s[i][0]), "+f"(s[i][1]), "+f"(s[i][2]), "+f"(s[i][3])
#define SUMS_16(s, i) SUMS_4 (s, i), SUMS_4 (s, i + 1), SUMS_4 (s, i + 2), SUMS_4 (s, i + 3)
#define SUMS_32(s, i) SUMS_16 (s, i), SUMS_16 (s, i + 4)
#define SUMS_64(s, i) SUMS_32 (s, i), SUMS_32 (s, i + 8)
#define SUMS_128(s, i) SUMS_64 (s, i), SUMS_64 (s, i + 16)

template <class T, int N, bool TURNED_A, bool TURNED_B>
struct warpgroup_products;

/* Operands: `adds` (accumulate into the sum or overwrite it), then signs, then transpose flags. */
#define PRODUCTS(T, TYPE, N, SUMS, AT_0, AT_1, AT_2, AT_3, AT_4, AT_5)                             \
  template <bool TURNED_A, bool TURNED_B> struct warpgroup_products<T, N, TURNED_A, TURNED_B> {    \
    static __device__ __forceinline__ void                                                         \
    tiles (float (&sum)[N / 8][4], uint64_t a, uint64_t b, int adds)                               \
    {                                                                                              \
      asm volatile ("{\n.reg .pred p;\nsetp.ne.b32 p, " AT_2 ", 0;\n"                              \
                    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {"           \
                    REGISTERS_##SUMS "}, " AT_0 ", " AT_1 ", p, 1, 1, " AT_3 ", " AT_4 ";\n}"      \
                    : SUMS_##SUMS (sum, 0)                                                         \
                    : "l"(a), "l"(b), "r"(adds), "n"(TURNED_A), "n"(TURNED_B));                    \
    }                                                                                              \
    static __device__ __forceinline__ void                                                         \
    fragments (float (&sum)[N / 8][4], const uint32_t (&a)[4], uint64_t b)                         \
    {                                                                                              \
      asm volatile ("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {"           \
                    REGISTERS_##SUMS "}, {" AT_0 "," AT_1 "," AT_2 "," AT_3 "}, " AT_4             \
                    ", 1, 1, 1, " AT_5 ";"                                                         \
                    : SUMS_##SUMS (sum, 0)                                                         \
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TURNED_B));          \
    }                                                                                              \
  };
PRODUCTS (bf16, "bf16", 64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCTS (fp16, "f16", 64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCTS (bf16, "bf16", 128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
PRODUCTS (fp16, "f16", 128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
PRODUCTS (bf16, "bf16", 256, 128, "%128", "%129", "%130", "%131", "%132", "%133")
PRODUCTS (fp16, "f16", 256, 128, "%128", "%129", "%130", "%131", "%132", "%133")
#undef PRODUCTS

/* sum = a b, or sum += a b, with both matrices in shared memory. */
template <class T, int N, bool TURNED_A, bool TURNED_B>
static __device__ __forceinline__ void
multiply_tiles (float (&sum)[N / 8][4], uint64_t a, uint64_t b, bool adds)
{
  warpgroup_products<T, N, TURNED_A, TURNED_B>::tiles (sum, a, b, adds);
}

/* sum += a b with fragments of a in registers. */
template <class T, int N, bool TURNED_B>
static __device__ __forceinline__ void
multiply_fragments (float (&sum)[N / 8][4], const uint32_t (&a)[4], uint64_t b)
{
  warpgroup_products<T, N, false, TURNED_B>::fragments (sum, a, b);
}

static __device__ __forceinline__ void
products_begin (void)
{
  asm volatile ("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void
products_commit (void)
{
  asm volatile ("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int OPEN>
static __device__ __forceinline__ void
products_wait (void)
{
  asm volatile ("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory");
}

/* Makes this thread's writes to shared memory visible to wgmma (the async proxy). */
static __device__ __forceinline__ void
copies_are_seen (void)
{
  asm volatile ("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The compiler assumes that sums are ready when the product is issued. hold() keeps it from moving
 * reads of the sums before this point, and writes of the sums after this point and so after the
 * fence that follows. */
template <int N>
static __device__ __forceinline__ void
hold (float (&sum)[N][4])
{
  WEFT_UNROLL
  for (int n = 0; n < N; n++)
    asm volatile ("" : SUMS_4 (sum, n)::"memory");
}

/* Keeps the compiler from moving writes of fragments after this point, and so after the fence that
 * precedes their product. */
template <int N>
static __device__ __forceinline__ void
hold (uint32_t (&p)[N][4])
{
  WEFT_UNROLL
  for (int n = 0; n < N; n++)
    asm volatile ("" : "+r"(p[n][0]), "+r"(p[n][1]), "+r"(p[n][2]), "+r"(p[n][3])::"memory");
}
#endif

/* ------------------------------------------------------------------------------ tiles */

/* Descriptor of a tile that is not transposed, from row `row` on, a multiple of 8. */
template <class T>
static __device__ __forceinline__ uint64_t
tile_from (const T *tile, unsigned row)
{
  return described (shared_at (tile) + row * ROW, WORD);
}

/* Descriptor of a transposed tile of N rows. */
template <int N, class T>
static __device__ __forceinline__ uint64_t
tile_turned (const T *tile)
{
  return described (shared_at (tile), N * ROW);
}

/* Address of the sixteen bytes from column 8 c on, in a tile of N rows. */
template <int N, class T>
static __device__ __forceinline__ T *
tile_place (T *tile, unsigned row, unsigned c)
{
  return tile + (c / 8 * N + row) * PANEL + (c % 8 ^ row % 8) * 8;
}

/* Waits until the copies of all threads have completed, except the newest OPEN groups. */
template <int OPEN = 0>
static __device__ __forceinline__ void
tiles_arrive (void)
{
  WEFT_COPY_WAIT (OPEN);
  copies_are_seen ();
  __syncthreads ();
}

/* sum (64, B) = the product of 64 rows of tile a and all rows of tile b, over D terms. Tile a has A
 * rows, tile b has B rows. */
template <class T, int D, int A, int B>
static __device__ __forceinline__ void
multiply_rows (float (&sum)[B / 8][4], uint64_t a, uint64_t b)
{
  WEFT_UNROLL
  for (int k = 0; k < D / TERMS; k++)
    multiply_tiles<T, B, false, false> (sum, a + terms_at<A> (k), b + terms_at<B> (k), k > 0);
}

/* sum (64, D) += p (64, N) times the N rows of a transposed tile. */
template <class T, int D, int N>
static __device__ __forceinline__ void
multiply_by (float (&sum)[D / 8][4], const uint32_t (&p)[N / TERMS][4], uint64_t tile)
{
  WEFT_UNROLL
  for (int k = 0; k < N / TERMS; k++)
    multiply_fragments<T, D, true> (sum, p[k], tile + turned_terms_at (k));
}

/* Rounds sums to fragments of a left matrix: words 0 and 1 of p[k] are rows g and g + 8 of the
 * first eight columns, words 2 and 3 are these rows of the next eight columns. */
template <class T, int N>
static __device__ __forceinline__ void
round_to (uint32_t (&p)[N / 2][4], const float (&s)[N][4])
{
  WEFT_UNROLL
  for (int k = 0; k < N / 2; k++)
    for (int e = 0; e < 4; e++)
      p[k][e] = two<T> (s[2 * k + e / 2][e % 2 * 2], s[2 * k + e / 2][e % 2 * 2 + 1]);
  hold (p);
}
