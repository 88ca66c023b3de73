/* playing_cublaslt.h - a test double of cuBLASLt and of the CUDA runtime calls in
 * kernels/cuda/blas.c. It multiplies in host memory, and refuses combinations of types, transposes,
 * alignments, epilogues and scales that the documentation excludes (cuBLAS 13, "cublasLtMatmul",
 * "Narrow precision data types usage"; cublasLt.h). */
#pragma once
#include <stdint.h>

struct playing_cublaslt {
  /* compute capability of the GPU that the double imitates: 10 * major + minor */
  int arch;
  /* counters since the start: heuristic requests, suggested algorithms, matmuls, checks of
   * algorithms */
  uint64_t n_heuristics;
  uint64_t n_candidates, n_products, n_checks;
  uint64_t n_gradients; /* matmuls that stored a bias gradient */
  uint64_t wants;   /* workspace in bytes that every suggested algorithm needs, except the last */
  uint32_t fastest; /* index of the fastest algorithm among the suggestions */
  /* parts: of the inner dimension of the last matmul; fast_parts: matmuls with another number of
   * parts take longer; 0: all take the same */
  int32_t parts, fast_parts;
  /* TRUE: a matmul with fused GELU or bias gradient takes longer than a plain one and a kernel */
  int dear_epilogues;
  int no_gradients; /* TRUE: bias gradients are not supported */
  int forgets;      /* TRUE: cublasLtMatmulAlgoCheck() refuses every algorithm */
  int no_memory;    /* TRUE: cudaMalloc() fails */
  /* number of the matmul, counted from 1, that does not end: no event behind it is complete; 0:
   * none */
  uint64_t hangs;
  uint64_t n_freed; /* blocks that cudaFree() has freed */
};
extern struct playing_cublaslt playing_cublaslt;
